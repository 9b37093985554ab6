/* verify's layouts: names, what is refused, and that the pairwise set shows every pair of values that the whole set shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/verify.h"

#include <string.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":36,\"intermediate_size\":50,\"num_hidden_layers\":3,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":3,\"head_dim\":10,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true}";

typedef struct fixture {
    im_context *ctx;
    im_model *model;
    im_plan base;
} fixture;

static int setup(void **state)
{
    static fixture f;
    im_json *doc;
    assert_int_equal(im_context_create(&f.ctx), IM_OK);
    assert_int_equal(im_json_parse(f.ctx, "test.json", llama, strlen(llama), &doc), IM_OK);
    assert_int_equal(im_model_parse(f.ctx, doc, &f.model), IM_OK);
    im_json_free(doc);
    im_plan_defaults(&f.base, f.model);
    f.base.seq_len = 8;
    f.base.global_batch = 5;
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    im_model_close(f->model);
    im_context_destroy(f->ctx);
    return 0;
}

static const int64_t micro[2] = {1, 2};

static im_train_verify_set set_of(fixture *f, int ranks, const char *which)
{
    im_train_verify_set s;
    if (im_train_verify_layouts(f->ctx, &f->base, ranks, which, micro, 2, &s) != IM_OK)
        fail_msg("%s", im_error_text(f->ctx));
    return s;
}

static void names(void **state)
{
    fixture *f = *state;
    im_train_verify_set all = set_of(f, 4, "all");
    for (size_t i = 0; i < all.n; i++) {
        char a[IM_TRAIN_VERIFY_NAME], b[IM_TRAIN_VERIFY_NAME];
        im_train_verify_layout l;
        im_train_verify_name(&all.layout[i], a, sizeof a);
        assert_int_equal(im_train_verify_parse(f->ctx, a, 7, &l), IM_OK);
        im_train_verify_name(&l, b, sizeof b);
        assert_string_equal(a, b);
        for (int k = 0; k < IM_TRAIN_VERIFY_FACTORS; k++)
            assert_int_equal(im_train_verify_factor(&l, k), im_train_verify_factor(&all.layout[i], k));
        for (size_t j = 0; j < i; j++) { /* none twice */
            im_train_verify_name(&all.layout[j], b, sizeof b);
            assert_string_not_equal(a, b);
        }
    }
    im_train_verify_set_free(&all);
}

/* Every layout of `all` is one the plan accepts, has at most the ranks, and no combination that it accepts is missing. */
static void all_of_them(void **state)
{
    fixture *f = *state;
    for (int ranks = 1; ranks <= 8; ranks++) {
        im_train_verify_set all = set_of(f, ranks, "all");
        size_t want = 0;
        f->base.global_batch = ranks + 1;
        im_train_verify_set_free(&all);
        all = set_of(f, ranks, "all");
        for (int tp = 1; tp <= ranks; tp++)
            for (int dp = 1; tp * dp <= ranks; dp++)
                for (int pp = 1; tp * dp * pp <= ranks; pp++)
                    for (int sp = 0; sp < 2; sp++)
                        for (int zero = 0; zero < 4; zero++) {
                            im_train_verify_layout l = {.tp = tp, .dp = dp, .pp = pp, .sp = sp, .zero = zero, .micro_batch = 1};
                            im_plan p = im_train_verify_plan(&f->base, &l);
                            if ((sp && tp == 1) || (zero && dp == 1))
                                continue;
                            want += im_plan_validate(f->ctx, &p) == IM_OK ? 6 : 0; /* three recompute policies, two sizes */
                            im_error_clear(f->ctx);
                        }
        assert_int_equal(all.n, want);
        for (size_t i = 0; i < all.n; i++)
            assert_true(all.layout[i].tp * all.layout[i].dp * all.layout[i].pp <= ranks);
        im_train_verify_set_free(&all);
    }
    f->base.global_batch = 5;
}

static bool shows(const im_train_verify_set *s, int a, int64_t va, int b, int64_t vb)
{
    for (size_t i = 0; i < s->n; i++)
        if (im_train_verify_factor(&s->layout[i], a) == va && im_train_verify_factor(&s->layout[i], b) == vb)
            return true;
    return false;
}

static void pairwise(void **state)
{
    fixture *f = *state;
    for (int ranks = 1; ranks <= 8; ranks++) {
        f->base.global_batch = ranks + 1;
        im_train_verify_set all = set_of(f, ranks, "all"), some = set_of(f, ranks, "pairwise");
        for (size_t i = 0; i < all.n; i++)
            for (int a = 0; a < IM_TRAIN_VERIFY_FACTORS; a++)
                for (int b = a + 1; b < IM_TRAIN_VERIFY_FACTORS; b++) {
                    int64_t va = im_train_verify_factor(&all.layout[i], a), vb = im_train_verify_factor(&all.layout[i], b);
                    if (!shows(&some, a, va, b, vb))
                        fail_msg("%d ranks: no layout with factor %d = %d and factor %d = %d", ranks, a, (int)va, b, (int)vb);
                }
        assert_true(ranks == 1 || some.n * 2 < all.n);
        im_train_verify_set_free(&all);
        im_train_verify_set_free(&some);
    }
    f->base.global_batch = 5;
}

static void refusals(void **state)
{
    fixture *f = *state;
    im_train_verify_set s = set_of(f, 4, "all");
    bool tp = false, tied = false;
    for (size_t i = 0; i < s.nrefused; i++) {
        tp |= strstr(s.refused[i].reason, "tp 4 is neither") != NULL;
        tied |= strstr(s.refused[i].reason, "tied embeddings") != NULL;
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(s.refused[i].reason, s.refused[j].reason);
    }
    assert_true(tp);
    assert_true(tied);
    im_train_verify_set_free(&s);
    static const struct {
        const char *list, *says;
    } bad[] = {{"tp2,tq2", "none of"},    {"tp4", "tp 4"},         {"tp2+dp3", "6 ranks"}, {"sp", "sequence parallelism"},
               {"dp2+zero2+pp2", "tied"}, {"dp2+zero5", "zero 5"}, {"tp", "none of"},      {"", "pairwise"},
               {"tp0", "ranks"},          {"mb0", "micro-batch 0"}};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        im_error_clear(f->ctx);
        assert_int_equal(im_train_verify_layouts(f->ctx, &f->base, 4, bad[i].list, micro, 2, &s), IM_ERR_ARG);
        if (!strstr(im_error_text(f->ctx), bad[i].says))
            fail_msg("\"%s\": no \"%s\" in: %s", bad[i].list, bad[i].says, im_error_text(f->ctx));
    }
    im_error_clear(f->ctx);
    s = set_of(f, 4, "tp2+sp,dp2+zero3+full+mb1");
    assert_int_equal(s.n, 2);
    assert_int_equal(s.layout[0].micro_batch, 2);
    assert_int_equal(s.layout[1].recompute, IM_RECOMPUTE_FULL);
    im_train_verify_set_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(all_of_them), cmocka_unit_test(pairwise),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
