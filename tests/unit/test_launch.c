/* What a start is refused for: hosts files, layouts that a number of ranks cannot have, models that a plan is not of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/plan.h"
#include "train/hosts.h"

#include <stdio.h>
#include <string.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":24,\"intermediate_size\":50,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":6,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true}";

typedef struct setting {
    im_context *ctx;
    im_arena *arena;
    im_model *model;
} setting;

static setting open_setting(const char *config)
{
    setting s;
    im_json *doc;
    assert_int_equal(im_context_create(&s.ctx), IM_OK);
    assert_int_equal(im_arena_create(s.ctx, &s.arena), IM_OK);
    assert_int_equal(im_json_parse(s.ctx, "test.json", config, strlen(config), &doc), IM_OK);
    assert_int_equal(im_model_parse(s.ctx, doc, &s.model), IM_OK);
    im_json_free(doc);
    return s;
}

static void close_setting(setting *s)
{
    im_model_close(s->model);
    im_arena_destroy(s->arena);
    im_context_destroy(s->ctx);
}

/* ---- hosts ------------------------------------------------------------------------------ */

static void hosts_are_read(void **state)
{
    (void)state;
    static const char text[] = "# two PCs\n  big   slots=2\n\nsmall:12 # the old one\r\nbig\nlast.example-1_x\tslots=4096";
    setting s = open_setting(llama);
    im_train_hosts h;
    assert_int_equal(im_train_hosts_parse(s.ctx, s.arena, "hosts", text, strlen(text), &h), IM_OK);
    assert_int_equal(h.n, 3);
    assert_string_equal(h.host[0].name, "big");
    assert_int_equal(h.host[0].slots, 3);
    assert_string_equal(h.host[1].name, "small");
    assert_int_equal(h.host[1].slots, 12);
    assert_string_equal(h.host[2].name, "last.example-1_x");
    assert_int_equal(h.slots, 3 + 12 + 4096);
    close_setting(&s);
}

static void hosts_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"a slots=0", "a slots=4097", "a slots=", "a slots=1 x", "a:1:2", "a: 2", "-a", "a/b", "ü", "a max_slots=2"};
    setting s = open_setting(llama);
    im_train_hosts h;
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "good\n%s\n", bad[i]);
        assert_int_equal(im_train_hosts_parse(s.ctx, s.arena, "hosts", text, (size_t)n, &h), IM_ERR_FORMAT);
        if (!strstr(im_error_text(s.ctx), "hosts: line 2: "))
            fail_msg("%s: %s", bad[i], im_error_text(s.ctx));
        im_error_clear(s.ctx);
    }
    assert_int_equal(im_train_hosts_parse(s.ctx, s.arena, "hosts", "a\0b", 3, &h), IM_ERR_FORMAT);
    im_error_clear(s.ctx);
    assert_int_equal(im_train_hosts_parse(s.ctx, s.arena, "hosts", "", 0, &h), IM_ERR_FORMAT);
    close_setting(&s);
}

/* ---- layouts ------------------------------------------------------------------------------- */

static im_plan plan_of(const setting *s, int tp, int dp, int pp)
{
    im_plan p;
    im_plan_defaults(&p, s->model);
    p.mesh = (im_mesh){tp, 1, dp, pp};
    p.global_batch = 8;
    return p;
}

/* Each one named is allowed, has that many ranks, and is there once; and no allowed one is nearer than the last. */
static void nearest_are_allowed(void **state)
{
    (void)state;
    setting s = open_setting(llama);
    for (int ranks = 1; ranks <= 64; ranks++) {
        im_plan p = plan_of(&s, 3, 2, 1);
        im_mesh few[3], all[64];
        int n = im_plan_nearest(&p, ranks, few, 3), every = im_plan_nearest(&p, ranks, all, 64);
        assert_int_equal(n, every < 3 ? every : 3);
        assert_memory_equal(few, all, (size_t)n * sizeof *few);
        int possible = 0;
        for (int tp = 1; tp <= ranks; tp++)
            for (int dp = 1; dp <= ranks / tp; dp++) {
                im_plan q = plan_of(&s, tp, dp, ranks / tp / dp);
                possible += ranks % tp == 0 && ranks / tp % dp == 0 && im_plan_validate(s.ctx, &q) == IM_OK;
                im_error_clear(s.ctx);
            }
        assert_int_equal(every, possible);
        for (int i = 0; i < every; i++) {
            im_plan q = plan_of(&s, all[i].tp, all[i].dp, all[i].pp);
            assert_int_equal(all[i].tp * all[i].dp * all[i].pp, ranks);
            assert_int_equal(im_plan_validate(s.ctx, &q), IM_OK);
        }
    }
    close_setting(&s);
}

static void nearest_as_text(void **state)
{
    (void)state;
    static const struct {
        int tp, dp, ranks;
        int64_t batch;
        const char *text;
    } c[] = {
        {4, 1, 2, 8, "layouts of 2 ranks: tp 2, dp 2, pp 2"},
        {3, 2, 6, 8, "layouts of 6 ranks: tp 2 x dp 3, tp 6, dp 6"},
        {1, 7, 7, 6, "no layout of 7 ranks is possible; layouts of 6 ranks: dp 6, tp 2 x dp 3, dp 3 x pp 2"},
        {1, 7, 7, 0, "layouts of 7 ranks: dp 7"}, /* the batch grows with dp */
        {3, 1, 1, 8, "layouts of 1 rank: tp 1"},
    };
    setting s = open_setting(llama);
    for (size_t i = 0; i < IM_COUNT_OF(c); i++) {
        im_plan p = plan_of(&s, c[i].tp, c[i].dp, 1);
        im_str text = {0};
        p.global_batch = c[i].batch;
        im_plan_nearest_text(&p, c[i].ranks, &text);
        assert_string_equal(im_str_text(&text), c[i].text);
        im_str_free(&text);
    }
    close_setting(&s);
}

/* Where there are too many runs of blocks for any pipeline of those ranks: other layouts of as many, not of another number. */
static void nearest_with_fewer_chunks(void **state)
{
    (void)state;
    setting s = open_setting(llama);
    im_plan p = plan_of(&s, 8, 1, 2); /* of two blocks and eight heads */
    im_str text = {0};
    p.schedule = IM_SCHEDULE_INTERLEAVED;
    p.chunks = 2;
    p.global_batch = 1;
    im_plan_nearest_text(&p, 16, &text);
    assert_string_equal(im_str_text(&text), "layouts of 16 ranks: tp 8 x pp 2; with chunks 1");
    im_str_free(&text);
    close_setting(&s);
}

/* ---- models ---------------------------------------------------------------------------------- */

/* Sizes and heads count; what only changes numbers does not. The number itself is in plans that exist. */
static void identity_of_models(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        bool same;
    } c[] = {
        {"\"num_key_value_heads\":2", "\"num_key_value_heads\":4", false}, {"\"num_attention_heads\":8", "\"num_attention_heads\":4", false},
        {"\"intermediate_size\":50", "\"intermediate_size\":51", false},   {"\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false", false},
        {"\"rope_theta\":10000.0", "\"rope_theta\":20000.0", true},        {"\"rms_norm_eps\":1e-5", "\"rms_norm_eps\":1e-6", true}};
    setting s = open_setting(llama);
    assert_int_equal(im_model_identity(s.model), 0x4b8eb706567dd3c1);
    for (size_t i = 0; i < IM_COUNT_OF(c); i++) {
        char text[1024];
        const char *at = strstr(llama, c[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - llama), llama, c[i].to, at + strlen(c[i].from));
        setting other = open_setting(text);
        if ((im_model_identity(other.model) == im_model_identity(s.model)) != c[i].same)
            fail_msg("%s", c[i].to);
        close_setting(&other);
    }
    close_setting(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_read),  cmocka_unit_test(hosts_are_refused),         cmocka_unit_test(nearest_are_allowed),
        cmocka_unit_test(nearest_as_text), cmocka_unit_test(nearest_with_fewer_chunks), cmocka_unit_test(identity_of_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
