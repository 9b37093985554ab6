/* imece eval: the loss of a model directory on a token file, on any layout. Every rank runs the programs of evaluation; rank 0 tells the result. */
#include "train/train.h"

#include "checkpoint/session.h"
#include "engine/agree.h"

#include <stdlib.h>
#include <string.h>

typedef struct eval_job {
    const im_train_eval_options *o;
    im_checkpoint_session session; /* rank 0's, or this process's */
    im_feed *data;
    int32_t *token_bytes;
    im_train_eval eval;
    im_program_want want[IM_TRAIN_EVAL_PARTS];
    size_t nwant;
} eval_job;

static im_status make_plan(im_context *ctx, const im_train_eval_options *o, im_comm_mpi_world *mpi, im_plan *p)
{
    p->mesh = (im_mesh){(int)o->tp, 1, (int)o->dp, (int)o->pp};
    p->seq_len = o->seq_len;
    p->micro_batch = p->eval_batch = o->batch;
    p->global_batch = o->batch * o->dp;
    p->precision = o->precision == IM_TRAIN_BF16 ? IM_BF16 : IM_F32;
    p->threads = (int)o->threads;
    return im_plan_check_layout(ctx, p, true, mpi ? im_comm_mpi_where(mpi).size : 0); /* seq-len and batch are sound before they divide the file */
}

static im_status setup(im_context *ctx, const im_train_env *env, eval_job *j)
{
    const im_train_eval_options *o = j->o;
    if (o->model && !o->data) /* a missing model is told first */
        return im_fail(ctx, IM_ERR_ARG, "--data is missing: the prefix of a token file");
    IM_TRY(im_checkpoint_session_open(ctx, o->model, env->models_dir, &j->session));
    IM_TRY(make_plan(ctx, o, env->mpi, &j->session.plan));
    im_feed_config cfg = {.seq_len = o->seq_len,
                          .vocab = j->session.model->arch.V,
                          .pack = (im_pack)o->pack,
                          .attention = (im_reach)o->attention,
                          .too_long = (im_long)o->too_long,
                          .valid = true};
    IM_TRY(im_feed_open(ctx, o->data, &cfg, &j->data));
    im_feed_warn_tokenizer(ctx, j->data, j->session.model->dir);
    j->session.plan.documents = im_feed_documents(j->data);
    IM_TRY(im_train_token_bytes(ctx, j->session.model, j->session.model->dir, &j->token_bytes));
    im_train_eval_plan(j->data, o->seq_len, o->batch, o->batches, j->token_bytes, &j->eval);
    im_train_eval_split(&j->eval, o->batch, (int)o->dp);
    im_train_eval_want(&j->eval, j->want, &j->nwant);
    return IM_OK;
}

/* Ranks that are processes: each made its own plan. */
static im_status compare(const eval_job *j, im_checkpoint_session *s)
{
    static const char *const names[] = {"options", "model", "data"};
    uint64_t fact[IM_COUNT_OF(names)] = {0};
    im_str text = {0};
    im_train_eval_options o = *j->o;
    o.model = o.data = NULL;
    o.threads = 0;
    o.kernels = o.device = 0;
    im_option_to_yaml(im_train_eval_rows, IM_TRAIN_EVAL_ROWS, &o, &text);
    fact[0] = im_hash64(im_str_text(&text), text.len, 0);
    im_str_free(&text);
    IM_TRY(im_checkpoint_session_identity(s, &fact[1]));
    fact[2] = im_feed_fingerprint(j->data);
    return im_checkpoint_session_same(s, fact, names, IM_COUNT_OF(names));
}

static im_status tell_memory(im_checkpoint_session *s, const im_train_env *env)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        im_observe_memory m;
        IM_TRY(im_engine_rank_memory(s->engine, rank, &m));
        im_class_bytes classes[IM_COUNT_OF(m.by_class)];
        size_t n = 0;
        for (size_t c = 0; c < m.n; c++)
            if (m.by_class[c].predicted > 0 || m.by_class[c].measured > 0)
                classes[n++] = m.by_class[c];
        if (env && env->memory)
            env->memory(env->arg, rank, classes, n);
    }
    return IM_OK;
}

/* What each rank does; env of rank 0 alone when the others are threads. */
static im_status evaluate(const eval_job *j, im_checkpoint_session *s, const im_train_env *env, im_observe_eval *out)
{
    if (s->mpi)
        IM_TRY(compare(j, s));
    IM_TRY(im_checkpoint_session_start(s, j->want, j->nwant));
    IM_TRY(im_train_eval_run(s->ctx, s->engine, &j->eval, env, out));
    return tell_memory(s, env);
}

static im_status evaluate_thread(void *arg, im_checkpoint_session *s)
{
    im_observe_eval e = {0};
    im_status status = evaluate(arg, s, NULL, &e);
    return status == IM_ERR_STOPPED ? IM_OK : status; /* rank 0 was told to stop, and tells so */
}

im_status im_train_eval_model(im_context *ctx, const im_train_eval_options *o, const im_train_env *env, im_observe_eval *out)
{
    eval_job j = {.o = o};
    im_observe_eval e = {0};
    im_status status = setup(ctx, env, &j);
    im_checkpoint_join how = {.deferred = o->device == 1,
                              .kernels = (im_kernels)o->kernels,
                              .batch_follows = true,
                              .mpi = env->mpi,
                              .deadline = o->deadline,
                              .others = evaluate_thread,
                              .arg = &j};
    if (status == IM_OK)
        status = im_checkpoint_session_join(&j.session, &how);
    if (status == IM_OK)
        status = evaluate(&j, &j.session, env, &e);
    bool told = status == IM_ERR_STOPPED; /* all ranks come to it alike */
    if (status != IM_OK && env->mpi && !j.session.mpi)
        im_comm_mpi_world_abort(env->mpi, im_error_text(ctx)); /* perhaps of this rank alone */
    im_status stopped = im_checkpoint_session_stop(&j.session, told ? IM_OK : status);
    if (!told)
        status = stopped;
    im_checkpoint_session_close(&j.session);
    im_feed_close(j.data);
    free(j.token_bytes);
    if (status == IM_OK)
        *out = e;
    return status;
}
