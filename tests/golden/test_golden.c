/* The golden vectors of make_golden.py: our engine against Transformers + PyTorch in fp64 (DESIGN rule 1:
 * fp32, per tensor |a-b|/|b| <= 1e-5), on the fast kernels, the plain ones, and the deferred device.
 */
#include "golden/rig.h"

#define TOLERANCE 1e-5
/* a gradient that is zero by analysis; those beside it are 1e-3 to 1 */
#define ZERO_BOUND 1e-6
enum { MAX_B = 3, MAX_T = 33, PROMPT = 9, KV_MAX = 40 };
#define LR 1e-3

typedef struct variant {
    const char *name;
    im_kernels kernels;
    bool deferred;
} variant;

static const variant variants[] = {
    {"fast", IM_KERNELS_FAST, false},
    {"plain", IM_KERNELS_PLAIN, false},
    {"deferred", IM_KERNELS_FAST, true},
};
#ifdef IM_GOLDEN_MODEL /* one that is not in the tree: tests/cli/add_a_model.sh */
static const char *const models[] = {IM_GOLDEN_MODEL};
enum { LLAMA_AND_GPT2 = 0 };
#else
static const char *const models[] = {"gpt2-tanh", "gpt2-erf",     "llama-untied",    "llama-tied", "llama3-bias", "mistral-window", "mistral-tied",
                                     "qwen2",     "qwen2-window", "qwen3",           "qwen3-bias", "olmo2",       "olmo2-bias",     "phi3",
                                     "phi3-long", "neox",         "neox-sequential", "bloom",      "bloom-untied"};

enum { LLAMA_AND_GPT2 = 5 }; /* the first of them */
#endif

/* initial state of one test */
typedef struct a_case {
    const char *model;
    const variant *variant;
} a_case;

typedef struct golden {
    rig r;
    im_weights *file;
    char dir[512];
    int64_t steps, B, T;
    int32_t *ids, *targets; /* (steps, B, T) */
} golden;

static void *read_all(golden *g, const char *name, im_dtype as, size_t *count)
{
    const im_st_tensor *t = im_weights_find(g->file, name);
    if (!t)
        fail_msg("%s: no tensor %s", g->dir, name);
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    void *out = rig_alloc((size_t)n, im_dtype_size(as));
    RIG_OK(g->r.ctx, im_weights_read(g->r.ctx, g->file, t, 0, n, as, out));
    if (count)
        *count = (size_t)n;
    return out;
}

static void open_golden(golden *g, const char *model)
{
    snprintf(g->dir, sizeof(g->dir), "%s/golden/%s", IM_TEST_DIR, model);
    rig_open_model(&g->r, g->dir);
    char path[600];
    snprintf(path, sizeof(path), "%s/golden.safetensors", g->dir);
    RIG_OK(g->r.ctx, im_weights_open(g->r.ctx, path, &g->file));
    const im_st_tensor *ids = im_weights_find(g->file, "ids");
    assert_true(ids && ids->ndim == 3 && ids->shape[1] <= MAX_B && ids->shape[2] <= MAX_T);
    g->steps = ids->shape[0], g->B = ids->shape[1], g->T = ids->shape[2];
    g->ids = read_all(g, "ids", IM_I32, NULL);
    g->targets = read_all(g, "targets", IM_I32, NULL);
}

static void close_golden(golden *g)
{
    free(g->ids);
    free(g->targets);
    im_weights_close(g->file);
    rig_close(&g->r);
}

static rig_how how_of(const golden *g, const variant *v, int64_t micro_batch)
{
    return (rig_how){.kernels = v->kernels,
                     .deferred = v->deferred,
                     .precision = IM_F32,
                     .micro_batch = micro_batch,
                     .global_batch = g->B,
                     .threads = g->B * g->T < 60 ? 1 : 2,
                     .seq_len = g->T,
                     .weight_decay = 0.1};
}

/* Part of a fused qkv bias that adds the same to every score of a query: the bias of keys where they are not rotated. */
static bool is_idle(const im_model *m, const char *name, size_t i)
{
    const im_arch *a = &m->arch;
    const char *end = strrchr(name, '.');
    if (!end || strcmp(end, ".bias") != 0 || (!strstr(name, ".c_attn.") && !strstr(name, ".query_key_value.")))
        return false;
    size_t E = (size_t)a->E, dim = i % E, part = a->qkv_by_head ? i / E % 3 : i / (E * (size_t)a->H);
    return part == 1 && dim >= (size_t)a->rope_dims;
}

static void compare_tensor(const golden *g, const char *what, const char *name, const float *got, const float *want, size_t n)
{
    double d = rig_relative(got, want, n);
    if (!(d <= TOLERANCE)) {
        print_error("%s: %s %s: relative difference %.2e, allowed %.0e\n", g->dir, what, name, d, TOLERANCE);
        fail();
    }
}

/* Every parameter's state times `scale` against PREFIX.NAME; key biases by an absolute bound. */
static void compare_params(golden *g, im_state_kind kind, const char *prefix, double scale, double key_bound)
{
    rig *r = &g->r;
    for (size_t p = 0; p < r->model->nparam; p++) {
        const char *name = r->model->param[p].name;
        char key[256];
        size_t n;
        snprintf(key, sizeof(key), "%s.%s", prefix, name);
        float *want = read_all(g, key, IM_F32, &n), *got = rig_param_read(r, kind, p);
        assert_int_equal(n, rig_param_count(r, p));
        for (size_t i = 0; i < n; i++)
            got[i] = (float)(got[i] * scale);
        size_t live = 0;
        for (size_t i = 0; i < n; i++) {
            if (!is_idle(r->model, name, i)) {
                got[live] = got[i];
                want[live++] = want[i];
            } else if (!(fabs((double)got[i] - want[i]) <= key_bound)) {
                fail_msg("%s: %s of key bias %s[%zu]: %g, allowed %g", g->dir, prefix, name, i, got[i], key_bound);
            }
        }
        compare_tensor(g, prefix, name, got, want, live);
        free(got);
        free(want);
    }
}

/* ---- loss and gradients -------------------------------------------------------- */

static void loss_and_gradients_with(const a_case *c, int64_t micro_batch)
{
    golden g;
    open_golden(&g, c->model);
    const im_program_want want[] = {{.mode = IM_MODE_TRAIN}, {.mode = IM_MODE_EVAL, .batch = g.B, .seq_len = g.T}};
    rig_open_engine(&g.r, how_of(&g, c->variant, micro_batch), want, 2);
    rig_load_weights(&g.r, g.dir);
    double *loss = read_all(&g, "loss", IM_F64, NULL), *norms = read_all(&g, "norms", IM_F64, NULL);
    rig_batch b = {.ids = g.ids, .targets = g.targets};

    im_metrics eval = rig_run(&g.r, 1, (im_op_now){0}, &b);
    RIG_CLOSE(eval.loss_sum, loss[0], TOLERANCE, "evaluation, sum of losses");
    RIG_CLOSE(eval.loss, loss[1], TOLERANCE, "evaluation, mean loss");
    assert_true(eval.tokens == loss[2]);
    im_metrics train = rig_step(&g.r, 0, 0, 0, 0, &b);
    RIG_CLOSE(train.loss, loss[1], TOLERANCE, "training, mean loss");
    RIG_CLOSE(train.grad_norm, norms[0], TOLERANCE, "gradient norm");
    assert_true(train.tokens == loss[2]);
    assert_true(train.finite);
    compare_params(&g, IM_STATE_GRAD, "grad", 1 / loss[2], ZERO_BOUND);
    im_metrics again = rig_run(&g.r, 1, (im_op_now){0}, &b); /* lr 0: the weights are the same bits */
    assert_true(again.loss_sum == eval.loss_sum);
    free(loss);
    free(norms);
    close_golden(&g);
}

static void loss_and_gradients(void **state)
{
    loss_and_gradients_with(*state, MAX_B);
}

/* micro-batches of 2 and 1 sequences */
static void gradients_accumulated(void **state)
{
    loss_and_gradients_with(*state, 2);
}

static void label_smoothing(void **state)
{
    const a_case *c = *state;
    golden g;
    open_golden(&g, c->model);
    const im_program_want want[] = {{.mode = IM_MODE_TRAIN}};
    rig_how how = how_of(&g, c->variant, 2);
    how.label_smoothing = 0.1;
    rig_open_engine(&g.r, how, want, 1);
    rig_load_weights(&g.r, g.dir);
    double *loss = read_all(&g, "smooth_loss", IM_F64, NULL), *plain = read_all(&g, "loss", IM_F64, NULL);
    rig_batch b = {.ids = g.ids, .targets = g.targets};
    im_metrics m = rig_step(&g.r, 0, 0, 0, 0, &b);
    RIG_CLOSE(m.loss, loss[1], TOLERANCE, "mean loss with label smoothing");
    if (im_weights_find(g.file, "smooth_grad.transformer.wte.weight"))
        compare_params(&g, IM_STATE_GRAD, "smooth_grad", 1 / plain[2], ZERO_BOUND);
    free(loss);
    free(plain);
    close_golden(&g);
}

/* ---- steps -------------------------------------------------------------------- */

static void all_steps(void **state)
{
    const a_case *c = *state;
    golden g;
    open_golden(&g, c->model);
    const im_program_want want[] = {{.mode = IM_MODE_TRAIN}};
    rig_open_engine(&g.r, how_of(&g, c->variant, 2), want, 1);
    rig_load_weights(&g.r, g.dir);
    double *losses = read_all(&g, "losses", IM_F64, NULL), *norms = read_all(&g, "norms", IM_F64, NULL);
    for (int64_t s = 0; s < g.steps; s++) {
        rig_batch b = {.ids = g.ids + s * g.B * g.T, .targets = g.targets + s * g.B * g.T};
        im_metrics m = rig_step(&g.r, 0, s, LR, 1.0, &b);
        char what[64];
        snprintf(what, sizeof(what), "%s: loss of step %d", c->model, (int)s);
        RIG_CLOSE(m.loss, losses[s], TOLERANCE, what);
        snprintf(what, sizeof(what), "%s: gradient norm of step %d", c->model, (int)s);
        RIG_CLOSE(m.grad_norm, norms[s], TOLERANCE, what);
        assert_int_equal(m.updates, s + 1);
    }
    /* Adam makes steps of up to lr from the noise of a gradient that is zero by analysis */
    compare_params(&g, IM_STATE_WEIGHT, "final", 1, 2 * (double)g.steps * LR);
    free(losses);
    free(norms);
    close_golden(&g);
}

/* ---- inference --------------------------------------------------------------------- */

/* log softmax of the golden logits, (B*T, V) */
static float *golden_logprobs(golden *g, size_t *count)
{
    size_t V = (size_t)g->r.model->arch.V, rows = (size_t)(g->B * g->T);
    float *x = read_all(g, "logits", IM_F32, count);
    assert_int_equal(*count, rows * V);
    for (size_t i = 0; i < rows; i++) {
        double sum = 0, top = -INFINITY;
        for (size_t v = 0; v < V; v++)
            top = fmax(top, x[i * V + v]);
        for (size_t v = 0; v < V; v++)
            sum += exp(x[i * V + v] - top);
        for (size_t v = 0; v < V; v++)
            x[i * V + v] = (float)(x[i * V + v] - top - log(sum));
    }
    return x;
}

/* Every logit: the program tells the log-probability of given targets, so each id of the vocabulary is asked for once. */
static void all_logits(void **state)
{
    const a_case *c = *state;
    golden g;
    open_golden(&g, c->model);
    const im_program_want want[] = {{.mode = IM_MODE_INFER, .batch = g.B, .seq_len = g.T, .kv_max = KV_MAX, .all_logits = true}};
    rig_open_engine(&g.r, how_of(&g, c->variant, g.B), want, 1);
    rig_load_weights(&g.r, g.dir);
    size_t n, V = (size_t)g.r.model->arch.V, rows = (size_t)(g.B * g.T);
    float *right = golden_logprobs(&g, &n), *got = rig_alloc(n, sizeof(float)), row[MAX_B * MAX_T], logprob[MAX_B];
    for (size_t v = 0; v < V; v++) {
        int32_t targets[MAX_B * MAX_T], sampled[MAX_B];
        for (size_t i = 0; i < rows; i++)
            targets[i] = (int32_t)v;
        rig_batch b = {.ids = g.ids, .targets = targets};
        im_source src = {.arg = &b, .load = rig_load};
        RIG_OK(g.r.ctx, im_engine_run(g.r.engine, 0, &(im_op_now){.kv_len = g.T}, &src));
        RIG_OK(g.r.ctx, im_engine_sampled(g.r.engine, 0, sampled, logprob, row));
        for (size_t i = 0; i < rows; i++)
            got[i * V + v] = row[i];
    }
    compare_tensor(&g, "log-probabilities", "of all ids", got, right, n);
    free(right);
    free(got);
    close_golden(&g);
}

/* columns [from, from+n) of step 0's ids or targets as (B,n) */
static void columns(const golden *g, const int32_t *in, int from, int n, int32_t *out)
{
    for (int64_t s = 0; s < g->B; s++)
        memcpy(out + s * n, in + s * g->T + from, sizeof(*out) * (size_t)n);
}

/* The same through the cache: 9 positions, then 8 at a time. */
static void logits_in_chunks(void **state)
{
    enum { CHUNK = 8 };
    const a_case *c = *state;
    golden g;
    open_golden(&g, c->model);
    const im_program_want want[] = {{.mode = IM_MODE_INFER, .batch = g.B, .seq_len = PROMPT, .kv_max = KV_MAX, .all_logits = true},
                                    {.mode = IM_MODE_INFER, .batch = g.B, .seq_len = CHUNK, .kv_max = KV_MAX, .all_logits = true}};
    rig_open_engine(&g.r, how_of(&g, c->variant, g.B), want, 2);
    rig_load_weights(&g.r, g.dir);
    size_t n, V = (size_t)g.r.model->arch.V;
    float *right = golden_logprobs(&g, &n), got[MAX_B * MAX_T], should[MAX_B * MAX_T];
    for (int from = 0; from < g.T;) {
        int width = from ? CHUNK : PROMPT;
        int32_t ids[MAX_B * PROMPT], targets[MAX_B * PROMPT], sampled[MAX_B];
        float logprob[MAX_B], row[MAX_B * PROMPT];
        columns(&g, g.ids, from, width, ids);
        columns(&g, g.targets, from, width, targets);
        rig_batch b = {.ids = ids, .targets = targets};
        im_source src = {.arg = &b, .load = rig_load};
        RIG_OK(g.r.ctx, im_engine_run(g.r.engine, from ? 1 : 0, &(im_op_now){.pos = from, .kv_len = from + width}, &src));
        RIG_OK(g.r.ctx, im_engine_sampled(g.r.engine, from ? 1 : 0, sampled, logprob, row));
        for (int64_t s = 0; s < g.B; s++)
            for (int t = 0; t < width; t++) {
                size_t at = (size_t)(s * g.T + from + t);
                got[at] = row[s * width + t];
                should[at] = g.targets[at] < 0 ? 0 : right[at * V + (size_t)g.targets[at]];
            }
        from += width;
    }
    compare_tensor(&g, "log-probabilities", "through the cache", got, should, (size_t)(g.B * g.T));
    free(right);
    close_golden(&g);
}

/* A prompt at once, then one id at a time through the key/value cache: PyTorch's greedy ids. */
static void greedy_through_cache(void **state)
{
    const a_case *c = *state;
    golden g;
    open_golden(&g, c->model);
    const im_program_want want[] = {{.mode = IM_MODE_INFER, .batch = g.B, .seq_len = PROMPT, .kv_max = KV_MAX},
                                    {.mode = IM_MODE_INFER, .batch = g.B, .seq_len = 1, .kv_max = KV_MAX}};
    rig_open_engine(&g.r, how_of(&g, c->variant, g.B), want, 2);
    rig_load_weights(&g.r, g.dir);
    size_t n, B = (size_t)g.B;
    int32_t *greedy = read_all(&g, "greedy", IM_I32, &n), prompt[MAX_B * PROMPT], ids[MAX_B] = {0};
    size_t G = n / B;
    float logprob[MAX_B];
    columns(&g, g.ids, 0, PROMPT, prompt);
    rig_batch b = {.ids = prompt};
    im_source src = {.arg = &b, .load = rig_load};
    RIG_OK(g.r.ctx, im_engine_run(g.r.engine, 0, &(im_op_now){.kv_len = PROMPT}, &src));
    RIG_OK(g.r.ctx, im_engine_sampled(g.r.engine, 0, ids, logprob, NULL));
    for (size_t i = 0; i < G; i++) {
        for (size_t s = 0; s < B; s++) {
            assert_int_equal(ids[s], greedy[s * G + i]);
            assert_true(logprob[s] < 0 && logprob[s] > -log((double)g.r.model->arch.V)); /* the likeliest of V */
        }
        int32_t fed[MAX_B];
        memcpy(fed, ids, sizeof(fed));
        rig_batch one = {.ids = fed};
        src.arg = &one;
        im_op_now now = {.pos = PROMPT + (int64_t)i, .kv_len = PROMPT + (int64_t)i + 1};
        RIG_OK(g.r.ctx, im_engine_run(g.r.engine, 1, &now, &src));
        RIG_OK(g.r.ctx, im_engine_sampled(g.r.engine, 1, ids, logprob, NULL));
    }
    free(greedy);
    close_golden(&g);
}

/* ---- configs ------------------------------------------------------------------------- */

#define SAME(field) assert_true(a->field == b->field)
static void same_arch(const im_arch *a, const im_arch *b)
{
    SAME(D), SAME(H), SAME(K), SAME(E), SAME(F), SAME(V), SAME(L), SAME(P);
    SAME(norm), SAME(norm_eps), SAME(act), SAME(gated), SAME(weights_in_out), SAME(learned_positions), SAME(tied);
    SAME(residual), SAME(qk_norm), SAME(alibi), SAME(qkv_by_head), SAME(rope_part), SAME(rope_attention), SAME(rope_beta_fast);
    SAME(rope_beta_slow), SAME(rope_truncate);
    assert_memory_equal(a->rope_short, b->rope_short, sizeof(a->rope_short));
    assert_memory_equal(a->rope_long, b->rope_long, sizeof(a->rope_long));
    SAME(rope_dims), SAME(rope_interleaved), SAME(rope_theta), SAME(rope_scaling), SAME(rope_factor), SAME(rope_low_freq);
    SAME(rope_high_freq), SAME(rope_original_positions), SAME(attn_scale);
    SAME(dropout_embed), SAME(dropout_attn), SAME(dropout_resid);
}

static void same_model(const im_model *a, const im_model *b)
{
    same_arch(&a->arch, &b->arch);
    assert_string_equal(a->family, b->family);
    assert_int_equal(a->nparam, b->nparam);
    assert_int_equal(a->nunit, b->nunit);
    for (size_t u = 0; u < a->nunit; u++)
        assert_int_equal(a->unit[u].window, b->unit[u].window);
    for (size_t p = 0; p < a->nparam; p++) {
        assert_string_equal(a->param[p].name, b->param[p].name);
        assert_memory_equal(a->param[p].shape, b->param[p].shape, sizeof(int64_t) * a->param[p].ndim);
    }
}

static void both_spellings(void **state)
{
    const a_case *c = *state;
    char dir[512];
    rig five, four;
    snprintf(dir, sizeof(dir), "%s/golden/%s/config.json", IM_TEST_DIR, c->model);
    rig_open_model(&five, dir);
    snprintf(dir, sizeof(dir), "%s/golden/%s/config-v4.json", IM_TEST_DIR, c->model);
    rig_open_model(&four, dir);
    same_model(five.model, four.model);
    rig_close(&five);
    rig_close(&four);
}

/* Nothing falls back to a default on the way out and in again (B45: no value of these configs is its family's default). */
static void config_round_trip(void **state)
{
    const a_case *c = *state;
    char dir[512];
    rig r;
    snprintf(dir, sizeof(dir), "%s/golden/%s", IM_TEST_DIR, c->model);
    rig_open_model(&r, dir);
    for (int i = 0; i < 2; i++) {
        im_str text = {0};
        RIG_OK(r.ctx, im_model_config_text(r.ctx, r.model, i ? IM_BF16 : IM_F32, &text));
        im_json *doc;
        im_model *back;
        RIG_OK(r.ctx, im_json_parse(r.ctx, "written config", im_str_text(&text), text.len, &doc));
        const char *dtype = im_json_string(im_json_get(im_json_root(doc), "torch_dtype"), NULL);
        dtype = im_json_string(im_json_get(im_json_root(doc), "dtype"), dtype);
        assert_string_equal(dtype, i ? "bfloat16" : "float32");
        RIG_OK(r.ctx, im_model_parse(r.ctx, doc, &back));
        same_model(r.model, back);
        im_model_close(back);
        im_json_free(doc);
        im_str_free(&text);
    }
    rig_close(&r);
}

/* ---- bf16 ------------------------------------------------------------------------------ */

static void bf16_near(void **state)
{
    const a_case *c = *state;
    golden g;
    open_golden(&g, c->model);
    const im_program_want want[] = {{.mode = IM_MODE_TRAIN}};
    rig_how how = how_of(&g, c->variant, 2);
    how.precision = IM_BF16;
    rig_open_engine(&g.r, how, want, 1);
    rig_load_weights(&g.r, g.dir);
    double *losses = read_all(&g, "losses", IM_F64, NULL), *norms = read_all(&g, "norms", IM_F64, NULL);
    for (int64_t s = 0; s < g.steps; s++) {
        rig_batch b = {.ids = g.ids + s * g.B * g.T, .targets = g.targets + s * g.B * g.T};
        im_metrics m = rig_step(&g.r, 0, s, LR, 1.0, &b);
        RIG_CLOSE(m.loss, losses[s], 0.01, "bf16 loss");
        RIG_CLOSE(m.grad_norm, norms[s], g.B * g.T < 60 ? 0.1 : 0.05, "bf16 gradient norm"); /* few tokens: roundings average out less */
    }
    free(losses);
    free(norms);
    close_golden(&g);
}

/* ---- table -------------------------------------------------------------------------------- */

typedef struct row {
    const char *name;
    CMUnitTestFunction fn;
    int variants, few; /* the first n of the list; of models of other families than Llama and GPT-2 */
} row;

static const row rows[] = {
    {"both_spellings", both_spellings, 1, 1},
    {"config_round_trip", config_round_trip, 1, 1},
    {"loss_and_gradients", loss_and_gradients, 3, 3},
    {"gradients_accumulated", gradients_accumulated, 3, 1},
    {"label_smoothing", label_smoothing, 2, 1},
    {"all_steps", all_steps, 3, 2},
    {"all_logits", all_logits, 2, 1},
    {"logits_in_chunks", logits_in_chunks, 3, 2},
    {"greedy_through_cache", greedy_through_cache, 3, 1},
    {"bf16_near", bf16_near, 2, 1},
};

#ifdef __SANITIZE_THREAD__
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

int main(void)
{
    enum { MAX = IM_COUNT_OF(rows) * IM_COUNT_OF(models) * IM_COUNT_OF(variants) };
    static struct CMUnitTest tests[MAX];
    static a_case cases[MAX];
    static char names[MAX][96];
    size_t n = 0;
    for (size_t r = 0; r < IM_COUNT_OF(rows); r++)
        for (size_t m = 0; m < IM_COUNT_OF(models); m++)
            for (int v = 0; v < ((int)m < LLAMA_AND_GPT2 && !SLOW ? rows[r].variants : rows[r].few); v++, n++) {
                cases[n] = (a_case){models[m], &variants[v]};
                snprintf(names[n], sizeof(names[n]), "%s %s %s", rows[r].name, models[m], variants[v].name);
                tests[n] = (struct CMUnitTest){.name = names[n], .test_func = rows[r].fn, .initial_state = &cases[n]};
            }
    return _cmocka_run_group_tests("golden", tests, n, NULL, NULL);
}
