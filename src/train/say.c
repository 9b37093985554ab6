#include "train/internal.h"

#include "checkpoint/session.h"
#include "tensor/kind.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* logs/rank-0.log: each line with its time. Progress is not written there: metrics.jsonl has it. */
void im_train_log_lines(const im_train_run *r, const char *text)
{
    char stamp[40];
    time_t now = time(NULL);
    struct tm tm;
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S ", localtime_r(&now, &tm));
    im_str out = {0};
    while (*text) {
        size_t n = strcspn(text, "\n");
        im_str_append(&out, stamp);
        im_str_append_n(&out, text, n);
        im_str_append(&out, "\n");
        text += n + (text[n] == '\n');
    }
    if (!out.failed && out.len) {
        ssize_t ignored = write(r->log_fd, out.data, out.len); /* a full disk is told by the save, not by the log */
        (void)ignored;
    }
    im_str_free(&out);
}

void im_train_say(im_train_run *r, im_train_text kind, const char *fmt, ...)
{
    im_str text = {0};
    va_list ap;
    va_start(ap, fmt);
    im_str_vprintf(&text, fmt, ap);
    va_end(ap);
    if (r->env->text)
        r->env->text(r->env->arg, kind, im_str_text(&text));
    if (r->log_fd >= 0 && kind != IM_TRAIN_TEXT_PROGRESS && kind != IM_TRAIN_TEXT_JSON)
        im_train_log_lines(r, im_str_text(&text));
    im_str_free(&text);
}

void im_train_isa(const im_device *d, char *out, size_t size)
{
    const im_device_config *c = im_device_config_of(d);
    snprintf(out, size, "%s, %s kernels", im_isa_name(im_cpu_isa()),
             c->kernels == IM_KERNELS_PLAIN   ? "plain"
             : c->kernels == IM_KERNELS_PACED ? "paced"
                                              : "fast");
}

/* ---- the plan before the run --------------------------------------------------------- */

static void say_model(const im_train_run *r, im_str *out)
{
    char n[32];
    im_str_printf(out, "model       %s, %s parameters (%s)\n", r->model->family,
                  im_observe_count(n, sizeof n, (double)im_model_param_count(r->model)), r->o.model);
    if (r->from[0])
        im_str_printf(out, "resumed     %s: step %" PRId64 "\n", r->from, r->meta.step);
    else
        im_str_printf(out, "weights     %s\n",
                      r->o.init == IM_TRAIN_INIT_AUTO && im_checkpoint_has_weights(r->model->dir) ? r->model->dir : "drawn at random");
}

static void say_valid(const im_train_run *r, im_str *out)
{
    char a[32], b[32];
    double targets = 0, all = (double)im_feed_tokens(r->valid);
    int64_t samples = 0;
    for (int p = 0; p < r->eval.nparts; p++) {
        targets += (double)(r->eval.part[p].samples * r->eval.part[p].seq_len);
        samples += r->eval.part[p].samples;
    }
    im_str_printf(out, "validation  %s: %s%s tokens", r->o.valid ? r->o.valid : r->o.data, r->o.valid ? "" : "the last documents, ",
                  im_observe_count(a, sizeof a, all));
    if (im_feed_pack(r->valid) == IM_PACK_STREAM ? targets < all - 1 : samples < im_feed_samples(r->valid))
        im_str_printf(out, ", the first %s of them each time (--eval-batches)", im_observe_count(b, sizeof b, targets));
    im_str_append(out, "\n");
}

/* A line for each source of a blend: how often the run reads it. */
static void say_sources(const im_train_run *r, im_str *out)
{
    char a[32];
    for (size_t i = 0; i < im_feed_sources(r->data) && im_feed_sources(r->data) > 1; i++) {
        im_feed_source s = im_feed_source_of(r->data, i);
        im_str_printf(out, "            %5.2f %%  %s", 100 * s.share, s.name);
        if (s.files > 1)
            im_str_printf(out, " and %zu more", s.files - 1);
        im_str_printf(out, ": %s tokens", im_observe_count(a, sizeof a, (double)s.tokens));
        if (r->total_steps)
            im_str_printf(out, ", %.3g epochs", (double)r->total_steps * (double)r->o.global_batch * s.share / (double)s.samples);
        im_str_append(out, "\n");
    }
}

static void say_data(const im_train_run *r, im_str *out)
{
    static const char *const orders[] = {"sequential", "shuffled"};
    static const char *const packs[] = {"", "", ", whole documents packed", ", a document each"};
    char a[32], b[32];
    im_str_printf(out, "data        %s: %s tokens, %s samples of %" PRId64 "%s, %s", r->o.data,
                  im_observe_count(a, sizeof a, (double)im_feed_tokens(r->data)), im_observe_count(b, sizeof b, (double)im_feed_samples(r->data)),
                  r->o.seq_len, packs[im_feed_pack(r->data)], orders[r->o.order]);
    if (im_feed_documents(r->data))
        im_str_append(out, "; attention within documents");
    for (size_t i = 0, any = 0; i < im_feed_sources(r->data); i++)
        if (im_feed_source_of(r->data, i).masked && !any++)
            im_str_append(out, "; the loss of part of the tokens counts (mask)");
    im_str_append(out, "\n");
    say_sources(r, out);
    if (r->valid)
        say_valid(r, out);
}

static void say_length(const im_train_run *r, im_str *out)
{
    char a[32];
    const char *sep = "";
    int n = im_plan_micro_batches(&r->plan, 0);
    im_str_printf(out, "batch       %" PRId64 " sequences = %s tokens a step", r->o.global_batch,
                  im_observe_count(a, sizeof a, (double)(r->o.global_batch * r->o.seq_len)));
    if (n > 1)
        im_str_printf(out, ", in %d micro-batches of at most %" PRId64, n, r->plan.micro_batch);
    im_str_append(out, "\nlength      ");
    if (r->total_steps) {
        double tokens = (double)r->total_steps * (double)(r->o.global_batch * r->o.seq_len);
        im_str_printf(out, "%" PRId64 " steps, %s tokens", r->total_steps, im_observe_count(a, sizeof a, tokens));
        if (im_feed_sources(r->data) == 1) /* those of a blend are told with each source */
            im_str_printf(out, ", %.3g epochs", (double)r->total_steps * (double)r->o.global_batch / (double)im_feed_samples(r->data));
        sep = "; ";
    }
    if (r->o.minutes > 0)
        im_str_printf(out, "%s%g minutes", sep, r->o.minutes);
    im_str_append(out, "\n");
}

/* ", blocks 8+8+6": of the stages, chunk by chunk. */
static void say_stages(const im_plan *p, im_str *out)
{
    int *of = calloc(p->model->nunit, sizeof *of);
    if (!of)
        return;
    im_plan_virtual_stages(p, of);
    for (int s = 0; s < p->mesh.pp * im_plan_chunks(p); s++) {
        int n = 0;
        for (size_t u = 1; u + 1 < p->model->nunit; u++)
            n += of[u] == s;
        im_str_printf(out, "%s%d", s ? "+" : ", blocks ", n);
    }
    free(of);
}

static void say_layout(const im_train_run *r, im_str *out)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    const im_plan *p = &r->plan;
    if (r->ranks == 1 && !p->zero && !p->recompute)
        return;
    im_str_printf(out, "layout      tp %d x dp %d x pp %d", p->mesh.tp, p->mesh.dp, p->mesh.pp);
    if (p->zero)
        im_str_printf(out, ", ZeRO %d", p->zero);
    if (p->sequence_parallel)
        im_str_append(out, ", sequence parallel");
    if (p->mesh.pp > 1 || im_plan_chunks(p) > 1)
        im_str_printf(out, ", %s", im_schedule_of(p->schedule)->name);
    if (im_plan_chunks(p) > 1)
        im_str_printf(out, " with %d chunks", im_plan_chunks(p));
    if (p->mesh.pp > 1)
        say_stages(p, out);
    if (p->recompute)
        im_str_printf(out, ", recompute %s", recompute[p->recompute]);
    im_str_append(out, "\n");
}

static void say_machine(const im_train_run *r, im_str *out)
{
    static const char *const names[] = {[IM_KERNELS_FAST] = "fast", [IM_KERNELS_PLAIN] = "plain", [IM_KERNELS_PACED] = "paced"};
    const char *kernels = names[r->o.kernels];
    if (r->ranks == 1)
        im_str_printf(out, "machine     %d threads, %s kernels\n", r->plan.threads, kernels);
    else
        im_str_printf(out, "machine     %d rank%s %s, each of %d thread%s; %d usable cores; %s kernels\n", r->ranks_here,
                      r->ranks_here == 1 ? "" : "s", r->env->mpi ? "on this machine, each a process" : "in this process", r->plan.threads,
                      r->plan.threads == 1 ? "" : "s", r->env->mpi ? im_comm_mpi_where(r->env->mpi).cores : im_machine_cores(), kernels);
    if (im_train_paced(r))
        im_str_printf(out, "paced       %.4g GFLOP/s and %.4g GB/s a rank: operations sleep and compute nothing; no loss, nothing is saved\n",
                      r->pace.flops / 1e9, r->pace.bytes / 1e9);
}

void im_train_plan_text(const im_train_run *r, im_str *out)
{
    static const char *const schedules[] = {"constant", "linear", "cosine", "wsd"};
    char a[32], b[32];
    say_model(r, out);
    say_data(r, out);
    say_length(r, out);
    im_str_printf(out, "optimizer   AdamW, lr %g (%s", r->o.lr, schedules[r->o.schedule]);
    if (r->o.schedule != IM_TRAIN_CONSTANT)
        im_str_printf(out, " to %g", r->o.min_lr);
    if (r->o.warmup)
        im_str_printf(out, ", warmup %" PRId64, r->o.warmup);
    im_str_printf(out, "), weight decay %g, clip %g; %s\n", r->o.weight_decay, r->o.clip, im_dtype_name(r->plan.precision));
    say_layout(r, out);
    im_str_append(out, "memory      ");
    if (r->ranks > 1)
        im_str_printf(out, "rank %d, the largest: ", r->heaviest);
    for (int c = 0, any = 0; c < IM_CLASS_COUNT; c++)
        if (r->predicted.by_class[c] && r->predicted.by_class[c] >= r->predicted.total / 200)
            im_str_printf(out, "%s%s %s", any++ ? " + " : "", im_class_name((im_class)c),
                          im_format_bytes(a, sizeof a, (double)r->predicted.by_class[c]));
    im_str_printf(out, " = %s", im_format_bytes(a, sizeof a, (double)r->predicted.total));
    if (r->ranks > 1)
        im_str_printf(out, "; all %d: %s", r->ranks, im_format_bytes(a, sizeof a, (double)r->predicted_all));
    im_str_printf(out, " of %s\n", im_format_bytes(b, sizeof b, (double)im_machine_memory()));
    say_machine(r, out);
}
