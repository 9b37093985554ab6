#include "observe/observe.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *im_observe_duration(char *buf, size_t size, double seconds)
{
    if (!(seconds >= 0) || seconds > 3.2e9) {
        snprintf(buf, size, "?");
        return buf;
    }
    long long s = (long long)(seconds + 0.5);
    if (seconds < 9.95)
        snprintf(buf, size, "%.1fs", seconds);
    else if (s < 60)
        snprintf(buf, size, "%llds", s);
    else if (s < 3600)
        snprintf(buf, size, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buf, size, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else
        snprintf(buf, size, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    return buf;
}

const char *im_observe_count(char *buf, size_t size, double n)
{
    static const char *const unit[] = {"", "k", "M", "G", "T"};
    size_t i = 0;
    while (fabs(n) >= 999.5 && i + 1 < IM_COUNT_OF(unit)) {
        n /= 1000;
        i++;
    }
    if (!i && n == floor(n))
        snprintf(buf, size, "%.0f", n);
    else
        snprintf(buf, size, "%.3g%s", n, unit[i]);
    return buf;
}

void im_observe_progress(const im_observe_step *s, int64_t total, double eta_s, im_str *out)
{
    char rate[32], memory[32], eta[32];
    im_str_printf(out, "step %" PRId64, s->step);
    if (total)
        im_str_printf(out, "/%" PRId64, total);
    if (s->finite && isnan(s->loss))
        im_str_append(out, " | no loss");
    else if (s->finite)
        im_str_printf(out, " | loss %.4f", s->loss);
    else
        im_str_append(out, " | loss not finite");
    im_str_printf(out, " | %s tokens/s", im_observe_count(rate, sizeof rate, s->tokens_per_s));
    if (s->mfu >= 0)
        im_str_printf(out, " | MFU %.0f %%", 100 * s->mfu);
    im_str_printf(out, " | %s", im_format_bytes(memory, sizeof memory, (double)s->rss_bytes));
    if (eta_s >= 0)
        im_str_printf(out, " | ETA %s", im_observe_duration(eta, sizeof eta, eta_s));
}

void im_observe_memory_pass(const im_observe_memory *m, void (*to)(void *arg, int rank, const im_class_bytes *classes, size_t n), void *arg)
{
    im_class_bytes classes[IM_COUNT_OF(m->by_class)];
    size_t n = 0;
    for (size_t c = 0; c < m->n; c++)
        if (m->by_class[c].predicted > 0 || m->by_class[c].measured > 0)
            classes[n++] = m->by_class[c];
    to(arg, m->rank, classes, n);
}

void im_observe_memory_text(const im_observe_memory *m, im_str *out)
{
    char a[32], b[32];
    const char *before = "";
    im_str_printf(out, "rank %d, predicted and touched: ", m->rank);
    for (size_t i = 0; i < m->n; i++) {
        const im_class_bytes *c = &m->by_class[i];
        if (!(c->predicted > 0 || c->measured > 0))
            continue;
        im_str_printf(out, "%s%s %s %s", before, c->name, im_format_bytes(a, sizeof a, c->predicted), im_format_bytes(b, sizeof b, c->measured));
        before = ", ";
    }
}

void im_observe_summary_text(const im_observe_summary *s, im_str *out)
{
    char a[32], b[32];
    im_str_printf(out, "done        %" PRId64 " steps, %s tokens in %s", s->steps, im_observe_count(a, sizeof a, (double)s->tokens),
                  im_observe_duration(b, sizeof b, s->seconds));
    im_str_printf(out, "; the first began after %s\n", im_observe_duration(a, sizeof a, s->first_step_s));
    if (s->steps > 0 && !isnan(s->first_loss))
        im_str_printf(out, "loss        %.4f -> %.4f\n", s->first_loss, s->last_loss);
    if (s->left_out)
        im_str_printf(out, "left out    %" PRId64 " step%s, not finite\n", s->left_out, s->left_out == 1 ? "" : "s");
    if (s->have_valid) {
        im_str_printf(out, "validation  %.4f", s->first_valid);
        if (s->last_valid_step > s->first_valid_step)
            im_str_printf(out, " -> %.4f", s->last_valid);
        if (s->last_bits >= 0)
            im_str_printf(out, "   bits per byte %.4f", s->first_bits);
        if (s->last_bits >= 0 && s->last_valid_step > s->first_valid_step)
            im_str_printf(out, " -> %.4f", s->last_bits);
        if (s->last_valid_step != s->end_step) /* not what the weights at the end give */
            im_str_printf(out, " (at step %" PRId64 ")", s->last_valid_step);
        im_str_append(out, "\n");
    }
    im_str_printf(out, "speed       %s tokens/s", im_observe_count(a, sizeof a, s->tokens_per_s));
    if (s->mfu >= 0)
        im_str_printf(out, ", MFU %.0f %%", 100 * s->mfu);
    im_str_printf(out, "\nmemory      predicted %s, ", im_format_bytes(a, sizeof a, (double)s->mem_predicted));
    im_str_printf(out, "measured peak %s", im_format_bytes(b, sizeof b, (double)s->mem_peak));
    if (s->mem_start)
        im_str_printf(out, ", %s of it before the run began", im_format_bytes(b, sizeof b, (double)s->mem_start));
    im_str_append(out, "\n");
    if (s->memory.n) {
        im_str_append(out, "            ");
        im_observe_memory_text(&s->memory, out);
        im_str_append(out, "\n");
    }
    im_str_printf(out, "run         %s\n", s->run);
    if (s->checkpoint)
        im_str_printf(out, "checkpoint  %s\n", s->checkpoint);
}
