/* imece plan: what is fixed, and what would have to change when nothing fits. */
#include "cli/cli_plan_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct key {
    const char *name, *choices; /* choices: separated by |; NULL: a number */
    size_t offset;
    bool large; /* int64_t */
    int64_t min, max;
} key;

#define AT(field) offsetof(im_search_fix, field)
static const key keys[] = {
    {"tp", NULL, AT(tp), false, 1, 1 << 16},
    {"dp", NULL, AT(dp), false, 1, 1 << 20},
    {"pp", NULL, AT(pp), false, 1, 64},
    {"zero", NULL, AT(zero), false, 0, 3},
    {"micro-batch", NULL, AT(micro_batch), true, 1, 1 << 24},
    {"pipeline", "gpipe|1f1b|interleaved|zb-h1|zb-h2", AT(schedule), false, 0, 0},
    {"chunks", NULL, AT(chunks), false, 1, IM_MAX_CHUNKS},
    {"sequence-parallel", "false|true", AT(sequence_parallel), false, 0, 0},
    {"recompute", "none|selective|full", AT(recompute), false, 0, 0},
    {"stages", "even|balanced", AT(stages), false, 0, 0},
    {"order", "tp-dp-pp|tp-pp-dp|dp-tp-pp|dp-pp-tp|pp-tp-dp|pp-dp-tp", AT(order), false, 0, 0},
};
#undef AT

static int choice_of(const char *choices, const char *text)
{
    int i = 0;
    for (const char *at = choices; *at; i++) {
        size_t n = strcspn(at, "|");
        if (strlen(text) == n && !strncmp(at, text, n))
            return i;
        at += n + (at[n] == '|');
    }
    return -1;
}

static im_status read_value(im_context *ctx, const key *k, const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    if (k->choices) {
        *out = choice_of(k->choices, text);
        return *out >= 0 ? IM_OK : im_fail(ctx, IM_ERR_ARG, "--fix %s=%.100s: one of %s", k->name, text, k->choices);
    }
    *out = strtoll(text, &end, 10);
    if (end == text || *end || errno || *out < k->min || *out > k->max)
        return im_fail(ctx, IM_ERR_ARG, "--fix %s=%.100s: a whole number from %lld to %lld", k->name, text, (long long)k->min, (long long)k->max);
    return IM_OK;
}

im_status im_cli_plan_fix(im_context *ctx, const char *text, im_search_fix *out)
{
    const char *names[IM_COUNT_OF(keys)];
    char name[64];
    const char *eq = strchr(text, '=');
    if (!eq || eq == text || (size_t)(eq - text) >= sizeof name)
        return im_fail(ctx, IM_ERR_ARG, "--fix %.100s: write it as tp=8", text);
    snprintf(name, sizeof name, "%.*s", (int)(eq - text), text);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    for (size_t i = 0; i < IM_COUNT_OF(keys); i++) {
        int64_t value;
        names[i] = keys[i].name;
        if (strcmp(name, keys[i].name))
            continue;
        IM_TRY(read_value(ctx, &keys[i], eq + 1, &value));
        if (keys[i].large)
            memcpy((char *)out + keys[i].offset, &value, sizeof value);
        else
            memcpy((char *)out + keys[i].offset, &(int){(int)value}, sizeof(int));
        return IM_OK;
    }
    const char *nearest = im_nearest_name(name, names, IM_COUNT_OF(keys));
    return im_fail(ctx, IM_ERR_ARG,
                   "--fix %s: there is no such part of a layout%s%s; there are tp, dp, pp, zero, micro-batch, pipeline, chunks, "
                   "sequence-parallel, recompute, stages, order",
                   name, nearest ? "; nearest: " : "", nearest ? nearest : "");
}

/* ---- what would make it fit ----------------------------------------------------------------------- */

static im_status try_it(im_context *ctx, const im_search_request *r, const char *what, im_str *out, bool *fits)
{
    im_search s;
    im_search_request q = *r;
    char need[32];
    q.top = 1;
    q.objective = IM_OBJECTIVE_MEMORY;
    IM_TRY(im_search_open(ctx, &q, &s));
    *fits = s.n > 0;
    if (*fits) {
        im_str layout = {0};
        im_cli_plan_layout_text(&s.found[0], &layout);
        im_str_printf(out, "%s: then %s takes %s\n", what, im_str_text(&layout), im_format_bytes(need, sizeof need, s.found[0].memory));
        im_str_free(&layout);
    }
    im_search_close(&s);
    return IM_OK;
}

static im_status advise_fixes(im_context *ctx, const im_search_request *r, im_str *out)
{
    const im_search_fix any = im_search_free();
    for (size_t i = 0; i < IM_COUNT_OF(keys); i++) {
        size_t n = keys[i].large ? sizeof(int64_t) : sizeof(int);
        const char *was = (const char *)&r->fix + keys[i].offset;
        im_search_request q = *r;
        char what[80];
        bool fits;
        if (!memcmp(was, (const char *)&any + keys[i].offset, n))
            continue;
        memcpy((char *)&q.fix + keys[i].offset, (const char *)&any + keys[i].offset, n);
        snprintf(what, sizeof what, "--fix %s left out", keys[i].name);
        IM_TRY(try_it(ctx, &q, what, out, &fits));
    }
    return IM_OK;
}

/* Shorter sequences, halved until they fit. */
static im_status advise_length(im_context *ctx, const im_search_request *r, im_str *out)
{
    im_search_request q = *r;
    char what[80];
    bool fits = false;
    while (!fits && (q.base.seq_len /= 2) >= 16) {
        snprintf(what, sizeof what, "sequences of %lld tokens", (long long)q.base.seq_len);
        IM_TRY(try_it(ctx, &q, what, out, &fits));
    }
    return IM_OK;
}

/* More of the same devices, doubled until they are enough: nodes, or devices of the only node. */
static im_status advise_devices(im_context *ctx, const im_search_request *r, im_str *out)
{
    im_search_request q = *r;
    im_cluster more = *r->cluster;
    char what[80];
    bool fits = false;
    q.cluster = &more;
    q.fix.dp = -1; /* as many replicas as there are devices for */
    while (!fits && q.devices <= 1 << 13) {
        q.devices *= 2;
        if (q.devices > im_cluster_devices(&more)) {
            if (more.network.kind == IM_NETWORK_NONE)
                return IM_OK; /* one box: what a second one would be joined by is not known */
            more.nodes = (q.devices + more.devices_per_node - 1) / more.devices_per_node;
            im_cluster_level *top = &more.network.level[more.network.nlevel - 1]; /* joins all nodes */
            top->nodes = top->nodes > more.nodes ? top->nodes : more.nodes;
        }
        snprintf(what, sizeof what, "%d devices%s", q.devices, r->fix.dp >= 0 ? ", dp as they allow" : "");
        IM_TRY(try_it(ctx, &q, what, out, &fits));
    }
    return IM_OK;
}

static int64_t fixed_or(int fixed, int64_t otherwise)
{
    return fixed > 0 ? fixed : otherwise;
}

/* The most devices, up to what was asked for, that some tp x pp x dp is: tp as the heads allow, pp up to the blocks, dp up to the sequences. When what is
 * fixed has more than were asked for, that many. */
static im_status advise_count(im_context *ctx, const im_search_request *r, im_str *out)
{
    const im_arch *a = &r->base.model->arch;
    const im_search_fix *x = &r->fix;
    im_context *scratch;
    int64_t most = 0;
    IM_TRY(im_context_create(&scratch));
    for (int64_t tp = fixed_or(x->tp, 1); tp <= fixed_or(x->tp, a->H) && tp <= r->devices; tp++) {
        im_error_clear(scratch);
        if (im_share_check(scratch, r->base.model, (int)tp) != IM_OK)
            continue;
        for (int64_t pp = fixed_or(x->pp, 1); pp <= fixed_or(x->pp, a->L) && tp * pp <= r->devices; pp++) {
            int64_t dp = fixed_or(x->dp, r->devices / (tp * pp));
            dp = dp > r->base.global_batch ? r->base.global_batch : dp;
            most = tp * pp * dp <= r->devices && tp * pp * dp > most ? tp * pp * dp : most;
        }
    }
    im_context_destroy(scratch);
    if (!most)
        most = fixed_or(x->tp, 1) * fixed_or(x->pp, 1) * fixed_or(x->dp, 1);
    if (most == r->devices || most > im_cluster_devices(r->cluster))
        return IM_OK;
    im_search_request q = *r;
    char what[80];
    bool fits;
    q.devices = (int)most;
    snprintf(what, sizeof what, "%d devices", q.devices);
    return try_it(ctx, &q, what, out, &fits);
}

im_status im_cli_plan_advise(im_context *ctx, const im_search_request *r, bool memory, im_str *out)
{
    bool fits;
    im_search_request q = *r;
    IM_TRY(advise_fixes(ctx, r, out));
    if (!memory)
        return advise_count(ctx, r, out);
    if (r->base.precision == IM_F32 && r->cluster->device.peak[IM_NUMBER_BF16] > 0) {
        q.base.precision = IM_BF16;
        IM_TRY(try_it(ctx, &q, "precision bf16", out, &fits));
    }
    IM_TRY(advise_length(ctx, r, out));
    return advise_devices(ctx, r, out);
}
