/* The rules of DESIGN section 3 that one rank can break, on tiny models, without a peer: one denominator for all
 * counted tokens, documents that do not see one another, rotary pairs, tied tables, bf16 with fp32 masters,
 * the same bits twice.
 */
#include "checkpoint/checkpoint.h"
#include "golden/rig.h"

#include <unistd.h>

#define TOLERANCE 1e-5
enum { T = 20, V = 101 };

static const char *model_dir(const char *name)
{
    static char dir[2][512];
    static int turn;
    turn = !turn;
    snprintf(dir[turn], sizeof(dir[turn]), "%s/golden/%s", IM_TEST_DIR, name);
    return dir[turn];
}

/* Ids and next ids of one text a sample. */
static void make_text(int32_t *ids, int32_t *targets, int samples, uint64_t seed)
{
    for (int s = 0; s < samples; s++)
        for (int t = 0; t <= T; t++) {
            uint32_t x[4];
            im_philox(seed, (uint64_t)(s * 1000 + t), 0, x);
            int32_t id = (int32_t)(x[0] % V);
            if (t < T)
                ids[s * T + t] = id;
            if (t)
                targets[s * T + t - 1] = id;
        }
}

static rig_how how_of(int64_t micro_batch, int64_t global_batch)
{
    return (rig_how){
        .kernels = IM_KERNELS_FAST, .precision = IM_F32, .micro_batch = micro_batch, .global_batch = global_batch, .seq_len = T, .weight_decay = 0.1};
}

static void open_rig_at(rig *r, const char *dir, rig_how how)
{
    const im_program_want want[] = {{.mode = IM_MODE_TRAIN}, {.mode = IM_MODE_EVAL, .batch = how.micro_batch, .seq_len = T}};
    rig_open_model(r, dir);
    rig_open_engine(r, how, want, 2);
    rig_load_weights(r, dir);
}

static void open_rig(rig *r, const char *model, rig_how how)
{
    open_rig_at(r, model_dir(model), how);
}

/* All gradients of a rig one behind the other. */
static float *all_state(rig *r, im_state_kind kind, size_t *count)
{
    size_t n = 0, at = 0;
    for (size_t p = 0; p < r->model->nparam; p++)
        n += rig_param_count(r, p);
    float *out = rig_alloc(n, sizeof(float));
    for (size_t p = 0; p < r->model->nparam; at += rig_param_count(r, p), p++)
        rig_param_io(r, kind, p, out + at, NULL);
    *count = n;
    return out;
}

/* ---- one denominator (B01) -------------------------------------------------------- */

/* micro-batches with 1, 9 and 0 counted tokens against all of it at once */
static void one_denominator(void **state)
{
    enum { S = 3 };
    const char *model = *state;
    int32_t ids[S * T], targets[S * T];
    make_text(ids, targets, S, 1);
    for (int t = 0; t < T; t++) {
        targets[t] = t == 11 ? targets[t] : -100;
        targets[T + t] = t >= 5 && t < 14 ? targets[T + t] : -100;
        targets[2 * T + t] = -1;
    }
    rig_batch b = {.ids = ids, .targets = targets};
    im_metrics m[2];
    float *grad[2];
    size_t n;
    for (int i = 0; i < 2; i++) {
        rig r;
        open_rig(&r, model, how_of(i ? S : 1, S));
        m[i] = rig_step(&r, 0, 0, 0, 1.0, &b);
        grad[i] = all_state(&r, IM_STATE_GRAD, &n);
        rig_close(&r);
    }
    assert_true(m[0].tokens == 10 && m[1].tokens == 10);
    assert_true(m[0].finite && isfinite(m[0].grad_norm) && m[0].grad_norm > 0);
    RIG_CLOSE(m[0].loss, m[1].loss, TOLERANCE, "loss");
    RIG_CLOSE(m[0].grad_norm, m[1].grad_norm, TOLERANCE, "gradient norm");
    assert_true(rig_relative(grad[0], grad[1], n) <= TOLERANCE);
    free(grad[0]);
    free(grad[1]);
}

/* A batch without one counted token: no NaN, and nothing learned from it. */
static void nothing_counted(void **state)
{
    int32_t ids[2 * T], targets[2 * T];
    make_text(ids, targets, 2, 2);
    for (int i = 0; i < 2 * T; i++)
        targets[i] = -100;
    rig r;
    open_rig(&r, *state, how_of(1, 2));
    im_metrics m = rig_step(&r, 0, 0, 1e-3, 1.0, &(rig_batch){.ids = ids, .targets = targets});
    assert_true(m.tokens == 0 && m.loss_sum == 0 && m.grad_norm == 0);
    size_t n;
    float *w = all_state(&r, IM_STATE_WEIGHT, &n);
    assert_true(isfinite(rig_max_abs(w, n)));
    free(w);
    rig_close(&r);
}

/* ---- documents (B49) ------------------------------------------------------------------ */

/* Two documents of 13 and 7 tokens in one sample (its end is the second's end) against each in a sample of its own. */
static void packed_documents(void **state)
{
    enum { CUT = 13 };
    const char *model = *state;
    int32_t ids[2 * T], targets[2 * T], pos[2 * T], seg[2 * T];
    int32_t packed_ids[T], packed_targets[T], packed_pos[T], packed_seg[T];
    make_text(ids, targets, 2, 3);
    for (int t = 0; t < T; t++) {
        int s = t >= CUT, at = t - s * CUT;
        packed_ids[t] = ids[s * T + at];
        packed_targets[t] = targets[s * T + at];
        packed_pos[t] = at;
        packed_seg[t] = s + 1;
    }
    for (int i = 0; i < 2 * T; i++) {
        pos[i] = i % T;
        seg[i] = 1;
        if (i % T >= (i < T ? CUT : T - CUT))
            targets[i] = -1; /* behind the document's end */
    }
    rig_how how = how_of(1, 1);
    how.documents = true;
    rig packed, apart;
    open_rig(&packed, model, how);
    how.global_batch = 2;
    open_rig(&apart, model, how);
    im_metrics a = rig_step(&packed, 0, 0, 0, 0, &(rig_batch){packed_ids, packed_targets, packed_pos, packed_seg});
    im_metrics b = rig_step(&apart, 0, 0, 0, 0, &(rig_batch){ids, targets, pos, seg});
    assert_true(a.tokens == T && b.tokens == T);
    RIG_CLOSE(a.loss, b.loss, TOLERANCE, "loss of packed documents");
    size_t n;
    float *ga = all_state(&packed, IM_STATE_GRAD, &n), *gb = all_state(&apart, IM_STATE_GRAD, &n);
    assert_true(rig_relative(ga, gb, n) <= TOLERANCE);

    /* another first document: the second one's loss keeps its bits; without segments it would not */
    int32_t second[T], other[T];
    for (int t = 0; t < T; t++) {
        second[t] = t < CUT ? -1 : packed_targets[t];
        other[t] = t < CUT ? (packed_ids[t] + 5) % V : packed_ids[t];
    }
    im_metrics e0 = rig_run(&packed, 1, (im_op_now){0}, &(rig_batch){packed_ids, second, packed_pos, packed_seg});
    im_metrics e1 = rig_run(&packed, 1, (im_op_now){0}, &(rig_batch){other, second, packed_pos, packed_seg});
    assert_true(e0.loss_sum == e1.loss_sum);
    for (int t = 0; t < T; t++)
        packed_seg[t] = 1;
    im_metrics e2 = rig_run(&packed, 1, (im_op_now){0}, &(rig_batch){other, second, packed_pos, packed_seg});
    assert_true(fabs(e2.loss_sum - e1.loss_sum) > 1e-3);
    free(ga);
    free(gb);
    rig_close(&packed);
    rig_close(&apart);
}

/* ---- rotary pairs (A7, B44) ------------------------------------------------------------- */

/* Rows of one head from halves (j, j + R/2) to pairs (2j, 2j + 1). */
static void permute_heads(float *w, size_t heads, size_t E, size_t cols)
{
    float *copy = rig_alloc(heads * E * cols, sizeof(float));
    memcpy(copy, w, heads * E * cols * sizeof(float));
    for (size_t h = 0; h < heads; h++)
        for (size_t j = 0; j < E; j++) {
            size_t to = j < E / 2 ? 2 * j : 2 * (j - E / 2) + 1;
            memcpy(w + (h * E + to) * cols, copy + (h * E + j) * cols, cols * sizeof(float));
        }
    free(copy);
}

static double loss_of(rig *r, const rig_batch *b)
{
    return rig_run(r, 0, (im_op_now){0}, b).loss;
}

static void rope_permutation(void **state)
{
    const char *dir = model_dir(*state);
    int32_t ids[2 * T], targets[2 * T];
    make_text(ids, targets, 2, 4);
    rig_batch b = {.ids = ids, .targets = targets};
    const im_program_want want = {.mode = IM_MODE_EVAL, .batch = 2, .seq_len = T};
    rig halves, pairs;
    rig_open_model(&halves, dir);
    rig_open_engine(&halves, how_of(2, 2), &want, 1);
    rig_load_weights(&halves, dir);
    double right = loss_of(&halves, &b);
    rig_close(&halves);

    rig_open_model(&pairs, dir);
    assert_false(pairs.model->arch.rope_interleaved); /* Hugging Face's Llama keeps halves */
    pairs.model->arch.rope_interleaved = true;
    rig_open_engine(&pairs, how_of(2, 2), &want, 1);
    rig_load_weights(&pairs, dir);
    double wrong = loss_of(&pairs, &b);
    assert_true(fabs(wrong - right) > 1e-3 * right);
    const im_arch *a = &pairs.model->arch;
    for (size_t u = 0; u < pairs.model->nunit; u++) {
        static const struct {
            im_slot slot;
            bool kv;
        } permuted[] = {{IM_SLOT_Q_W, false}, {IM_SLOT_K_W, true}, {IM_SLOT_Q_B, false}, {IM_SLOT_K_B, true}};
        for (size_t i = 0; i < IM_COUNT_OF(permuted); i++) {
            int32_t p = pairs.model->unit[u].param[permuted[i].slot];
            if (p < 0)
                continue;
            size_t heads = (size_t)(permuted[i].kv ? a->K : a->H), cols = rig_param_count(&pairs, (size_t)p) / (heads * (size_t)a->E);
            float *w = rig_param_read(&pairs, IM_STATE_WEIGHT, (size_t)p);
            permute_heads(w, heads, (size_t)a->E, cols);
            rig_param_io(&pairs, IM_STATE_WEIGHT, (size_t)p, NULL, w);
            free(w);
        }
    }
    RIG_CLOSE(loss_of(&pairs, &b), right, 1e-6, "loss with interleaved pairs");
    rig_close(&pairs);
}

/* ---- export and import (A10, B21, B44) ------------------------------------------------------ */

/* A safetensors file of a tied model's weights with an lm_head of its own: a copy of the table, or something else. */
static void write_with_head(rig *r, const char *path, float change)
{
    size_t n = r->model->nparam;
    im_st_plan *plan = rig_alloc(n + 1, sizeof(*plan));
    int32_t table = -1;
    for (size_t p = 0; p < n; p++) {
        const im_param *q = &r->model->param[p];
        plan[p] = (im_st_plan){.name = q->name, .dtype = IM_F32, .ndim = q->ndim};
        for (int d = 0; d < q->ndim; d++)
            plan[p].shape[d] = q->shape[d];
        if ((int32_t)p == r->model->unit[0].param[IM_SLOT_TOKENS])
            table = (int32_t)p;
    }
    assert_true(table >= 0);
    plan[n] = plan[table];
    plan[n].name = "lm_head.weight";
    im_str header = {0};
    uint64_t size;
    RIG_OK(r->ctx, im_st_layout(r->ctx, plan, n + 1, NULL, &header, &size));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header.data, 1, header.len, f), header.len);
    for (size_t p = 0; p <= n; p++) {
        float *w = rig_param_read(r, IM_STATE_WEIGHT, p < n ? p : (size_t)table);
        if (p == n)
            w[7] += change;
        assert_int_equal(fseek(f, (long)plan[p].offset, SEEK_SET), 0);
        assert_int_equal(fwrite(w, 1, plan[p].nbytes, f), plan[p].nbytes);
        free(w);
    }
    assert_int_equal(fclose(f), 0);
    im_str_free(&header);
    free(plan);
}

/* A file of a tied model with both tables: equal ones are one; different ones are refused. */
static void tied_import(void **state)
{
    rig r;
    open_rig(&r, *state, how_of(1, 1));
    assert_true(r.model->arch.tied);
    char path[] = "/tmp/imece-tied-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const im_st_tensor **t = rig_alloc(r.model->nparam, sizeof(*t));
    for (int different = 0; different < 2; different++) {
        im_weights *w;
        write_with_head(&r, path, different ? 0.5f : 0);
        RIG_OK(r.ctx, im_weights_open(r.ctx, path, &w));
        im_status s = im_weights_match(r.ctx, w, r.model, t);
        if (different) {
            assert_int_not_equal(s, IM_OK);
            assert_non_null(strstr(im_error_text(r.ctx), "lm_head"));
            im_error_clear(r.ctx);
        } else {
            RIG_OK(r.ctx, s);
        }
        im_weights_close(w);
    }
    free(t);
    unlink(path);
    rig_close(&r);
}

/* Hugging Face -> engine -> Hugging Face: the same tensors under the same names, the same bits, one table when tied. */
static void export_round_trip(void **state)
{
    const char *name = *state;
    char root[] = "/tmp/imece-export-XXXXXX", dir[4096];
    assert_non_null(mkdtemp(root));
    rig r;
    open_rig(&r, name, how_of(1, 1));
    im_checkpoint_save *save;
    RIG_OK(r.ctx, im_checkpoint_start(r.ctx, r.engine, root, &(im_checkpoint_meta){.step = 3, .seed = 1, .threads = 2}, NULL, 0, &save));
    RIG_OK(r.ctx, im_checkpoint_finish(save));
    RIG_OK(r.ctx, im_checkpoint_latest(r.ctx, root, dir, sizeof(dir)));
    im_weights *before, *after;
    RIG_OK(r.ctx, im_weights_open(r.ctx, model_dir(name), &before));
    RIG_OK(r.ctx, im_weights_open(r.ctx, dir, &after));
    assert_int_equal(im_weights_count(after), im_weights_count(before));
    for (size_t i = 0; i < im_weights_count(before); i++) {
        const im_st_tensor *x = im_weights_at(before, i), *y = im_weights_find(after, x->name);
        assert_non_null(y);
        assert_int_equal(y->dtype, IM_F32);
        assert_int_equal(x->ndim, y->ndim);
        assert_memory_equal(x->shape, y->shape, sizeof(int64_t) * x->ndim);
        int64_t n = (int64_t)(x->nbytes / sizeof(float));
        float *a = rig_alloc((size_t)n, sizeof(float)), *b = rig_alloc((size_t)n, sizeof(float));
        RIG_OK(r.ctx, im_weights_read(r.ctx, before, x, 0, n, IM_F32, a));
        RIG_OK(r.ctx, im_weights_read(r.ctx, after, y, 0, n, IM_F32, b));
        assert_memory_equal(a, b, (size_t)n * sizeof(float));
        free(a);
        free(b);
    }
    if (r.model->arch.tied)
        assert_null(im_weights_find(after, "lm_head.weight"));
    /* opened as a user would: the same model, by its loss; nothing of the config fell back to a default (B45) */
    int32_t ids[T], targets[T];
    make_text(ids, targets, 1, 8);
    for (int t = 0; t < T; t++)
        ids[t] %= (int32_t)r.model->arch.V, targets[t] %= (int32_t)r.model->arch.V;
    rig_batch b = {.ids = ids, .targets = targets};
    rig back;
    open_rig_at(&back, dir, how_of(1, 1));
    assert_int_equal(back.model->arch.tied, r.model->arch.tied);
    assert_true(rig_run(&back, 1, (im_op_now){0}, &b).loss_sum == rig_run(&r, 1, (im_op_now){0}, &b).loss_sum);
    rig_close(&back);
    im_weights_close(before);
    im_weights_close(after);
    RIG_OK(r.ctx, im_remove_tree(r.ctx, root));
    rig_close(&r);
}

/* ---- bf16 (A15, B13) --------------------------------------------------------------------------- */

/* as the hardware rounds: to nearest, ties to even */
static float to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

typedef struct stored_seen {
    size_t weights, others;
    bool bad;
} stored_seen;

static void see_state(void *arg, im_state_kind k, size_t bucket, im_dtype stored, const void *data, size_t first, size_t count)
{
    stored_seen *s = arg;
    (void)bucket, (void)data, (void)first;
    if (k == IM_STATE_WEIGHT) {
        s->weights += count * im_dtype_size(stored);
        s->bad |= stored != IM_BF16;
    } else {
        s->others += count * im_dtype_size(stored);
        s->bad |= stored != IM_F32;
    }
}

static void see_end(void *arg)
{
    (void)arg;
}

/* Updates of about 2^-10 to weights of 1.0 (bf16 cannot hold 1 - 2^-10) are kept in the master; the stored weight is
 * the rounded master, 2 bytes a weight. */
static void bf16_master(void **state)
{
    enum { NSTEPS = 8 };
    int32_t ids[2 * T], targets[2 * T];
    make_text(ids, targets, 2, 5);
    rig_how how = how_of(1, 2);
    how.precision = IM_BF16;
    how.weight_decay = 0;
    rig r;
    open_rig(&r, *state, how);
    size_t p = (size_t)r.model->unit[1].param[IM_SLOT_NORM1_W], n = rig_param_count(&r, p), all, moved = 0, weight_moved = 0;
    float *ones = rig_alloc(n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    rig_param_io(&r, IM_STATE_WEIGHT, p, NULL, ones);
    rig_batch b = {.ids = ids, .targets = targets};
    for (int s = 0; s < NSTEPS; s++) {
        rig_step(&r, 0, s, 0x1p-10, 1.0, &b);
        if (s)
            continue;
        float *w = rig_param_read(&r, IM_STATE_MASTER, p); /* Adam's first step is lr, whatever the gradient */
        for (size_t i = 0; i < n; i++)
            moved += fabs(fabs((double)w[i] - 1) - 0x1p-10) < 1e-5;
        free(w);
    }
    assert_true(moved > n / 2);
    float *master = all_state(&r, IM_STATE_MASTER, &all), *weight = all_state(&r, IM_STATE_WEIGHT, &all);
    for (size_t i = 0; i < all; i++)
        if (weight[i] != to_bf16(master[i]))
            fail_msg("element %zu: weight %.9g is not the rounded master %.9g", i, weight[i], master[i]);
    float *norm = rig_param_read(&r, IM_STATE_WEIGHT, p);
    for (size_t i = 0; i < n; i++)
        weight_moved += norm[i] != 1;
    assert_true(weight_moved > n / 4); /* eight lost updates would leave them all at 1 */

    stored_seen seen = {0};
    im_event done;
    im_snapshot snap = {.arg = &seen, .write = see_state, .end = see_end};
    RIG_OK(r.ctx, im_engine_snapshot(r.engine, &snap, &done));
    RIG_OK(r.ctx, im_event_wait(r.device, done));
    assert_false(seen.bad);
    assert_true(seen.weights >= 2 * all && seen.weights < 2 * all + 64 * 2 * r.model->nparam);
    assert_true(seen.others >= 3 * 4 * all); /* master, m, v */
    im_memory mem;
    im_engine_memory(r.engine, &mem);
    assert_true(mem.by_class[IM_CLASS_WEIGHTS] < 3 * all);
    free(master);
    free(weight);
    free(norm);
    free(ones);
    rig_close(&r);
}

/* Gradients add up in fp32 in bf16 runs: 16 micro-batches of one sample against one of 16 (bf16 sums would drift by 1/256 a time). */
static void bf16_accumulates_in_fp32(void **state)
{
    enum { S = 16 };
    int32_t ids[S * T], targets[S * T];
    make_text(ids, targets, 1, 6);
    for (int s = 1; s < S; s++) { /* one text S times: every micro-batch adds the same values */
        memcpy(ids + s * T, ids, sizeof(*ids) * T);
        memcpy(targets + s * T, targets, sizeof(*targets) * T);
    }
    rig_batch b = {.ids = ids, .targets = targets};
    float *grad[2];
    size_t n;
    for (int i = 0; i < 2; i++) {
        rig_how how = how_of(1, i ? S : 1);
        how.precision = IM_BF16;
        rig r;
        open_rig(&r, *state, how);
        rig_step(&r, 0, 0, 0, 0, &b);
        grad[i] = all_state(&r, IM_STATE_GRAD, &n);
        rig_close(&r);
    }
    for (size_t i = 0; i < n; i++)
        grad[0][i] *= S;
    assert_true(rig_relative(grad[1], grad[0], n) < 1e-6);
    free(grad[0]);
    free(grad[1]);
}

/* ---- the same bits ------------------------------------------------------------------------------- */

/* The same run twice, inline; and on the deferred device with shaken orders. */
static void same_bits(void **state)
{
    enum { S = 3, NSTEPS = 4 };
    int32_t ids[S * T], targets[S * T];
    make_text(ids, targets, S, 7);
    rig_batch b = {.ids = ids, .targets = targets};
    float *first = NULL;
    double loss = 0;
    size_t n;
    for (int i = 0; i < 3; i++) {
        rig_how how = how_of(2, S);
        how.deferred = i == 2;
        how.slow_ns = i == 2 ? 20000 : 0;
        rig r;
        open_rig(&r, *state, how);
        im_metrics m = {0};
        for (int s = 0; s < NSTEPS; s++)
            m = rig_step(&r, 0, s, 1e-3, 1.0, &b);
        float *w = all_state(&r, IM_STATE_WEIGHT, &n);
        rig_close(&r);
        if (i) {
            assert_true(m.loss == loss);
            assert_memory_equal(w, first, n * sizeof(float));
            free(w);
        } else {
            loss = m.loss;
            first = w;
        }
    }
    free(first);
}

#define WITH(fn, model)                                                                   \
    {                                                                                     \
        .name = #fn " " model, .test_func = fn, .initial_state = (void *)(uintptr_t)model \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(one_denominator, "gpt2-tanh"),
        WITH(one_denominator, "llama-untied"),
        WITH(nothing_counted, "gpt2-tanh"),
        WITH(nothing_counted, "llama-untied"),
        WITH(packed_documents, "gpt2-tanh"),
        WITH(packed_documents, "llama3-bias"),
        WITH(rope_permutation, "llama-untied"),
        WITH(rope_permutation, "llama3-bias"),
        WITH(tied_import, "gpt2-tanh"),
        WITH(tied_import, "llama-tied"),
        WITH(export_round_trip, "gpt2-tanh"),
        WITH(export_round_trip, "llama-tied"),
        WITH(export_round_trip, "llama-untied"),
        WITH(export_round_trip, "llama3-bias"),
        WITH(export_round_trip, "mistral-tied"),
        WITH(export_round_trip, "qwen2-window"),
        WITH(export_round_trip, "qwen3-bias"),
        WITH(export_round_trip, "olmo2-bias"),
        WITH(export_round_trip, "phi3-long"),
        WITH(export_round_trip, "neox"),
        WITH(export_round_trip, "bloom"),
        WITH(export_round_trip, "bloom-untied"),
        WITH(bf16_master, "gpt2-tanh"),
        WITH(bf16_master, "llama3-bias"),
        WITH(bf16_accumulates_in_fp32, "gpt2-tanh"),
        WITH(bf16_accumulates_in_fp32, "llama-untied"),
        WITH(same_bits, "gpt2-tanh"),
        WITH(same_bits, "llama3-bias"),
    };
    return cmocka_run_group_tests_name("rules", tests, NULL, NULL);
}
