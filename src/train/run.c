/* im_train_run: set up, show the plan, train, sum up. */
#include "train/internal.h"

#include "comm/crew.h"

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
    status = im_crew_recorded(r->ctx, status);
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
    if (status != IM_OK && r->log_fd >= 0)
        im_train_log_lines(r, *im_error_text(ctx) ? im_error_text(ctx) : im_status_name(status));
    im_train_teardown(r);
    im_train_watchdog_stop(r);
    free(r);
    return status;
}
