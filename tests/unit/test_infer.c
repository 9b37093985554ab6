/* Generation: the cache against doing everything again, the cut of the prompt, sampling, whole characters, stop strings. */
#include "golden/infer_rig.h"

typedef struct variant {
    const char *model;
    im_kernels kernels;
    bool deferred;
    im_dtype precision;
} variant;

static im_infer_config config_of(const variant *v)
{
    return (im_infer_config){.top_p = 1, .precision = v->precision, .threads = v->deferred ? 2 : 1, .kernels = v->kernels, .deferred = v->deferred};
}

/* ---- against recomputation ------------------------------------------------------------------- */

/* Log-probabilities of every id of the vocabulary behind ids[0..n), by a run of the whole prefix without a cache that was used before: a
 * program of n ids which is asked for each id in turn. */
static void recompute(rig *r, size_t program, const int32_t *ids, size_t n, float *out)
{
    size_t V = (size_t)r->model->arch.V;
    int32_t *targets = rig_alloc(n, sizeof(*targets));
    float *row = rig_alloc(n, sizeof(*row));
    rig_batch b = {.ids = ids, .targets = targets};
    im_source src = {.arg = &b, .load = rig_load};
    for (size_t v = 0; v < V; v++) {
        for (size_t i = 0; i < n; i++)
            targets[i] = (int32_t)v;
        RIG_OK(r->ctx, im_engine_run(r->engine, program, &(im_op_now){.kv_len = (int64_t)n}, &src));
        RIG_OK(r->ctx, im_engine_sampled(r->engine, program, NULL, NULL, row));
        out[v] = row[n - 1];
    }
    free(targets);
    free(row);
}

/* A run of n ids from position 0: the likeliest id behind them. */
static void whole_prefix(rig *r, size_t program, int64_t n, const int32_t *ids, int32_t *id, float *logprob)
{
    rig_batch b = {.ids = ids, .targets = ids};
    im_source src = {.arg = &b, .load = rig_load};
    RIG_OK(r->ctx, im_engine_run(r->engine, program, &(im_op_now){.kv_len = n}, &src));
    RIG_OK(r->ctx, im_engine_sampled(r->engine, program, id, logprob, NULL));
}

enum { PROMPT = 7, NEW = 8 };

/* Greedy ids through the cache are the largest log-probability of a run of the whole prefix: at the first and the last of all ids of the
 * vocabulary, between them as the greedy program of the whole prefix says. */
static void greedy_is_argmax(void **state)
{
    const variant *v = *state;
    im_context *ctx;
    im_infer *g = open_model(&ctx, v->model);
    int64_t V = im_infer_model(g)->arch.V;
    int32_t ids[PROMPT + NEW];
    float got[NEW], *right = rig_alloc((size_t)V, sizeof(float));
    some_ids(ids, PROMPT, V, 3);
    im_infer_config cfg = config_of(v);
    RIG_OK(ctx, im_infer_start(g, &cfg));
    RIG_OK(ctx, im_infer_feed(g, ids, PROMPT, NULL));
    for (int i = 0; i < NEW; i++)
        RIG_OK(ctx, im_infer_next(g, &ids[PROMPT + i], &got[i]));
    assert_int_equal(im_infer_length(g), PROMPT + NEW);
    im_infer_close(g);
    im_context_destroy(ctx);

    rig r;
    rig_open_model(&r, v->model);
    im_program_want want[NEW];
    for (int i = 0; i < NEW; i++)
        want[i] = (im_program_want){.mode = IM_MODE_INFER, .batch = 1, .seq_len = PROMPT + i, .kv_max = PROMPT + NEW, .all_logits = true};
    rig_open_engine(&r, (rig_how){.threads = 1, .seq_len = 16, .micro_batch = 1, .global_batch = 1, .precision = v->precision}, want, NEW);
    rig_load_weights(&r, v->model);
    double tolerance = v->precision == IM_F32 ? 1e-5 : 3e-2;
    for (int i = 0; i < NEW; i++) {
        int32_t best = 0, id = ids[PROMPT + i];
        float top, p;
        if (i == 0 || i == NEW - 1) {
            recompute(&r, (size_t)i, ids, (size_t)(PROMPT + i), right);
            for (int32_t k = 0; k < V; k++)
                best = right[k] > right[best] ? k : best;
            top = right[best], p = right[id];
        } else {
            whole_prefix(&r, (size_t)i, PROMPT + i, ids, &best, &top);
            p = best == id ? top : NAN;
        }
        if (id != best && v->precision == IM_F32)
            fail_msg("id %d of the continuation is %d, should be %d", i, id, best);
        if (!isnan(p)) /* in bf16 two ids may be as good as equal */
            assert_true(top - p <= (float)tolerance && fabs((double)got[i] - (double)p) <= tolerance * fmax(1, fabs((double)got[i])));
    }
    free(right);
    rig_close(&r);
}

/* ---- the cut of the prompt ------------------------------------------------------------------------ */

enum { LONG = 27 };

/* Sampled continuation of LONG ids fed in pieces; log-probabilities of the fed ids where asked for. */
static void in_pieces(im_infer *g, im_context *ctx, const int32_t *ids, const size_t *piece, float *logprob, int32_t *next)
{
    im_infer_rewind(g);
    for (size_t at = 0, k = 0; at < LONG; at += piece[k++])
        RIG_OK(ctx, im_infer_feed(g, ids + at, piece[k], logprob ? logprob + at : NULL));
    for (int i = 0; i < NEW; i++)
        RIG_OK(ctx, im_infer_next(g, &next[i], NULL));
}

static void pieces_are_one(void **state)
{
    const variant *v = *state;
    static const size_t cuts[][8] = {{LONG}, {1, 1, 25}, {17, 9, 1}, {3, 5, 7, 12}};
    im_context *ctx;
    im_infer *g = open_model(&ctx, v->model);
    int32_t ids[LONG], right[NEW], got[NEW];
    float one[LONG], many[LONG];
    some_ids(ids, LONG, im_infer_model(g)->arch.V, 5);
    im_infer_config cfg = config_of(v);
    cfg.temperature = 1, cfg.seed = 11, cfg.prompt_logprobs = true, cfg.positions = LONG + NEW, cfg.first_feed = LONG;
    RIG_OK(ctx, im_infer_start(g, &cfg)); /* a program of exactly LONG - 1 ids */
    in_pieces(g, ctx, ids, cuts[0], one, right);
    assert_true(isnan(one[0]));
    cfg.first_feed = 0;
    RIG_OK(ctx, im_infer_start(g, &cfg)); /* programs of 16, 4 and 1 */
    for (size_t c = 0; c < IM_COUNT_OF(cuts); c++) {
        in_pieces(g, ctx, ids, cuts[c], many, got);
        for (int i = 0; i < LONG; i++) {
            bool first = isnan(many[i]);
            size_t at = 0;
            for (size_t k = 0; at < (size_t)i; k++)
                at += cuts[c][k];
            assert_int_equal(first, at == (size_t)i); /* the first of each feed has none */
            if (!first)
                RIG_CLOSE(many[i], one[i], v->precision == IM_F32 ? 1e-4 : 3e-2, "log-probability of a fed id");
        }
        if (v->precision == IM_F32)
            assert_memory_equal(got, right, sizeof(got));
    }
    im_infer_close(g);
    im_context_destroy(ctx);
}

/* What was generated is part of the sequence when more is fed. */
static void feed_behind_next(void **state)
{
    const variant *v = *state;
    im_context *ctx;
    im_infer *g = open_model(&ctx, v->model);
    int32_t ids[PROMPT], made[3], whole[PROMPT + 3 + PROMPT], a, b;
    some_ids(ids, PROMPT, im_infer_model(g)->arch.V, 7);
    im_infer_config cfg = config_of(v);
    RIG_OK(ctx, im_infer_start(g, &cfg));
    RIG_OK(ctx, im_infer_feed(g, ids, PROMPT, NULL));
    for (int i = 0; i < 3; i++)
        RIG_OK(ctx, im_infer_next(g, &made[i], NULL));
    RIG_OK(ctx, im_infer_feed(g, ids, PROMPT, NULL));
    RIG_OK(ctx, im_infer_next(g, &a, NULL));
    memcpy(whole, ids, sizeof(ids));
    memcpy(whole + PROMPT, made, sizeof(made));
    memcpy(whole + PROMPT + 3, ids, sizeof(ids));
    im_infer_rewind(g);
    RIG_OK(ctx, im_infer_feed(g, whole, IM_COUNT_OF(whole), NULL));
    RIG_OK(ctx, im_infer_next(g, &b, NULL));
    assert_int_equal(a, b);
    im_infer_close(g);
    im_context_destroy(ctx);
}

static void refused(void **state)
{
    (void)state;
    im_context *ctx;
    im_infer *g = open_model(&ctx, DIR("llama-tied"));
    int32_t ids[65] = {1}, id;
    im_infer_config cfg = {.positions = 65, .top_p = 1};
    assert_int_equal(im_infer_next(g, &id, NULL), IM_ERR_ARG);
    im_error_clear(ctx);
    assert_int_equal(im_infer_start(g, &cfg), IM_ERR_ARG); /* the model has 64 */
    assert_non_null(strstr(im_error_text(ctx), "64"));
    im_error_clear(ctx);
    cfg.positions = 0;
    RIG_OK(ctx, im_infer_start(g, &cfg));
    assert_int_equal(im_infer_room(g), 64);
    assert_int_equal(im_infer_next(g, &id, NULL), IM_ERR_ARG);
    im_error_clear(ctx);
    assert_int_equal(im_infer_feed(g, ids, 65, NULL), IM_ERR_ARG);
    im_error_clear(ctx);
    ids[1] = 101;
    assert_int_equal(im_infer_feed(g, ids, 2, NULL), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(ctx), "id 101"));
    im_error_clear(ctx);
    ids[1] = 0;
    float p[2];
    assert_int_equal(im_infer_feed(g, ids, 2, p), IM_ERR_ARG); /* started without them */
    im_error_clear(ctx);
    RIG_OK(ctx, im_infer_feed(g, ids, 64, NULL));
    assert_int_equal(im_infer_next(g, &id, NULL), IM_ERR_ARG); /* full */
    im_infer_close(g);
    im_context_destroy(ctx);
}

/* ---- sampling ----------------------------------------------------------------------------------------- */

static void draw(im_infer *g, im_context *ctx, const im_infer_config *cfg, int32_t *out, float *logprob, int n)
{
    int32_t ids[PROMPT];
    some_ids(ids, PROMPT, im_infer_model(g)->arch.V, 3);
    RIG_OK(ctx, im_infer_start(g, cfg));
    RIG_OK(ctx, im_infer_feed(g, ids, PROMPT, NULL));
    for (int i = 0; i < n; i++)
        RIG_OK(ctx, im_infer_next(g, &out[i], &logprob[i]));
}

static void sampling(void **state)
{
    const variant *v = *state;
    enum { N = 33 };
    im_context *ctx;
    im_infer *g = open_model(&ctx, v->model);
    im_infer_config cfg = config_of(v);
    int32_t greedy[N], a[N], b[N];
    float p[N], q[N];
    draw(g, ctx, &cfg, greedy, p, N);
    cfg.temperature = 1.5, cfg.seed = 9;
    draw(g, ctx, &cfg, a, p, N);
    draw(g, ctx, &cfg, b, q, N);
    assert_memory_equal(a, b, sizeof(a)); /* the seed decides */
    assert_memory_equal(p, q, sizeof(p));
    assert_memory_not_equal(a, greedy, sizeof(a));
    cfg.seed = 10;
    draw(g, ctx, &cfg, b, q, N);
    assert_memory_not_equal(a, b, sizeof(a));
    cfg.top_k = 1; /* only the likeliest is left, at any temperature */
    draw(g, ctx, &cfg, b, q, N);
    assert_memory_equal(b, greedy, sizeof(b));
    cfg.top_k = 0, cfg.top_p = 1e-6;
    draw(g, ctx, &cfg, b, q, N);
    assert_memory_equal(b, greedy, sizeof(b));
    im_infer_close(g);
    im_context_destroy(ctx);
}

/* Many seeds at one place: only the K likeliest come, each about as often as its share says. */
static void top_k_and_p(void **state)
{
    enum { SEEDS = 40, K = 3 };
    const variant *v = *state;
    im_context *ctx;
    im_infer *g = open_model(&ctx, v->model);
    int64_t V = im_infer_model(g)->arch.V;
    int32_t ids[PROMPT], id;
    float *right = rig_alloc((size_t)V, sizeof(float)), p;
    some_ids(ids, PROMPT, V, 3);
    rig r;
    rig_open_model(&r, v->model);
    const im_program_want want = {.mode = IM_MODE_INFER, .batch = 1, .seq_len = PROMPT, .kv_max = PROMPT, .all_logits = true};
    rig_open_engine(&r, (rig_how){.threads = 1, .seq_len = 16, .micro_batch = 1, .global_batch = 1}, &want, 1);
    rig_load_weights(&r, v->model);
    recompute(&r, 0, ids, PROMPT, right);
    rig_close(&r);

    im_infer_config cfg = config_of(v);
    cfg.temperature = 2;
    for (int by_p = 0; by_p < 2; by_p++) {
        int distinct = 0, seen[512] = {0};
        double before = 0, total = 0;
        for (int64_t k = 0; k < V; k++)
            total += exp(right[k] / cfg.temperature);
        cfg.top_k = by_p ? 0 : K, cfg.top_p = by_p ? 0.3 : 1;
        for (int s = 0; s < SEEDS; s++) {
            cfg.seed = (uint64_t)s;
            RIG_OK(ctx, im_infer_start(g, &cfg));
            RIG_OK(ctx, im_infer_feed(g, ids, PROMPT, NULL));
            RIG_OK(ctx, im_infer_next(g, &id, &p));
            RIG_CLOSE(p, right[id], 1e-4, "log-probability of a drawn id");
            int above = 0;
            before = 0;
            for (int64_t k = 0; k < V; k++)
                if (right[k] > right[id]) {
                    above++;
                    before += exp(right[k] / cfg.temperature) / total;
                }
            if (by_p)
                assert_true(before < cfg.top_p + 1e-6); /* the likelier ones did not reach top-p yet */
            else
                assert_true(above < K);
            distinct += !seen[id];
            seen[id] = 1;
        }
        assert_true(by_p ? distinct > 2 : distinct == K);
    }
    free(right);
    im_infer_close(g);
    im_context_destroy(ctx);
}

/* ---- text ------------------------------------------------------------------------------------------------ */

/* Pushed in pieces of every size, the result is `want`, and at no time is a character torn. */
static void utf8_case(const char *in, size_t n, const char *want)
{
    for (size_t size = 1; size <= n + 1; size++) {
        im_infer_utf8 u = {0};
        im_str out = {0};
        for (size_t at = 0; at < n; at += size) {
            im_infer_utf8_push(&u, in + at, n - at < size ? n - at : size, &out);
            for (size_t i = out.len; i > 0; i--) { /* the last character is whole */
                unsigned char c = (unsigned char)out.data[i - 1];
                if (c < 0x80 || c >= 0xC0) {
                    size_t need = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
                    assert_int_equal(out.len - (i - 1), need);
                    break;
                }
            }
        }
        im_infer_utf8_end(&u, &out);
        assert_string_equal(im_str_text(&out), want);
        im_str_free(&out);
    }
}
#define UTF8(in, want) utf8_case(in, sizeof(in) - 1, want)
#define BAD "\xEF\xBF\xBD"

static void utf8(void **state)
{
    (void)state;
    UTF8("", "");
    UTF8("abc", "abc");
    UTF8("köy işi: çağ, ğüş, Ω, 語, 🌾!", "köy işi: çağ, ğüş, Ω, 語, 🌾!");
    UTF8("a\xC3", "a" BAD);         /* cut at the end */
    UTF8("a\xF0\x9F\x8C", "a" BAD); /* one for the whole beginning */
    UTF8("\xF0\x9F\x8C"
         "b",
         BAD "b"); /* and in the middle */
    UTF8("\xE4\xB8\xE4\xB8\xAD", BAD "\xE4\xB8\xAD");
    UTF8("\x80\xBF", BAD BAD);                    /* continuations alone */
    UTF8("\xC0\xAF", BAD BAD);                    /* overlong */
    UTF8("\xE0\x80\xAF", BAD BAD BAD);            /* overlong: E0 goes no further than 80 */
    UTF8("\xED\xA0\x80", BAD BAD BAD);            /* a surrogate */
    UTF8("\xED\x9F\xBF", "\xED\x9F\xBF");         /* the last before them */
    UTF8("\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"); /* U+10FFFF */
    UTF8("\xF4\x90\x80\x80", BAD BAD BAD BAD);
    UTF8("\xFF\xFE"
         "c\xC3\xA9",
         BAD BAD "c\xC3\xA9");
}

static void stops_case(const char *in, const char *const *stop, size_t n, int want_index, const char *want)
{
    im_infer_stops s = {.text = stop, .n = n};
    im_str out = {0};
    int got = -1;
    for (size_t i = 0; in[i] && got < 0; i++) {
        got = im_infer_stops_push(&s, in[i], &out);
        for (size_t k = 0; k < n; k++) /* no stop string is ever shown */
            assert_null(strstr(im_str_text(&out), stop[k]));
    }
    if (got < 0)
        im_infer_stops_end(&s, &out);
    assert_int_equal(got, want_index);
    assert_string_equal(im_str_text(&out), want);
    im_infer_stops_free(&s);
    im_str_free(&out);
}

static void stop_strings(void **state)
{
    (void)state;
    static const char *const end[] = {"end"}, *const two[] = {"abcabd", "ca"}, *const longer[] = {"aab", "b"}, *const nested[] = {"xyz", "wxyzq"};
    stops_case("nothing here", end, 1, -1, "nothing here");
    stops_case("the end of it", end, 1, 0, "the ");
    stops_case("e en eend", end, 1, 0, "e en e");
    stops_case("at the en", end, 1, -1, "at the en"); /* held back, and shown when nothing more comes */
    stops_case("xabcabd", two, 2, 1, "xab");          /* the first to end wins */
    stops_case("aaab", longer, 2, 0, "a");
    stops_case("xaxb", longer, 2, 1, "xax");
    stops_case("--wxyz", nested, 2, 0, "--w"); /* what was held for the longer one is text */
    stops_case("end", end, 1, 0, "");
}

/* What is held back must not delay what is certain. */
static void stops_hold_little(void **state)
{
    (void)state;
    static const char *const stop[] = {"\n\n"};
    im_infer_stops s = {.text = stop, .n = 1};
    im_str out = {0};
    assert_int_equal(im_infer_stops_push(&s, 'a', &out), -1);
    assert_string_equal(im_str_text(&out), "a");
    assert_int_equal(im_infer_stops_push(&s, '\n', &out), -1);
    assert_string_equal(im_str_text(&out), "a");
    assert_int_equal(im_infer_stops_push(&s, 'b', &out), -1);
    assert_string_equal(im_str_text(&out), "a\nb");
    im_infer_stops_free(&s);
    im_str_free(&out);
}

#define VARIANT(name, ...) static const variant name = {__VA_ARGS__}
VARIANT(gpt2, DIR("gpt2-tanh"), IM_KERNELS_FAST, false, IM_F32);
VARIANT(gpt2_plain, DIR("gpt2-tanh"), IM_KERNELS_PLAIN, false, IM_F32);
VARIANT(llama, DIR("llama-tied"), IM_KERNELS_FAST, false, IM_F32);
VARIANT(llama_deferred, DIR("llama-untied"), IM_KERNELS_FAST, true, IM_F32);
VARIANT(llama_plain_deferred, DIR("llama3-bias"), IM_KERNELS_PLAIN, true, IM_F32);
VARIANT(llama_bf16, DIR("llama3-bias"), IM_KERNELS_FAST, false, IM_BF16);
#define CASE(f, v)                                       \
    {                                                    \
#f ": " #v, f, NULL, NULL, (void *)(uintptr_t)&v \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(greedy_is_argmax, gpt2),
        CASE(greedy_is_argmax, gpt2_plain),
        CASE(greedy_is_argmax, llama),
        CASE(greedy_is_argmax, llama_deferred),
        CASE(greedy_is_argmax, llama_plain_deferred),
        CASE(greedy_is_argmax, llama_bf16),
        CASE(pieces_are_one, gpt2),
        CASE(pieces_are_one, gpt2_plain),
        CASE(pieces_are_one, llama),
        CASE(pieces_are_one, llama_deferred),
        CASE(pieces_are_one, llama_plain_deferred),
        CASE(pieces_are_one, llama_bf16),
        CASE(feed_behind_next, gpt2),
        CASE(feed_behind_next, llama_deferred),
        cmocka_unit_test(refused),
        CASE(sampling, gpt2),
        CASE(sampling, llama_plain_deferred),
        CASE(top_k_and_p, gpt2),
        CASE(top_k_and_p, llama),
        cmocka_unit_test(utf8),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(stops_hold_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
