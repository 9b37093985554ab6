/* Rule 10: any layout saves, any other loads: the same tensors bit for bit, the same losses after. A write that fails on one rank fails the
 * save on all. */
#include "layout/rig.h"

#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* sizes that divide nothing */
static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":36,\"intermediate_size\":50,\"num_hidden_layers\":3,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":3,\"head_dim\":10,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";
static const char llama_tied[] =
    "{\"model_type\":\"llama\",\"hidden_size\":28,\"intermediate_size\":51,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":6,\"vocab_size\":67,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true}";
static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"n_embd\":30,\"n_head\":5,\"n_layer\":2,\"vocab_size\":53,\"n_positions\":40,\"n_inner\":50,"
    "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";

typedef struct layout {
    int tp, sp, dp, pp, zero;
} layout;

enum { DONE = 3, MORE = 2, KINDS = 4, KEEP = 2 };
static const im_state_kind kinds[KINDS] = {IM_STATE_WEIGHT, IM_STATE_MASTER, IM_STATE_M, IM_STATE_V};

static char dir[] = "/tmp/imece-layouts-XXXXXX";

/* ---- a write that fails: the k-th pwrite from now on; 0: none ---------------------------------- */

static atomic_long fail_at, failed;

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    if (atomic_load(&fail_at) > 0 && atomic_fetch_sub(&fail_at, 1) == 1) {
        atomic_fetch_add(&failed, 1);
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, n, at);
}

/* ---- what a rank does ------------------------------------------------------------------------- */

typedef struct tensors {
    float **tensor[KINDS];
} tensors;

typedef struct job {
    const im_model *model;
    const char *from; /* checkpoint to load; NULL: first weights */
    const char *save; /* root; NULL: none */
    int save_before;  /* step */
    bool expect_failure;
    tensors seen; /* the state when it is saved (when it is loaded) */
    im_checkpoint_save *saving[RIG_RANKS];
    im_status saved[RIG_RANKS];
    char text[RIG_RANKS][512];
} job;

static im_status collect(job *j, im_engine *e, const im_plan *p)
{
    for (int k = 0; k < KINDS; k++)
        if (im_engine_has_state(e, kinds[k]))
            IM_TRY(rig_collect(e, p, kinds[k], j->seen.tensor[k]));
    return IM_OK;
}

static im_status start(rig_rank *me, im_context *ctx, im_engine *e)
{
    job *j = me->job->hooks->arg;
    im_checkpoint_meta meta;
    if (!j->from)
        return rig_init(e, me->job->plan);
    IM_TRY(im_checkpoint_meta_read(ctx, j->from, true, &meta));
    if (meta.step != DONE || meta.updates != DONE)
        return im_fail(ctx, IM_ERR_CHECK, "the manifest says step %d, updates %d", (int)meta.step, (int)meta.updates);
    IM_TRY(im_checkpoint_load_weights(ctx, e, j->from));
    return im_checkpoint_load_optimizer(ctx, e, j->from, &meta);
}

/* Whoever is told that the save is over finds it published: whole, and named by the pointer (B36). */
static im_status published(const job *j, im_context *ctx)
{
    char newest[512], want[512];
    im_checkpoint_meta meta;
    snprintf(want, sizeof want, "%s/step-%d", j->save, DONE);
    IM_TRY(im_checkpoint_latest(ctx, j->save, newest, sizeof newest));
    if (strcmp(newest, want))
        return im_fail(ctx, IM_ERR_CHECK, "the save is over, and the newest checkpoint is %s", newest);
    return im_checkpoint_meta_read(ctx, newest, false, &meta);
}

static im_status end_save(job *j, int rank, im_context *ctx)
{
    if (!j->saving[rank])
        return IM_OK;
    j->saved[rank] = im_checkpoint_finish(j->saving[rank]);
    if (j->saved[rank] == IM_OK)
        IM_TRY(published(j, ctx));
    j->saving[rank] = NULL;
    snprintf(j->text[rank], sizeof j->text[rank], "%s", im_error_text(ctx));
    if (j->expect_failure)
        im_error_clear(ctx);
    return j->expect_failure ? IM_OK : j->saved[rank];
}

static im_status before(rig_rank *me, im_context *ctx, im_engine *e, int i)
{
    job *j = me->job->hooks->arg;
    if (i == j->save_before) {
        IM_TRY(collect(j, e, me->job->plan));
        if (j->save) {
            im_checkpoint_meta meta = {.step = DONE, .updates = DONE, .position = DONE * me->job->plan->global_batch, .seed = 3};
            IM_TRY(im_checkpoint_start(ctx, e, j->save, &meta, NULL, KEEP, &j->saving[me->rank]));
        }
    } else if (j->saving[me->rank]) {
        bool done; /* while the steps go on: all ranks hear the same */
        im_status s = im_checkpoint_poll(j->saving[me->rank], &done);
        if (s != IM_OK && !j->expect_failure)
            return s;
        if (done || s != IM_OK)
            IM_TRY(end_save(j, me->rank, ctx));
    }
    return i == me->job->steps ? end_save(j, me->rank, ctx) : IM_OK;
}

/* ---- running it ---------------------------------------------------------------------------------- */

static im_model *open_model(im_context *ctx, const char *config)
{
    im_json *doc;
    im_model *m;
    assert_int_equal(im_json_parse(ctx, "test.json", config, strlen(config), &doc), IM_OK);
    assert_int_equal(im_model_parse(ctx, doc, &m), IM_OK);
    im_json_free(doc);
    return m;
}

static im_plan plan_of(const im_model *m, const layout *c, im_dtype precision)
{
    im_plan p;
    im_plan_defaults(&p, m);
    p.mesh = (im_mesh){c->tp, 1, c->dp, c->pp};
    p.sequence_parallel = c->sp;
    p.zero = c->zero;
    p.seq_len = 13;
    p.micro_batch = 3;
    p.global_batch = 7;
    p.dropout = -1;
    p.precision = precision;
    p.threads = 1;
    p.seed = 3;
    p.eps = 1e-5;
    return p;
}

static void name_of(const layout *c, char *buf, size_t n)
{
    snprintf(buf, n, "tp %d sp %d dp %d pp %d zero %d", c->tp, c->sp, c->dp, c->pp, c->zero);
}

static void new_job(job *j, const im_model *m)
{
    *j = (job){.model = m};
    for (int k = 0; k < KINDS; k++)
        j->seen.tensor[k] = rig_tensors(m);
}

static void free_job(job *j)
{
    for (int k = 0; k < KINDS; k++) {
        for (size_t q = 0; q < j->model->nparam; q++)
            free(j->seen.tensor[k][q]);
        free(j->seen.tensor[k]);
    }
}

static void run(job *j, const layout *c, im_dtype precision, int first, int steps, rig_result *out)
{
    char name[128];
    im_plan p = plan_of(j->model, c, precision);
    rig_hooks hooks = {.arg = j, .first_step = first, .start = start, .before = before};
    name_of(c, name, sizeof name);
    if (rig_train_with(&p, steps, false, IM_KERNELS_FAST, &hooks, out) != IM_OK)
        fail_msg("%s: %s", name, out->error);
}

static void same_state(const job *a, const job *b, const char *what)
{
    for (int k = 0; k < KINDS; k++)
        for (size_t q = 0; q < a->model->nparam; q++)
            if (k == 0 && isnan(a->seen.tensor[k][q][0]))
                fail_msg("%s: nobody owns the start of %s", what, a->model->param[q].name);
            else if (memcmp(a->seen.tensor[k][q], b->seen.tensor[k][q], (size_t)im_param_count(&a->model->param[q]) * 4))
                fail_msg("%s: state %d of %s is not what was saved", what, (int)kinds[k], a->model->param[q].name);
}

static void same_file(const char *a, const char *b, const char *name, const char *what)
{
    char path[512], *x, *y;
    size_t n, m;
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    snprintf(path, sizeof path, "%s/%s", a, name);
    assert_int_equal(im_file_read(ctx, path, 1 << 26, &x, &n), IM_OK);
    snprintf(path, sizeof path, "%s/%s", b, name);
    assert_int_equal(im_file_read(ctx, path, 1 << 26, &y, &m), IM_OK);
    if (n != m || memcmp(x, y, n))
        fail_msg("%s: %s, loaded and saved at once, is another file", what, name);
    free(x);
    free(y);
    im_context_destroy(ctx);
}

/* Layout `a` trains, saves and goes on; `b` loads, saves at once and goes on; and so `c` from what b saved. */
static void chain(const im_model *m, const layout *way, int n, im_dtype precision)
{
    job left;
    rig_result alone;
    char root[64], from[128] = "", what[300];
    new_job(&left, m);
    snprintf(root, sizeof root, "%s/0", dir);
    left.save = root;
    left.save_before = DONE;
    run(&left, &way[0], precision, 0, DONE + MORE, &alone);
    for (int i = 1; i < n; i++) {
        job j;
        rig_result got;
        char a[128], b[128], next[128];
        name_of(&way[i - 1], a, sizeof a);
        name_of(&way[i], b, sizeof b);
        snprintf(what, sizeof what, "%s -> %s", a, b);
        snprintf(from, sizeof from, "%s/%d/step-%d", dir, i - 1, DONE);
        snprintf(root, sizeof root, "%s/%d", dir, i);
        snprintf(next, sizeof next, "%s/step-%d", root, DONE);
        new_job(&j, m);
        j.from = from;
        j.save = root;
        run(&j, &way[i], precision, DONE, MORE, &got);
        same_state(&left, &j, what);
        same_file(from, next, "model.safetensors", what);
        same_file(from, next, "optimizer.safetensors", what);
        assert_int_equal(got.updates, alone.updates);
        bool same = !memcmp(&way[0], &way[i], sizeof way[0]);
        double tolerance = same ? 0 : precision == IM_F32 ? 1e-5 : 3e-3; /* bf16 rounds its partial sums */
        for (int s = 0; s < MORE; s++)
            if (!(fabs(got.loss[s] - alone.loss[DONE + s]) <= tolerance * fabs(alone.loss[DONE + s])))
                fail_msg("%s: loss of step %d is %.9g, of the run that was not stopped %.9g", what, DONE + s, got.loss[s], alone.loss[DONE + s]);
        rig_free(m, &got);
        free_job(&j);
    }
    rig_free(m, &alone);
    free_job(&left);
}

static void chains(const char *config, const layout *way, int n, im_dtype precision)
{
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_model *m = open_model(ctx, config);
    chain(m, way, n, precision);
    im_model_close(m);
    im_context_destroy(ctx);
}

static void test_llama(void **state)
{
    (void)state;
    static const layout way[] = {{2, 0, 2, 1, 0}, {2, 0, 2, 1, 0}, {1, 0, 3, 1, 3}, {1, 0, 1, 1, 0},
                                 {3, 1, 1, 1, 0}, {2, 1, 2, 2, 1}, {1, 0, 5, 1, 2}, {2, 0, 3, 1, 3}};
    chains(llama, way, IM_COUNT_OF(way), IM_F32);
}

/* kv heads that are replicated, a table in two stages */
static void test_tied(void **state)
{
    (void)state;
    static const layout way[] = {{4, 1, 2, 1, 1}, {1, 0, 1, 2, 0}, {4, 0, 1, 2, 0}, {2, 1, 2, 2, 1}, {1, 0, 3, 1, 3}};
    chains(llama_tied, way, IM_COUNT_OF(way), IM_F32);
}

/* one tensor for q, k and v */
static void test_fused(void **state)
{
    (void)state;
    static const layout way[] = {{3, 1, 2, 1, 3}, {1, 0, 1, 1, 0}, {2, 0, 2, 1, 1}, {5, 0, 1, 1, 0}, {3, 1, 2, 1, 3}};
    chains(gpt2, way, IM_COUNT_OF(way), IM_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    static const layout way[] = {{2, 0, 2, 1, 2}, {1, 0, 3, 1, 3}, {3, 1, 1, 1, 0}, {2, 0, 2, 1, 2}};
    chains(llama, way, IM_COUNT_OF(way), IM_BF16);
}

static int entries(const char *root, const char *suffix)
{
    DIR *d = opendir(root);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));) {
        size_t k = strlen(x->d_name), s = strlen(suffix);
        n += k >= s && !strcmp(x->d_name + k - s, suffix);
    }
    closedir(d);
    return n;
}

/* Whichever rank and whichever write it is: all ranks are told, nothing half written stays, and the next save works. */
static void test_write_fails(void **state)
{
    (void)state;
    static const layout at[] = {{2, 0, 2, 1, 1}, {1, 0, 1, 3, 0}};
    static const long k[] = {2, 3, 9, 27, 60};
    im_context *ctx;
    char root[64];
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_model *m = open_model(ctx, llama);
    snprintf(root, sizeof root, "%s/failing", dir);
    int by_others = 0;
    for (size_t c = 0; c < IM_COUNT_OF(at); c++)
        for (size_t i = 0; i < IM_COUNT_OF(k); i++) {
            job j;
            rig_result got;
            new_job(&j, m);
            j.save = root;
            j.expect_failure = true;
            long had = atomic_load(&failed);
            atomic_store(&fail_at, k[i]);
            im_plan p = plan_of(m, &at[c], IM_F32);
            rig_hooks hooks = {.arg = &j, .start = start, .before = before};
            im_status s = rig_train_with(&p, MORE, false, IM_KERNELS_FAST, &hooks, &got);
            atomic_store(&fail_at, 0);
            if (atomic_load(&failed) == had)
                fail_msg("fewer than %ld writes", k[i]);
            if (s != IM_OK) { /* a header: told by start, on all ranks */
                if (!strstr(got.error, "No space left"))
                    fail_msg("write %ld: %s", k[i], got.error);
            } else {
                for (int r = 0; r < im_mesh_size(&p.mesh); r++) {
                    if (j.saved[r] != IM_ERR_IO || !strstr(j.text[r], "No space left"))
                        fail_msg("write %ld: rank %d is told %d (%s)", k[i], r, (int)j.saved[r], j.text[r]);
                    by_others += !!strstr(j.text[r], "rank ");
                }
            }
            if (entries(root, ".tmp") || entries(root, "step-3"))
                fail_msg("write %ld: something half written stayed", k[i]);
            rig_free(m, &got);
            free_job(&j);
        }
    assert_true(by_others > 0);
    job j;
    rig_result got;
    new_job(&j, m);
    j.save = root;
    run(&j, &at[0], IM_F32, 0, MORE, &got);
    assert_int_equal(entries(root, "step-3"), 1);
    rig_free(m, &got);
    free_job(&j);
    im_model_close(m);
    im_context_destroy(ctx);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    im_context *ctx;
    if (im_context_create(&ctx) != IM_OK)
        return -1;
    im_status s = im_remove_tree(ctx, dir);
    im_context_destroy(ctx);
    return s == IM_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_llama), cmocka_unit_test(test_tied), cmocka_unit_test(test_fused),
                                       cmocka_unit_test(test_bf16), cmocka_unit_test(test_write_fails)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
