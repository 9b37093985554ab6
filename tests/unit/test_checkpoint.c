/* Checkpoints: what is written is what is read, by us and by others; which one is the newest; what is refused. */
#include "fault/engine_rig.h"

#include <math.h>

static void assert_same(const float *a, const float *b, size_t n)
{
    assert_memory_equal(a, b, n * sizeof *a);
}

static void round_trip(const char *model, im_dtype precision, const char *name)
{
    static const im_state_kind kinds[] = {IM_STATE_WEIGHT, IM_STATE_M, IM_STATE_V, IM_STATE_MASTER};
    holder a, b;
    hold(&a, at(model), precision);
    fill_all(&a, 1);
    const char *root = at(name);
    ok(save_step(&a, root, 7, 0));
    char newest[4096];
    ok(im_checkpoint_latest_verified(ctx, root, newest, sizeof newest));
    im_checkpoint_meta was = meta_of(7), is;
    ok(im_checkpoint_meta_read(ctx, newest, true, &is));
    assert_memory_equal(&was, &is, sizeof was);
    hold(&b, newest, precision); /* config.json is the model */
    ok(im_checkpoint_load_weights(ctx, b.engine, newest));
    ok(im_checkpoint_load_optimizer(ctx, b.engine, newest, &is));
    for (size_t k = 0; k < IM_COUNT_OF(kinds); k++) {
        assert_int_equal(im_engine_has_state(a.engine, kinds[k]), im_engine_has_state(b.engine, kinds[k]));
        if (!im_engine_has_state(a.engine, kinds[k]))
            continue;
        size_t n, m;
        float *x = all_of(&a, kinds[k], &n), *y = all_of(&b, kinds[k], &m);
        assert_int_equal(n, m);
        assert_same(x, y, n);
        free(x);
        free(y);
    }
    let_go(&b);
    let_go(&a);
    no_warnings();
}

static void reads_what_it_wrote(void **state)
{
    (void)state;
    round_trip("model.json", IM_F32, "plain");
    round_trip("tied.json", IM_F32, "tied");
    round_trip("model.json", IM_BF16, "half");
    round_trip("tied.json", IM_BF16, "half-tied");
}

/* B13: the master that comes back is the fp32 value, not the bf16 weight widened. */
static void masters_keep_their_bits(void **state)
{
    (void)state;
    holder a, b;
    hold(&a, at("model.json"), IM_BF16);
    float one = 1 - 0x1p-10f, got = 0;
    ok(im_engine_write(a.engine, IM_STATE_WEIGHT, 0, 0, 1, &one));
    ok(save_step(&a, at("masters"), 1, 0));
    im_checkpoint_meta meta;
    const char *from = at("masters/step-1");
    ok(im_checkpoint_meta_read(ctx, from, false, &meta));
    hold(&b, from, IM_BF16);
    ok(im_checkpoint_load_weights(ctx, b.engine, from));
    ok(im_engine_read(b.engine, IM_STATE_MASTER, 0, 0, 1, &got));
    assert_true(got == 1.0f);
    ok(im_checkpoint_load_optimizer(ctx, b.engine, from, &meta));
    ok(im_engine_read(b.engine, IM_STATE_MASTER, 0, 0, 1, &got));
    assert_true(got == one);
    ok(im_engine_read(b.engine, IM_STATE_WEIGHT, 0, 0, 1, &got));
    assert_true(got == 1.0f);
    let_go(&b);
    let_go(&a);
}

/* B21: one tensor, tie_word_embeddings true; bf16 is stored as bf16, fp32 as fp32; metadata that Transformers asks for. */
static void others_can_read_it(void **state)
{
    (void)state;
    static const struct {
        const char *root, *dtype;
        bool tied;
        im_dtype stored;
    } cases[] = {{"plain", "float32", false, IM_F32}, {"tied", "float32", true, IM_F32}, {"half-tied", "bfloat16", true, IM_BF16}};
    for (size_t i = 0; i < IM_COUNT_OF(cases); i++) {
        const char *from = im_arena_printf(arena, "%s/%s/step-7", dir, cases[i].root);
        im_weights *w;
        ok(im_weights_open(ctx, from, &w));
        assert_string_equal(im_weights_metadata(w, "format"), "pt");
        assert_int_equal(im_weights_find(w, "lm_head.weight") == NULL, cases[i].tied);
        const im_st_tensor *t = im_weights_find(w, "model.embed_tokens.weight");
        assert_non_null(t);
        assert_int_equal(t->dtype, cases[i].stored);
        im_weights_close(w);
        im_json *doc;
        ok(im_json_load(ctx, im_arena_printf(arena, "%s/config.json", from), 1 << 20, &doc));
        assert_int_equal(im_json_bool(im_json_get(im_json_root(doc), "tie_word_embeddings"), false), cases[i].tied);
        const im_json_value *dtype = im_json_get(im_json_root(doc), "dtype");
        if (!dtype)
            dtype = im_json_get(im_json_root(doc), "torch_dtype");
        assert_string_equal(im_json_string(dtype, ""), cases[i].dtype);
        im_json_free(doc);
        ok(im_json_load(ctx, im_arena_printf(arena, "%s/generation_config.json", from), 1 << 20, &doc));
        assert_int_equal(im_json_int(im_json_get(im_json_root(doc), "eos_token_id"), -1), 256);
        im_json_free(doc);
    }
}

static void keeps_the_newest(void **state)
{
    (void)state;
    holder h;
    hold(&h, at("model.json"), IM_F32);
    const char *root = at("kept");
    for (int step = 1; step <= 5; step++)
        ok(save_step(&h, root, step, 2));
    im_checkpoint_entry *e;
    assert_int_equal(entries(root, &e), 2);
    assert_int_equal(e[0].step, 4);
    assert_int_equal(e[1].step, 5);
    assert_true(e[0].complete && e[1].complete && e[1].latest && !e[0].latest);
    free(e);
    fill_all(&h, 5);
    ok(save_step(&h, root, 4, 2)); /* an older step again: the pointer names it, and it stays */
    assert_int_equal(entries(root, &e), 2);
    assert_true(e[0].latest && e[0].step == 4);
    free(e);
    char newest[4096];
    ok(im_checkpoint_latest_verified(ctx, root, newest, sizeof newest)); /* what was published last, not the largest number (A13) */
    assert_string_equal(newest, at("kept/step-4"));
    let_go(&h);
    assert_false(im_path_exists(at("kept/step-4.tmp")));
    assert_false(im_path_exists(at("kept/step-4.old")));
}

static void flip_byte(const char *path, long where)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, where, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, where, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 1, f), c ^ 1);
    fclose(f);
}

static void expect_warning(const char *part)
{
    if (!strstr(warned, part))
        fail_msg("no warning with \"%s\" in: %s", part, warned);
    *warned = '\0';
}

/* B36, A13: the pointer names one that is missing, torn or damaged: the newest whole one is used, and it is said. */
static void falls_back(void **state)
{
    (void)state;
    holder h;
    hold(&h, at("model.json"), IM_F32);
    const char *root = at("fall");
    char newest[4096];
    assert_int_equal(im_checkpoint_latest(ctx, root, newest, sizeof newest), IM_ERR_NOT_FOUND);
    im_error_clear(ctx);
    for (int step = 1; step <= 4; step++)
        ok(save_step(&h, root, step, 0));
    let_go(&h);
    flip_byte(at("fall/step-4/optimizer.safetensors"), 9000);
    ok(im_checkpoint_latest(ctx, root, newest, sizeof newest)); /* sizes agree */
    assert_string_equal(newest, at("fall/step-4"));
    ok(im_checkpoint_latest_verified(ctx, root, newest, sizeof newest));
    assert_string_equal(newest, at("fall/step-3"));
    expect_warning("XXH3");
    assert_int_equal(truncate(at("fall/step-4/model.safetensors"), 100), 0);
    ok(im_checkpoint_latest(ctx, root, newest, sizeof newest));
    assert_string_equal(newest, at("fall/step-3"));
    expect_warning("100 bytes");
    ok(im_remove_tree(ctx, at("fall/step-4")));
    assert_int_equal(unlink(at("fall/step-3/imece.json")), 0);
    ok(im_checkpoint_latest(ctx, root, newest, sizeof newest));
    assert_string_equal(newest, at("fall/step-2"));
    expect_warning("step-3");
    ok(im_file_write_atomic(ctx, at("fall/latest"), "../../etc\n", 10));
    ok(im_checkpoint_latest(ctx, root, newest, sizeof newest));
    assert_string_equal(newest, at("fall/step-2"));
    *warned = '\0';
    ok(im_remove_tree(ctx, at("fall/step-1")));
    ok(im_remove_tree(ctx, at("fall/step-2")));
    assert_int_equal(im_checkpoint_latest(ctx, root, newest, sizeof newest), IM_ERR_NOT_FOUND);
    im_error_clear(ctx);
    *warned = '\0';
}

static void refuses_hostile_manifests(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{\"format\": 1}",
        "{\"format\": 2, \"step\": 1}",
        "{\"format\": 1, \"step\": -1, \"position\": 0, \"tokens\": 0, \"updates\": 0, \"threads\": 1}",
        "{\"format\": 1, \"step\": 1, \"position\": 0, \"tokens\": 0, \"updates\": 0, \"threads\": 1, \"seed\": \"-1\", \"data_fingerprint\": \"0\", "
        "\"isa\": \"\", "
        "\"plan_key\": \"\", \"files\": {\"model.safetensors\": {\"size\": 0, \"xxh3\": \"0\"}}}",
        "{\"format\": 1, \"step\": 1, \"position\": 0, \"tokens\": 0, \"updates\": 0, \"threads\": 1, \"seed\": \"1\", \"data_fingerprint\": \"0\", "
        "\"isa\": \"\", "
        "\"plan_key\": \"\", \"files\": {\"model.safetensors\": {\"size\": 0, \"xxh3\": \"0\"}, \"../x\": {\"size\": 0, \"xxh3\": \"0\"}}}",
        "{\"format\": 1, \"step\": 1, \"position\": 0, \"tokens\": 0, \"updates\": 0, \"threads\": 1, \"seed\": \"1\", \"data_fingerprint\": \"0\", "
        "\"isa\": \"\", "
        "\"plan_key\": \"\", \"files\": {}}",
        "{\"format\": 1, \"step\": 1, \"position\": 0, \"tokens\": 0, \"updates\": 0, \"threads\": 1, \"seed\": \"1\", \"data_fingerprint\": \"0\", "
        "\"isa\": \"\", "
        "\"plan_key\": \"\", \"skipped\": [[0, 9223372036854775807], [1, -1]], \"files\": {\"model.safetensors\": {\"size\": 0, \"xxh3\": \"0\"}}}",
    };
    ok(im_mkdirs(ctx, at("hostile")));
    ok(im_file_write_atomic(ctx, at("hostile/model.safetensors"), "", 0));
    for (size_t i = 0; i < IM_COUNT_OF(texts); i++) {
        im_checkpoint_meta meta;
        ok(im_file_write_atomic(ctx, at("hostile/imece.json"), texts[i], strlen(texts[i])));
        if (im_checkpoint_meta_read(ctx, at("hostile"), false, &meta) == IM_OK)
            fail_msg("manifest %zu was accepted: %s", i, texts[i]);
        assert_non_null(strstr(im_error_text(ctx), "imece.json"));
        im_error_clear(ctx);
    }
}

static void resolves_what_users_give(void **state)
{
    (void)state;
    char out[4096];
    ok(im_checkpoint_resolve(ctx, at("plain"), out, sizeof out)); /* a checkpoints directory */
    assert_string_equal(out, at("plain/step-7"));
    ok(im_checkpoint_resolve(ctx, at("plain/step-7"), out, sizeof out));
    assert_string_equal(out, at("plain/step-7"));
    ok(im_checkpoint_resolve(ctx, "gpt2", out, sizeof out));
    assert_string_equal(out, "gpt2");
    ok(im_mkdirs(ctx, at("run/checkpoints")));
    assert_int_equal(im_checkpoint_resolve(ctx, at("run"), out, sizeof out), IM_ERR_NOT_FOUND);
    im_error_clear(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_it_wrote),
        cmocka_unit_test(masters_keep_their_bits),
        cmocka_unit_test(others_can_read_it),
        cmocka_unit_test(keeps_the_newest),
        cmocka_unit_test(falls_back),
        cmocka_unit_test(refuses_hostile_manifests),
        cmocka_unit_test(resolves_what_users_give),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, rig_setup, rig_teardown);
}
