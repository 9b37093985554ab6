/* im_train_run: set up, show the plan, train, sum up. Also `imece eval`. */
#include "train/internal.h"

#include "checkpoint/session.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void sum_up(im_train_run *r)
{
    char checkpoint[IM_TRAIN_PATH + 64];
    im_observe_summary *s = &r->summary;
    s->seconds = im_clock_now() - r->loop_began;
    s->tokens_per_s = r->work_seconds > 0 ? (double)s->tokens / r->work_seconds : 0;
    s->mfu = r->rate > 0 ? im_model_flops_per_token(r->model, r->o.seq_len) * s->tokens_per_s / r->rate : -1;
    s->mem_predicted = r->predicted_here;
    s->mem_peak = im_process_rss_peak();
    s->run = r->o.out;
    if (r->saved_step >= 0) {
        snprintf(checkpoint, sizeof checkpoint, "%s/step-%" PRId64, r->checkpoints, r->saved_step);
        s->checkpoint = checkpoint;
    }
    s->end_step = r->meta.step;
    im_str text = {0}, json = {0};
    im_observe_summary_text(s, &text);
    im_observe_summary_json(s, &json);
    im_train_say(r, IM_TRAIN_TEXT_SUMMARY, "%s", im_str_text(&text));
    im_train_say(r, IM_TRAIN_TEXT_JSON, "%s", im_str_text(&json));
    im_str_free(&text);
    im_str_free(&json);
}

static void show_plan(im_train_run *r)
{
    im_str text = {0};
    im_train_plan_text(r, &text);
    im_train_say(r, IM_TRAIN_TEXT_PLAN, "%s", im_str_text(&text));
    im_str_free(&text);
}

static im_status prepare(im_train_run *r)
{
    if (r->o.resume)
        IM_TRY(im_train_find_resume(r));
    IM_TRY(im_train_setup(r));
    if (r->o.dry_run) {
        if (r->env->mpi)
            IM_TRY(im_train_team_start(r)); /* the ranks compare what they planned */
        show_plan(r);
        return im_train_need_memory(r);
    }
    IM_TRY(im_train_team_start(r));
    IM_TRY(im_train_open_engine(r));
    IM_TRY(im_train_load_state(r, r->from[0] ? r->from : NULL));
    if (r->from[0])
        IM_TRY(im_train_check_resume(r));
    if (!r->rank)
        IM_TRY(im_train_make_dir(r));
    IM_TRY(im_train_share_dir(r));
    IM_TRY(im_train_place_ring(r));
    show_plan(r);
    r->first_step = r->meta.step;
    r->saved_step = r->from[0] ? r->meta.step : -1;
    r->elapsed_before = r->meta.elapsed_s;
    return im_train_spans_open(r);
}

static im_status train(im_train_run *r)
{
    r->loop_began = im_clock_now();
    im_status status = im_train_loop(r);
    if (!r->diverged && (status == IM_OK || status == IM_ERR_STOPPED || r->save_status != IM_OK)) {
        sum_up(r);
        im_status left = status == IM_OK || status == IM_ERR_STOPPED ? im_train_spans_leave(r) : IM_OK; /* as the other ranks do */
        if (status == IM_OK)
            status = left;
    }
    return status;
}

im_status im_train_execute(im_context *ctx, const im_train_options *o, const im_train_env *env)
{
    im_status refused = im_train_options_check(ctx, o);
    if (refused != IM_OK && env->mpi)
        im_comm_mpi_world_abort(env->mpi, im_error_text(ctx)); /* perhaps of this rank alone */
    IM_TRY(refused);
    im_train_env with_clock = *env;
    if (with_clock.began <= 0)
        with_clock.began = im_clock_now();
    void *memory;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_train_run), &memory));
    im_train_run *r = memory;
    r->ctx = ctx;
    r->ranks = (int)(o->tp * o->dp * o->pp);
    r->rank = env->mpi ? im_comm_mpi_where(env->mpi).rank : 0;
    r->ranks_here = env->mpi ? im_comm_mpi_where(env->mpi).local_size : r->ranks;
    r->o = *o;
    r->env = &with_clock;
    r->log_fd = -1;
    r->summary.mem_start = im_process_rss();
    r->saving_step = r->saved_step = r->eval_step = -1;
    r->summary.first_loss = r->summary.last_loss = NAN;
    im_status status = im_arena_create(ctx, &r->arena);
    if (status == IM_OK)
        status = prepare(r);
    if (status == IM_OK && !r->o.dry_run)
        status = train(r);
    status = im_train_recorded(r, status);
    if (env->mpi) {
        im_train_tell_end(r, status);
        im_train_processes_end(r, status);
    }
    status = im_train_team_end(r, status);
    if (!r->o.dry_run && (status == IM_OK || (status == IM_ERR_STOPPED && r->summary.steps))) {
        im_status joined = im_train_spans_join(r);
        if (status == IM_OK)
            status = joined;
    }
    if (status == IM_ERR_ARG && r->loop_began > 0)
        status = IM_ERR_INTERNAL; /* what ranks call is no argument of the user's */
    im_train_teardown(r);
    im_train_watchdog_stop(r);
    free(r);
    return status;
}

/* ---- imece eval ------------------------------------------------------------------------------ */

typedef struct eval_job {
    im_checkpoint_session session;
    im_feed *data;
    int32_t *token_bytes;
    im_train_eval eval;
} eval_job;

static im_status eval_setup(im_context *ctx, const im_train_eval_options *o, const im_train_env *env, eval_job *j)
{
    im_program_want want[IM_TRAIN_EVAL_PARTS];
    size_t nwant = 0;
    if (o->model && !o->data) /* a missing model is told first */
        return im_fail(ctx, IM_ERR_ARG, "--data is missing: the prefix of a token file");
    IM_TRY(im_checkpoint_session_open(ctx, o->model, env->models_dir, &j->session));
    im_plan *p = &j->session.plan;
    p->seq_len = o->seq_len;
    p->micro_batch = p->global_batch = p->eval_batch = o->batch;
    p->precision = o->precision == IM_TRAIN_BF16 ? IM_BF16 : IM_F32;
    p->threads = o->threads ? (int)o->threads : p->threads;
    IM_TRY(im_plan_validate(ctx, p)); /* seq-len and batch are sound before they divide the file */
    im_feed_config cfg = {.seq_len = o->seq_len,
                          .vocab = j->session.model->arch.V,
                          .pack = (im_pack)o->pack,
                          .attention = (im_reach)o->attention,
                          .too_long = (im_long)o->too_long,
                          .valid = true};
    IM_TRY(im_feed_open(ctx, o->data, &cfg, &j->data));
    im_feed_warn_tokenizer(ctx, j->data, j->session.model->dir);
    p->documents = im_feed_documents(j->data);
    IM_TRY(im_train_token_bytes(ctx, j->session.model, j->session.model->dir, &j->token_bytes));
    im_train_eval_plan(j->data, o->seq_len, o->batch, o->batches, j->token_bytes, &j->eval);
    im_train_eval_want(&j->eval, want, &nwant);
    return im_checkpoint_session_start(ctx, &j->session, o->device == 1, (im_kernels)o->kernels, want, nwant);
}

im_status im_train_eval_model(im_context *ctx, const im_train_eval_options *o, const im_train_env *env, im_observe_eval *out)
{
    eval_job j = {0};
    im_observe_eval e = {0};
    im_status status = eval_setup(ctx, o, env, &j);
    if (status == IM_OK)
        status = im_train_eval_run(ctx, j.session.engine, &j.eval, env, &e);
    im_checkpoint_session_close(&j.session);
    im_feed_close(j.data);
    free(j.token_bytes);
    if (status == IM_OK)
        *out = e;
    return status;
}
