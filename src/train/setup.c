/* From options to a run that is ready: model, data, plan, engine, first state. */
#include "train/internal.h"

#include "checkpoint/session.h"
#include "data/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A plan that came with the options is of one model. */
static im_status check_plan_model(im_train_run *r)
{
    char identity[17];
    snprintf(identity, sizeof identity, "%016" PRIx64, im_model_identity(r->model));
    if (!r->o.plan_identity || !strcmp(r->o.plan_identity, identity))
        return IM_OK;
    return im_fail(r->ctx, IM_ERR_ARG,
                   "%s is a plan for another model: %s of %" PRId64 " parameters, but %s is %s of %" PRId64
                   "; give the plan's model, or take its options without its `plan:` section",
                   r->o.plan_file, r->o.plan_family, r->o.plan_parameters, r->model->source, r->model->family, im_model_param_count(r->model));
}

/* The ids of another tokenizer than the model's: its files go into the checkpoints. */
static im_status take_tokenizer(im_train_run *r)
{
    im_tok *t;
    if (!im_path_is_dir(r->o.tokenizer))
        return im_fail(r->ctx, IM_ERR_ARG, "--tokenizer %s: a directory with a tokenizer.json is needed", r->o.tokenizer);
    IM_TRY(im_tok_open(r->ctx, r->o.tokenizer, &t));
    int64_t ids = im_tok_vocab(t);
    im_tok_close(t);
    if (ids > r->model->arch.V)
        return im_fail(r->ctx, IM_ERR_ARG, "--tokenizer %s has %" PRId64 " ids, the model's vocabulary is %" PRId64 " (%s: vocab_size)",
                       r->o.tokenizer, ids, r->model->arch.V, r->model->source);
    r->copy_from = r->o.tokenizer;
    return IM_OK;
}

static im_status open_model(im_train_run *r)
{
    char dir[IM_TRAIN_PATH];
    if (r->from[0])
        snprintf(dir, sizeof dir, "%s", r->from);
    else
        IM_TRY(im_checkpoint_resolve(r->ctx, r->o.model, dir, sizeof dir));
    IM_TRY(im_model_open(r->ctx, dir, r->env->models_dir, &r->model));
    r->copy_from = r->model->dir;
    if (r->o.tokenizer && !r->from[0]) /* a checkpoint has its own */
        IM_TRY(take_tokenizer(r));
    IM_TRY(check_plan_model(r));
    return im_model_need_runnable(r->ctx, r->model);
}

/* The last documents of --data, or another file. Its samples are made as those of the training. */
static im_status open_valid(im_train_run *r, im_feed_config cfg)
{
    cfg.valid = true;
    cfg.order = IM_ORDER_SEQUENTIAL;
    if (r->o.valid)
        cfg.valid_share = 0;
    IM_TRY(im_feed_open(r->ctx, r->o.valid ? r->o.valid : r->o.data, &cfg, &r->valid));
    IM_TRY(im_train_token_bytes(r->ctx, r->model, r->copy_from, &r->token_bytes));
    im_train_eval_plan(r->valid, r->o.seq_len, r->o.micro_batch, r->o.eval_batches, r->token_bytes, &r->eval);
    im_train_eval_split(&r->eval, r->o.micro_batch, (int)r->o.dp);
    return IM_OK;
}

static im_status open_data(im_train_run *r)
{
    im_feed_config cfg = {.seq_len = r->o.seq_len,
                          .vocab = r->model->arch.V,
                          .order = (im_order)r->o.order,
                          .seed = (uint64_t)r->o.seed,
                          .pack = (im_pack)r->o.pack,
                          .attention = (im_reach)r->o.attention,
                          .too_long = (im_long)r->o.too_long,
                          .valid_share = r->o.valid_share};
    IM_TRY(im_feed_open(r->ctx, r->o.data, &cfg, &r->data));
    if (!r->rank)
        im_feed_warn_tokenizer(r->ctx, r->data, r->copy_from);
    if (!r->o.valid && r->o.valid_share <= 0)
        return IM_OK;
    cfg.pack = im_feed_pack(r->data);
    cfg.attention = im_feed_documents(r->data) ? IM_REACH_DOCUMENT : IM_REACH_CAUSAL;
    return open_valid(r, cfg);
}

/* Every rank's bytes. */
static im_status predict(im_train_run *r)
{
    for (int i = 0; i < r->ranks; i++) {
        im_memory m;
        IM_TRY(im_engine_predict(r->ctx, &r->plan, i, r->want, r->nwant, &m));
        r->predicted_all += m.total;
        r->predicted_here += !r->env->mpi || i == r->rank ? m.total : 0;
        if (i && m.total <= r->predicted.total)
            continue;
        r->predicted = m;
        r->heaviest = i;
    }
    return IM_OK;
}

im_status im_train_need_memory(im_train_run *r)
{
    char need[32], have[32];
    double here = (double)r->predicted_all / r->ranks * r->ranks_here;
    if (here > (double)im_machine_memory())
        return im_fail(r->ctx, IM_ERR_NOMEM,
                       "%d rank%s of the plan need%s %s, this machine has %s: a smaller micro-batch, seq-len or model, zero, recompute or bf16",
                       r->ranks_here, r->ranks_here > 1 ? "s" : "", r->ranks_here > 1 ? " together" : "s", im_format_bytes(need, sizeof need, here),
                       im_format_bytes(have, sizeof have, (double)im_machine_memory()));
    return IM_OK;
}

static im_status make_plan(im_train_run *r)
{
    im_plan *p = &r->plan;
    int cores = r->env->mpi ? im_comm_mpi_where(r->env->mpi).cores : im_machine_cores(); /* of all ranks here: each may be bound to some */
    IM_TRY(im_train_plan(r->ctx, &r->o, r->model, r->cut, p));
    p->documents = r->data ? im_feed_documents(r->data) : r->o.attention == IM_REACH_DOCUMENT; /* im_train_predict: no data */
    p->threads = r->o.threads ? (int)r->o.threads : cores > r->ranks_here ? cores / r->ranks_here : 1;
    IM_TRY(im_plan_check_layout(r->ctx, p, r->batch_follows, r->env->mpi ? im_comm_mpi_where(r->env->mpi).size : 0));
    r->want[r->nwant++] = (im_program_want){.mode = IM_MODE_TRAIN};
    if (r->valid)
        im_train_eval_want(&r->eval, r->want, &r->nwant);
    if (im_train_paced(r)) {
        if (r->o.pace_flops <= 0 || r->o.pace_bytes <= 0)
            IM_TRY(im_train_rank_pace(r, &r->pace));
        r->pace.flops = r->o.pace_flops > 0 ? r->o.pace_flops : r->pace.flops;
        r->pace.bytes = r->o.pace_bytes > 0 ? r->o.pace_bytes : r->pace.bytes;
    }
    return predict(r);
}

im_status im_train_setup(im_train_run *r)
{
    r->batch_follows = !r->o.global_batch;
    if (r->batch_follows)
        r->o.global_batch = r->o.micro_batch * r->o.dp;
    r->total_steps = im_train_total_steps(&r->o);
    IM_TRY(open_model(r));
    IM_TRY(open_data(r));
    IM_TRY(make_plan(r));
    return r->ranks > 1 ? im_train_need_memory(r) : IM_OK; /* one rank's engine tells it by class */
}

im_status im_train_predict(im_context *ctx, const im_train_options *o, const im_train_env *env)
{
    im_class_bytes classes[IM_CLASS_COUNT];
    im_train_options checked = *o;
    size_t n = 0;
    void *memory;
    checked.data = o->data ? o->data : "none";
    checked.steps = o->steps ? o->steps : 1;
    IM_TRY(im_train_options_check(ctx, &checked));
    IM_TRY(im_alloc(ctx, 1, sizeof(im_train_run), &memory));
    im_train_run *r = memory;
    r->ctx = ctx;
    r->ranks = r->ranks_here = (int)(o->tp * o->dp * o->pp);
    r->o = *o;
    r->o.global_batch = o->global_batch ? o->global_batch : o->micro_batch * o->dp;
    r->env = env;
    r->log_fd = -1;
    im_status status = open_model(r);
    if (status == IM_OK)
        status = make_plan(r);
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        if (r->predicted.by_class[c])
            classes[n++] = (im_class_bytes){.name = im_class_name((im_class)c), .predicted = (double)r->predicted.by_class[c], .measured = NAN};
    if (status == IM_OK && env->memory)
        env->memory(env->arg, r->heaviest, classes, n);
    im_train_teardown(r);
    free(r);
    return status;
}

im_status im_train_open_device(im_train_run *r)
{
    im_device_config config = {
        .deferred = r->o.device == 1, .threads = r->plan.threads, .kernels = (im_kernels)r->o.kernels, .pace = r->pace, .comm_threads = r->ranks > 1};
    return im_device_open(r->ctx, &config, &r->device);
}

im_status im_train_open_engine(im_train_run *r)
{
    im_engine_config engine = {.plan = &r->plan, .device = r->device, .world = r->world, .want = r->want, .nwant = r->nwant};
    return im_engine_open(r->ctx, &engine, &r->engine);
}

/* ---- first state -------------------------------------------------------------------------- */

enum { IM_STAGE = 1 << 22 }; /* elements */

typedef struct im_drawing {
    const im_model *m;
    uint64_t seed;
} im_drawing;

static im_status draw(void *arg, uint32_t param, int64_t first, int64_t count, float *out)
{
    const im_drawing *d = arg;
    im_param_init(&d->m->param[param], d->seed, first, count, out);
    return IM_OK;
}

im_status im_train_init_weights(im_context *ctx, im_engine *e, uint64_t seed)
{
    im_drawing d = {.m = im_engine_layout(e)->model, .seed = seed};
    return im_checkpoint_fill(ctx, e, draw, &d);
}

/* m and v of a run that starts over: only after a rollback are they anything but zero. */
static im_status zero_optimizer(im_train_run *r)
{
    static const im_state_kind kinds[] = {IM_STATE_M, IM_STATE_V};
    const im_layout *l = im_engine_layout(r->engine);
    void *zeros;
    IM_TRY(im_alloc(r->ctx, IM_STAGE, sizeof(float), &zeros));
    im_status status = IM_OK;
    for (size_t b = 0; b < l->model->nbucket; b++) {
        const im_bucket *bucket = &l->bucket[b];
        size_t from = l->zero ? bucket->shard[l->place.dp] : 0, to = l->zero ? bucket->shard[l->place.dp + 1] : bucket->count;
        for (size_t k = 0; bucket->held && k < IM_COUNT_OF(kinds); k++)
            for (size_t at = from; at < to; at += IM_STAGE)
                IM_TRY_GOTO(im_engine_write(r->engine, kinds[k], b, at, to - at < IM_STAGE ? to - at : IM_STAGE, zeros), free_zeros);
    }
    status = im_engine_set_updates(r->engine, 0);
free_zeros:
    free(zeros);
    return status;
}

static void add_word(char *out, size_t size, const char *fmt, ...) IM_PRINTF(3, 4);
static void add_word(char *out, size_t size, const char *fmt, ...)
{
    size_t n = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + n, size - n, fmt, ap);
    va_end(ap);
}

/* What must agree for the same bits; the rest of the options may change and the run is still right. Words that came later stand there when they
 * are not what was before them. */
static void plan_key(const im_train_run *r, char *out, size_t size)
{
    static const char *const orders[] = {"sequential", "shuffled"}, *const packs[] = {"auto", "stream", "whole", "none"},
                             *const longs[] = {"refuse", "cut", "split", "skip"};
    const im_plan *p = &r->plan;
    snprintf(out, size,
             "seq_len=%" PRId64 " order=%s global_batch=%" PRId64 " micro_batch=%" PRId64 " precision=%s dropout=%g label_smoothing=%g "
             "tp=%d cp=%d dp=%d pp=%d zero=%d",
             p->seq_len, orders[r->o.order], p->global_batch, p->micro_batch, im_dtype_name(p->precision), p->dropout, p->label_smoothing, p->mesh.tp,
             p->mesh.cp, p->mesh.dp, p->mesh.pp, p->zero);
    if (p->sequence_parallel)
        add_word(out, size, " sequence_parallel=1");
    if (im_feed_pack(r->data) != IM_PACK_STREAM)
        add_word(out, size, " pack=%s long=%s", packs[im_feed_pack(r->data)], longs[r->o.too_long]);
    if (p->documents)
        add_word(out, size, " attention=document");
}

im_status im_train_load_state(im_train_run *r, const char *from)
{
    im_checkpoint_meta meta = {.last_loss = NAN, .warmup_done_s = -1};
    im_comm_note(r->world, 0, "load");
    if (from) {
        IM_TRY(im_checkpoint_meta_read(r->ctx, from, false, &meta));
        IM_TRY(im_checkpoint_load_weights(r->ctx, r->engine, from));
        IM_TRY(im_checkpoint_load_optimizer(r->ctx, r->engine, from, &meta));
    } else {
        bool load = r->o.init == IM_TRAIN_INIT_AUTO && im_checkpoint_has_weights(r->model->dir);
        IM_TRY(load ? im_checkpoint_load_weights(r->ctx, r->engine, r->model->dir) : im_train_init_weights(r->ctx, r->engine, (uint64_t)r->o.seed));
        if (r->rollbacks)
            IM_TRY(zero_optimizer(r));
    }
    meta.seed = (uint64_t)r->o.seed;
    meta.data_fingerprint = im_feed_fingerprint(r->data);
    meta.threads = im_device_config_of(r->device)->threads;
    im_train_isa(r->device, meta.isa, sizeof meta.isa);
    plan_key(r, meta.plan_key, sizeof meta.plan_key);
    r->meta = meta;
    return IM_OK;
}

void im_train_close_rank(im_train_run *r)
{
    im_train_save_abandon(r);
    im_engine_close(r->engine);
    im_train_watchdog_remove(r);
    im_comm_destroy(r->world);
    im_device_close(r->device);
    r->engine = NULL;
    r->world = NULL;
    r->device = NULL;
}

void im_train_teardown(im_train_run *r)
{
    im_train_close_rank(r);
    im_observe_close(r->metrics);
    im_observe_trace_destroy(r->trace);
    im_feed_close(r->valid);
    im_feed_close(r->data);
    free(r->token_bytes);
    im_model_close(r->model);
    im_arena_destroy(r->arena);
    int fd = r->log_fd;
    r->log_fd = -1; /* the watchdog may look */
    if (fd >= 0)
        close(fd);
}
