/* verify's layouts: names, what is refused, and that the pairwise set shows every pair of values that the whole set shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/verify.h"

#include <string.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":36,\"intermediate_size\":50,\"num_hidden_layers\":5,\"num_attention_heads\":6,"
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

/* What `all` has of a mesh: three recompute policies and two micro-batches of each schedule that the plan accepts. */
static size_t accepted(fixture *f, im_train_verify_layout l)
{
    size_t n = 0;
    for (int s = 0; s < IM_SCHEDULE_COUNT; s++) {
        l.schedule = (im_schedule)s;
        l.chunks = s == IM_SCHEDULE_INTERLEAVED ? 2 : 1;
        im_plan p = im_train_verify_plan(&f->base, &l);
        if (l.pp > 1 || s == IM_SCHEDULE_1F1B)
            n += im_plan_validate(f->ctx, &p) == IM_OK ? 6 : 0;
        im_error_clear(f->ctx);
    }
    return n;
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
                            want += (sp && tp == 1) || (zero && dp == 1) ? 0 : accepted(f, l);
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
    bool tp = false, tied = false, runs = false;
    for (size_t i = 0; i < s.nrefused; i++) {
        tp |= strstr(s.refused[i].reason, "tp 4 is neither") != NULL;
        tied |= strstr(s.refused[i].reason, "tied embeddings") != NULL;
        runs |= strstr(s.refused[i].reason, "pp 3 x chunks 2 = 6 runs of blocks") != NULL;
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(s.refused[i].reason, s.refused[j].reason);
    }
    assert_true(tp);
    assert_true(tied);
    assert_true(runs);
    im_train_verify_set_free(&s);
    static const struct {
        const char *list, *says;
    } bad[] = {{"tp2,tq2", "none of"},
               {"tp4", "tp 4"},
               {"tp2+dp3", "6 ranks"},
               {"sp", "sequence parallelism"},
               {"dp2+zero2+pp2", "tied"},
               {"dp2+zero5", "zero 5"},
               {"tp", "none of"},
               {"", "pairwise"},
               {"tp0", "ranks"},
               {"mb0", "micro-batch 0"},
               {"gpipe", "gpipe is a schedule of pipeline stages"},
               {"tp2+zb-h1", "zb-h1 is a schedule"},
               {"pp2+interleaved3", "at most 2 chunks"},
               {"pp2+interleaved0", "none of"},
               {"pp2+gpipe2", "none of"},
               {"pp2+interleaved17", "chunks 17: 1 to 16"},
               {"pp2+gpipe+zb-h1", "says twice"},
               {"tp2+tp2", "says twice"},
               {"pp2+interleaved99999999999", "none of"}};
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
    s = set_of(f, 4, "pp2,pp2+gpipe,pp4+interleaved1,pp2+interleaved,pp2+zb-h1");
    static const struct {
        im_schedule schedule;
        int chunks;
    } want[] = {{IM_SCHEDULE_1F1B, 1}, {IM_SCHEDULE_GPIPE, 1}, {IM_SCHEDULE_INTERLEAVED, 1}, {IM_SCHEDULE_INTERLEAVED, 2}, {IM_SCHEDULE_ZB_H1, 1}};
    assert_int_equal(s.n, IM_COUNT_OF(want));
    for (size_t i = 0; i < s.n; i++) {
        im_plan p = im_train_verify_plan(&f->base, &s.layout[i]);
        assert_int_equal(p.schedule, want[i].schedule);
        assert_int_equal(p.chunks, want[i].chunks);
    }
    im_train_verify_set_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(all_of_them), cmocka_unit_test(pairwise),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
