/* The loop: a step, its line, what is due after it. */
#include "train/internal.h"
#include "engine/agree.h"
#include "tensor/rate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

double im_train_elapsed(const im_train_run *r)
{
    return r->elapsed_before + (im_clock_now() - r->loop_began);
}

/* ---- data ---------------------------------------------------------------------------------- */

/* im_source.load of a step: sample b of the step is at position sample0 + b of the run's order. */
static im_status load(void *arg, const im_op_now *now, int64_t first_sample, int64_t B, int64_t T, int32_t *ids, int32_t *targets, int32_t *pos,
                      int32_t *seg)
{
    im_train_run *r = arg;
    for (int64_t b = 0; b < B; b++) {
        int64_t at = b * T;
        IM_TRY(im_feed_read(r->ctx, r->data, now->sample0 + first_sample + b, ids + at, targets + at, pos + at, seg ? seg + at : NULL));
    }
    return IM_OK;
}

/* Ranges that a rollback left out; they may touch, so look again after each jump. */
static void jump_skips(im_train_run *r)
{
    for (int i = 0; i < r->meta.nskip;) {
        const im_checkpoint_skip *s = &r->meta.skip[i];
        if (r->meta.position >= s->from && r->meta.position < s->from + s->count) {
            r->meta.position = s->from + s->count;
            i = 0;
        } else {
            i++;
        }
    }
}

/* ---- telling ------------------------------------------------------------------------------- */

/* Seconds to the end, by the limit that comes first; < 0: unknown. */
static double eta(const im_train_run *r)
{
    int64_t done = r->meta.step - r->first_step;
    double left = -1;
    if (r->total_steps && done > 0)
        left = (double)(r->total_steps - r->meta.step) * (im_clock_now() - r->loop_began) / (double)done;
    if (r->o.minutes > 0) {
        double by_time = fmax(0, r->o.minutes * 60 - im_train_elapsed(r));
        left = left < 0 ? by_time : fmin(left, by_time);
    }
    return left;
}

/* Bytes read and written a second by one thread that copies: enough for a picture, and done in some 50 ms. */
static im_status copy_rate(im_context *ctx, double *out)
{
    enum { N = 32 << 20 };
    void *a, *b;
    IM_TRY(im_alloc(ctx, N, 1, &a));
    im_status status = im_alloc(ctx, N, 1, &b);
    double best = HUGE_VAL;
    for (int i = 0; status == IM_OK && i < 4; i++) {
        double t0 = im_clock_now();
        memcpy(i % 2 ? a : b, i % 2 ? b : a, N);
        double t = im_clock_now() - t0;
        best = i && t < best ? t : best; /* the first one touches the pages */
    }
    free(a);
    if (status == IM_OK) {
        free(b);
        *out = 2.0 * N / best;
    }
    return status;
}

im_status im_train_rank_pace(im_train_run *r, im_pace *out)
{
    im_kernels kernels = r->o.kernels == IM_KERNELS_PLAIN ? IM_KERNELS_PLAIN : IM_KERNELS_FAST;
    im_rate_product p = {.M = 256, .N = 256, .K = 256, .trans_b = true, .type = r->plan.precision, .kernels = kernels, .threads = r->plan.threads};
    IM_TRY(im_tensor_product_rate(r->ctx, &p, &out->flops));
    return copy_rate(r->ctx, &out->bytes);
}

/* After the first step, so that it does not delay it: about 0.2 s. */
static void measure_machine(im_train_run *r)
{
    if (!r->env->measure_rate || r->rate != 0 || im_train_paced(r))
        return;
    int cores = im_machine_cores(), threads = r->ranks_here * r->plan.threads;
    if (r->ranks > 1 && threads > cores)
        threads = cores;
    im_status status = im_tensor_machine_rate(r->ctx, r->plan.precision, threads, &r->rate);
    if (status != IM_OK) {
        im_log(r->ctx, IM_LOG_WARN, "train", "no MFU: the machine's rate could not be measured: %s", im_error_text(r->ctx));
        im_error_clear(r->ctx);
        r->rate = -1;
    }
    r->rate = im_train_job_rate(r->rate, r->ranks, r->ranks_here);
}

double im_train_job_rate(double here, int ranks, int ranks_here)
{
    return here > 0 ? here * ranks / ranks_here : here;
}

static double flops_share(im_train_run *r, double tokens_per_s)
{
    return r->rate > 0 ? im_model_flops_per_token(r->model, r->o.seq_len) * tokens_per_s / r->rate : -1;
}

/* The line of the step that was just run; r->meta is still as before it. */
static void tell_step(im_train_run *r, const im_metrics *m, double lr, double seconds)
{
    double tokens = (double)(r->o.global_batch * r->o.seq_len);
    im_observe_step s = {.step = r->meta.step + 1,
                         .tokens = r->meta.tokens + r->o.global_batch * r->o.seq_len,
                         .loss = m->loss,
                         .grad_norm = m->grad_norm,
                         .lr = lr,
                         .step_s = seconds,
                         .tokens_per_s = tokens / seconds,
                         .mfu = flops_share(r, tokens / seconds),
                         .rss_bytes = im_process_rss(),
                         .mem_peak_bytes = im_process_rss_peak(),
                         .mem_predicted_bytes = r->predicted_here,
                         .finite = m->finite};
    if (r->metrics && im_observe_put_step(r->metrics, &s) != IM_OK) {
        if (!r->metrics_failed)
            im_train_say(r, IM_TRAIN_TEXT_WARNING, "metrics are not complete: %s", im_error_text(r->ctx));
        r->metrics_failed = true;
        im_error_clear(r->ctx);
    }
    if (r->env->step)
        r->env->step(r->env->arg, &s);
    im_str line = {0};
    im_observe_progress(&s, r->total_steps, eta(r), &line);
    im_train_say(r, IM_TRAIN_TEXT_PROGRESS, "%s", im_str_text(&line));
    im_str_free(&line);
    if (m->finite) {
        if (isnan(r->summary.first_loss))
            r->summary.first_loss = m->loss;
        r->summary.last_loss = m->loss;
    }
    r->work_seconds += seconds;
}

/* What a number says that is finite and yet means that nothing is learned. */
static void warn_flat(im_train_run *r, const im_metrics *m)
{
    if (r->warned_flat || !m->finite || m->tokens <= 0 || m->grad_norm != 0)
        return;
    r->warned_flat = true;
    im_train_say(r, IM_TRAIN_TEXT_WARNING,
                 "step %" PRId64 ": the gradient is exactly 0, so nothing is learned any more; a learning rate that is too large (--lr %g) drives a "
                 "model there",
                 r->meta.step + 1, r->o.lr);
}

static im_status evaluate(im_train_run *r)
{
    im_observe_eval e = {.step = r->meta.step};
    IM_TRY(im_train_eval_run(r->ctx, r->engine, &r->eval, r->env, &e));
    if (r->metrics && im_observe_put_eval(r->metrics, &e) != IM_OK) {
        r->metrics_failed = true;
        im_error_clear(r->ctx);
    }
    if (!r->summary.have_valid) {
        r->summary.have_valid = true;
        r->summary.first_valid = e.loss;
        r->summary.first_bits = e.bits_per_byte;
        r->summary.first_valid_step = e.step;
    }
    r->summary.last_valid = e.loss;
    r->summary.last_bits = e.bits_per_byte;
    r->summary.last_valid_step = e.step;
    r->eval_step = r->meta.step;
    char bits[48] = "";
    if (e.bits_per_byte >= 0)
        snprintf(bits, sizeof bits, ", %.4f bits per byte", e.bits_per_byte);
    im_train_say(r, IM_TRAIN_TEXT_EVENT, "step %" PRId64 ": validation loss %.4f%s (%" PRId64 " tokens)", e.step, e.loss, bits, e.counted);
    return IM_OK;
}

/* ---- a step ------------------------------------------------------------------------------------ */

static double learning_rate(im_train_run *r)
{
    double elapsed = r->elapsed;
    if (r->meta.warmup_done_s < 0 && r->meta.step >= r->o.warmup)
        r->meta.warmup_done_s = r->o.warmup ? elapsed : 0;
    im_train_clock c = {.step = r->meta.step,
                        .total_steps = r->total_steps,
                        .elapsed_s = elapsed,
                        .total_s = r->o.minutes * 60,
                        .warmup_done_s = r->meta.warmup_done_s};
    return im_train_lr(&r->o, &c);
}

/* Runs a step. What comes of it is decided when all ranks have told what they saw. */
static im_status step(im_train_run *r, im_op_now *now)
{
    jump_skips(r);
    double lr = learning_rate(r);
    im_source source = {.arg = r, .load = load};
    im_metrics *m = &r->last;
    *now = (im_op_now){.step = r->meta.step, .sample0 = r->meta.position};
    IM_TRY(im_engine_set_hyper(r->engine, lr, r->o.clip));
    if (r->trace)
        im_observe_trace_begin(r->trace, r->meta.step + 1, 0);
    double t0 = im_clock_now();
    if (!r->summary.steps && !r->summary.first_step_s)
        r->summary.first_step_s = t0 - r->env->began;
    IM_TRY(im_engine_run(r->engine, 0, now, &source));
    IM_TRY(im_engine_metrics(r->engine, m));
    r->ran = true;
    double seconds = im_clock_now() - t0;
    if (r->trace)
        im_observe_trace_end(r->trace);
    measure_machine(r);
    tell_step(r, m, lr, seconds);
    warn_flat(r, m);
    return IM_OK;
}

static void advance(im_train_run *r)
{
    r->meta.step++;
    r->meta.position += r->o.global_batch;
    r->meta.tokens += r->o.global_batch * r->o.seq_len;
    r->meta.updates = r->last.updates;
    r->meta.last_loss = r->last.loss;
    r->summary.steps++;
    r->summary.tokens += r->o.global_batch * r->o.seq_len;
}

static bool due(int64_t every, int64_t at)
{
    return every > 0 && at % every == 0;
}

/* What hangs on the clock is seen by rank 0 and goes for all ranks; so does a signal, whichever process it came to, and what any rank saw of
 * the step that was just run, which counts as done here. */
static im_status look(im_train_run *r)
{
    double seen[5] = {0};
    im_comm_note(r->world, r->meta.step, "between steps");
    if (!r->rank) {
        seen[0] = im_train_elapsed(r);
        seen[1] = (r->total_steps && r->meta.step + r->ran >= r->total_steps) || (r->o.minutes > 0 && seen[0] >= r->o.minutes * 60);
    }
    seen[2] = r->env->stop && r->env->stop(r->env->arg);
    seen[3] = r->ran && !r->last.finite;
    seen[4] = r->ran && r->last.bad_weights;
    IM_TRY(im_engine_combine(r->engine, seen, IM_COUNT_OF(seen), IM_SUM));
    r->elapsed = seen[0];
    r->finished = seen[1] != 0;
    r->stop = seen[2] != 0;
    r->saw_nonfinite = (int)seen[3];
    r->saw_bad = (int)seen[4];
    return IM_OK;
}

/* After look(): every rank does the same. */
static im_status settle(im_train_run *r, const im_op_now *now)
{
    im_source source = {.arg = r, .load = load};
    r->ran = false;
    if (!r->saw_nonfinite && !r->saw_bad) {
        r->consecutive_bad = 0;
        advance(r);
        return IM_OK;
    }
    if (r->saw_nonfinite < r->ranks) /* some rank has updated its weights */
        IM_TRY(im_train_bad_weights(r));
    else
        IM_TRY(im_train_nonfinite_step(r, now, &source));
    if (r->saw_nonfinite == r->ranks && r->o.nonfinite == IM_TRAIN_NONFINITE_SKIP) {
        advance(r);
        return IM_OK;
    }
    return look(r); /* rolled back: the step is run again with other samples */
}

static im_status stopped(im_train_run *r)
{
    IM_TRY(im_train_save_begin(r));
    IM_TRY(im_train_measure_memory(r));
    IM_TRY(im_train_save_end(r));
    r->agreed = true;
    if (im_train_paced(r))
        return im_fail(r->ctx, IM_ERR_STOPPED, "stopped after step %" PRId64 "; with paced kernels there is nothing to save", r->meta.step);
    return im_fail(r->ctx, IM_ERR_STOPPED, "stopped after step %" PRId64 ", which is saved; go on with: imece train --resume %s", r->meta.step,
                   r->o.out);
}

/* An evaluation that a signal cut short is no error of the run. */
static im_status evaluate_or_stop(im_train_run *r)
{
    im_status status = evaluate(r);
    if (status == IM_ERR_STOPPED)
        im_error_clear(r->ctx);
    else
        IM_TRY(status);
    return look(r);
}

/* A resumed run that is at its end already. */
static void tell_reached(im_train_run *r)
{
    if (r->total_steps && r->meta.step >= r->total_steps)
        im_train_say(r, IM_TRAIN_TEXT_EVENT,
                     "nothing to do: the run is at step %" PRId64 ", and its length is %" PRId64 " steps; a larger --steps or --tokens goes on",
                     r->meta.step, r->total_steps);
    else
        im_train_say(r, IM_TRAIN_TEXT_EVENT, "nothing to do: the run has lasted %.4g minutes of its %.4g; a larger --minutes goes on",
                     r->elapsed / 60, r->o.minutes);
}

im_status im_train_loop(im_train_run *r)
{
    IM_TRY(look(r));
    if (r->finished)
        tell_reached(r);
    else if (r->total_steps && r->o.warmup > r->total_steps)
        im_train_say(r, IM_TRAIN_TEXT_WARNING,
                     "--warmup %" PRId64 " is longer than the run of %" PRId64 " steps: the learning rate rises to its end and does not reach %g",
                     r->o.warmup, r->total_steps, r->o.lr);
    if (r->valid && !r->first_step && !r->finished)
        IM_TRY(evaluate_or_stop(r));
    while (!r->finished && !r->stop) {
        int64_t before = r->meta.step;
        im_op_now now;
        IM_TRY(step(r, &now));
        IM_TRY(look(r));
        IM_TRY(settle(r, &now));
        im_train_save_reap(r, false);
        if (r->meta.step <= before || r->finished)
            continue;
        if (due(r->o.save_every, r->meta.step))
            IM_TRY(im_train_save_begin(r));
        if (due(r->o.eval_every, r->meta.step) && !r->stop)
            IM_TRY(evaluate_or_stop(r));
    }
    if (r->stop && !r->finished)
        return stopped(r);
    IM_TRY(im_train_save_begin(r));
    if (r->valid && r->eval_step != r->meta.step)
        IM_TRY(evaluate_or_stop(r));
    IM_TRY(im_train_measure_memory(r));
    return im_train_save_end(r);
}
