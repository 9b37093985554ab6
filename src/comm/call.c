/* call: what was called, in numbers that can be compared and in words. */
#include "comm/backend.h"

#include <stdio.h>
#include <string.h>

enum { MOST_TOLD = 4096 }; /* ranks that a message can name */

void im_comm_sign(const im_comm *c, const im_comm_call *call, im_comm_signature *out)
{
    im_comm_signature s = {.seq = call->seq, .count = call->count, .op = (uint32_t)call->op, .dtype = (uint32_t)call->dtype, .peer = call->peer};
    if (call->op == IM_COMM_ALL_REDUCE || call->op == IM_COMM_REDUCE_SCATTER)
        s.reduce = (uint32_t)call->reduce;
    if (call->counts) {
        s.ncounts = (uint32_t)c->size;
        s.counts_hash = im_hash64(call->counts, sizeof *call->counts * (size_t)c->size, 0);
        for (int i = 0; i < c->size && i < IM_COMM_TOLD_COUNTS; i++)
            s.counts[i] = call->counts[i];
    }
    *out = s;
}

bool im_comm_same(const im_comm_signature *a, const im_comm_signature *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->reduce == b->reduce && a->peer == b->peer && a->count == b->count &&
           a->counts_hash == b->counts_hash && a->seq == b->seq;
}

void im_comm_describe(const im_comm_signature *s, char *text, size_t size)
{
    static const char *const reduce[] = {" sum", " max", " min"};
    im_comm_op op = (im_comm_op)s->op;
    char counts[256] = "", peer[32] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < s->ncounts && i < IM_COMM_TOLD_COUNTS && at < sizeof counts; i++)
        at += (size_t)snprintf(counts + at, sizeof counts - at, "%s%llu", i ? " " : " (", (unsigned long long)s->counts[i]);
    if (s->ncounts && at < sizeof counts)
        snprintf(counts + at, sizeof counts - at, "%s", s->ncounts > IM_COMM_TOLD_COUNTS ? " ...)" : ")");
    if (op == IM_COMM_BROADCAST)
        snprintf(peer, sizeof peer, " from root %d", s->peer);
    bool reduces = op == IM_COMM_ALL_REDUCE || op == IM_COMM_REDUCE_SCATTER;
    if (op == IM_COMM_BARRIER)
        snprintf(text, size, "%s", im_comm_op_name(op));
    else
        snprintf(text, size, "%s of %llu x %s%s%s%s", im_comm_op_name(op), (unsigned long long)s->count, im_dtype_name((im_dtype)s->dtype), counts,
                 reduces && s->reduce < IM_COUNT_OF(reduce) ? reduce[s->reduce] : "", peer);
}

void im_comm_rank_list(const im_comm *c, const bool *yes, im_str *out)
{
    bool first = true;
    for (int i = 0; i < c->size; i++) {
        if (yes && !yes[i])
            continue;
        int last = i; /* a run of ranks that follow one another */
        while (last + 1 < c->size && (!yes || yes[last + 1]) && c->members[last + 1] == c->members[last] + 1)
            last++;
        im_str_printf(out, last > i + 1 ? "%s%d-%d" : "%s%d", first ? "" : " ", c->members[i], c->members[last]);
        if (last > i + 1)
            i = last;
        first = false;
    }
}

static void name_group(const im_comm *c, im_str *out)
{
    im_str_append(out, "group [");
    im_comm_rank_list(c, NULL, out);
    im_str_append(out, "]");
}

im_status im_comm_fail_mismatch(im_comm *c, const im_comm_signature *sig)
{
    im_str text = {0};
    bool told[MOST_TOLD] = {false}, same[MOST_TOLD] = {false};
    int n = c->size < MOST_TOLD ? c->size : MOST_TOLD;
    im_str_printf(&text, "operation %llu of ", (unsigned long long)sig[c->rank].seq);
    name_group(c, &text);
    im_str_append(&text, " differs among its ranks:");
    const char *separator = " ";
    for (int i = 0; i < n; i++) {
        if (told[i])
            continue;
        char what[384];
        for (int k = 0; k < n; k++) {
            same[k] = im_comm_same(&sig[i], &sig[k]);
            told[k] |= same[k];
        }
        im_comm_describe(&sig[i], what, sizeof what);
        im_str_printf(&text, "%srank ", separator);
        im_comm_rank_list(c, same, &text);
        im_str_printf(&text, " called %s", what);
        separator = "; ";
    }
    im_status s = im_fail(c->ctx, IM_ERR_ARG, "%s", im_str_text(&text));
    im_str_free(&text);
    return s;
}

/* " not arrived: rank 2; arrived: rank 0 1" */
static void name_missing(const im_comm *c, const bool *arrived, im_str *out)
{
    bool missing[MOST_TOLD] = {false}, any = false, all = true;
    for (int i = 0; i < c->size && i < MOST_TOLD; i++) {
        missing[i] = !arrived[i];
        any |= missing[i];
        all &= missing[i];
    }
    if (!any) {
        im_str_append(out, "all ranks arrived, not all finished");
        return;
    }
    im_str_append(out, "not arrived: rank ");
    im_comm_rank_list(c, missing, out);
    im_str_append(out, all ? "; arrived: none" : "; arrived: rank ");
    im_comm_rank_list(c, arrived, out);
}

im_status im_comm_fail_late(im_comm *c, const im_comm_call *call, double seconds, const bool *arrived)
{
    im_str text = {0};
    im_comm_signature sig;
    char what[384];
    bool message = call->op == IM_COMM_SEND || call->op == IM_COMM_RECV;
    im_comm_sign(c, call, &sig);
    im_comm_describe(&sig, what, sizeof what);
    if (message)
        im_str_printf(&text, "%s %s rank %d, message %llu in ", what, call->op == IM_COMM_SEND ? "to" : "from", c->members[call->peer],
                      (unsigned long long)call->seq);
    else
        im_str_printf(&text, "%s, operation %llu of ", what, (unsigned long long)call->seq);
    name_group(c, &text);
    im_str_printf(&text, ", was not over after %.3g s: ", seconds);
    if (message)
        im_str_printf(&text, "rank %d has not come to its %s", c->members[call->peer], call->op == IM_COMM_SEND ? "recv" : "send");
    else
        name_missing(c, arrived, &text);
    im_status s = im_fail(c->ctx, IM_ERR_TIMEOUT, "%s", im_str_text(&text));
    im_str_free(&text);
    return s;
}

im_status im_comm_fail_message(im_comm *c, int from, int to, const im_comm_signature *sent, const im_comm_signature *expected)
{
    return im_fail(c->ctx, IM_ERR_ARG, "message %llu from rank %d to rank %d differs: sent were %llu x %s, expected are %llu x %s",
                   (unsigned long long)sent->seq, c->members[from], c->members[to], (unsigned long long)sent->count,
                   im_dtype_name((im_dtype)sent->dtype), (unsigned long long)expected->count, im_dtype_name((im_dtype)expected->dtype));
}

void im_comm_copy(const im_comm_call *call)
{
    if (call->out.nbytes && call->dst != call->src)
        memcpy(call->dst, call->src, call->out.nbytes);
}
