/* perftest's output, and the tournament. */
#include "fabric/perftest.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- output ------------------------------------------------------------------------------------- */

static const char *next_line(const char *p)
{
    p = strchr(p, '\n');
    return p ? p + 1 : NULL;
}

static bool has(const char *line, size_t len, const char *what)
{
    const size_t n = strlen(what);
    for (size_t i = 0; i + n <= len; i++)
        if (strncmp(line + i, what, n) == 0)
            return true;
    return false;
}

/* Numbers of a row, 12 at most; 0 where the first word is none. */
static int numbers(const char *line, size_t len, double *out)
{
    int n = 0;
    const char *p = line, *end = line + len;
    while (n < 12) {
        while (p < end && isspace((unsigned char)*p))
            p++;
        if (p >= end || !isdigit((unsigned char)*p))
            return n;
        char *stop;
        out[n++] = strtod(p, &stop);
        if (stop > end)
            return n - 1;
        p = stop;
    }
    return n;
}

typedef struct columns {
    bool latency, duration, gbits, sl;
} columns;

static void read_header(const char *line, size_t len, columns *c)
{
    *c = (columns){.latency = has(line, len, "[usec]"), .gbits = has(line, len, "Gb/sec"), .sl = has(line, len, "#sl")};
    c->duration = c->latency && has(line, len, "tps");
}

static void read_row(const double *v, int n, const columns *c, im_perf *out)
{
    const double unit = c->gbits ? 1 : 1048576.0 * 8 / 1e9; /* MiB/s to Gb/s */
    const int at = c->sl ? 3 : 2;                           /* behind size and iterations */
    if (n < at + 1 || v[0] < (double)out->bytes)
        return;
    out->latency = c->latency;
    if (c->latency) {
        out->typical_us = c->duration ? v[at] : n > at + 2 ? v[at + 2] : v[at];
        out->p99_us = !c->duration && n > at + 5 ? v[at + 5] : 0;
        out->known = out->typical_us > 0;
    } else if (n > at + 1) {
        out->peak_gbps = v[at] * unit;
        out->gbps = v[at + 1] * unit;
        out->known = true;
    }
    out->bytes = v[0] < 1e18 ? (uint64_t)v[0] : 0;
}

static void read_banner(const char *line, size_t len, im_perf *out)
{
    const char *colon = memchr(line, ':', len);
    if (!colon)
        return;
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (has(line, (size_t)(colon - line), "Mtu"))
        out->mtu = atoi(value);
    else if (has(line, (size_t)(colon - line), "Link type"))
        out->ethernet = strncmp(value, "Ethernet", 8) == 0;
}

static bool tells_an_error(const char *line, size_t len)
{
    static const char *const words[] = {"Unable to", "Couldn't", "Failed",  "failed",   "not found",
                                        "error",     "Invalid",  "refused", "No route", "Permission"};
    for (size_t i = 0; i < IM_COUNT_OF(words); i++)
        if (has(line, len, words[i]))
            return true;
    return false;
}

void im_perf_parse(const char *text, im_perf *out)
{
    columns c = {0};
    bool in_table = false;
    *out = (im_perf){0};
    for (const char *p = text; p && *p; p = next_line(p)) {
        const size_t blank = strspn(p, " \t"), len = strcspn(p, "\n");
        double v[12];
        if (blank < len && strncmp(p + blank, "#bytes", 6) == 0) {
            in_table = true;
            read_header(p, len, &c);
        } else if (strncmp(p, "-----", 5) == 0) {
            in_table = false;
        } else if (in_table) {
            const int n = numbers(p, len, v);
            if (n)
                read_row(v, n, &c, out);
        } else {
            read_banner(p, len, out);
        }
        if (!*out->error && !in_table && tells_an_error(p, len))
            snprintf(out->error, sizeof out->error, "%.*s", (int)(len - blank > 150 ? 150 : len - blank), p + blank);
        out->not_listening = out->not_listening || has(p, len, "Couldn't connect") || has(p, len, "Connection refused");
    }
    if (out->known)
        out->error[0] = '\0';
}

double im_perf_expected(double data_gbps, int mtu, bool ethernet)
{
    const double m = mtu > 0 ? mtu : 4096;
    return data_gbps * m / (m + (ethernet ? 82 : 26));
}

/* ---- tournament -------------------------------------------------------------------------------------- */

size_t im_perf_rounds(size_t n)
{
    return n < 2 ? 0 : n % 2 ? n : n - 1;
}

/* One host stays, the others turn by one place each round; with an odd number the place of a ghost gives a rest. */
size_t im_perf_round(size_t n, size_t r, size_t *a, size_t *b)
{
    const size_t even = n + n % 2, turn = even - 1;
    size_t pairs = 0;
    for (size_t i = 0; n > 1 && i < even / 2; i++) {
        const size_t x = i == 0 ? even - 1 : (r + i) % turn, y = i == 0 ? r % turn : (r + turn - i) % turn;
        if (x >= n || y >= n)
            continue;
        a[pairs] = x < y ? x : y;
        b[pairs++] = x < y ? y : x;
    }
    return pairs;
}

typedef struct judge {
    const im_perf_match *m;
    size_t n, hosts, rails;
    double least;
    bool *blamed; /* [rails][hosts] */
    im_perf_blame *out;
    size_t nout;
} judge;

static bool is_slow(const judge *j, const im_perf_match *m)
{
    return m->share >= 0 && m->share < j->least;
}

/* Matches of a host on a rail with hosts that are not blamed. */
static im_perf_blame look_at(const judge *j, size_t host, size_t rail)
{
    im_perf_blame x = {.who = IM_PERF_HOST_RAIL, .host = host, .rail = rail, .worst = 1e9};
    size_t sent_slow = 0, got_slow = 0, sent = 0, got = 0;
    for (size_t i = 0; i < j->n; i++) {
        const im_perf_match *m = &j->m[i];
        const bool from = m->from == host, to = m->to == host;
        const size_t other = from ? m->to : m->from;
        if (m->rail != rail || m->share < 0 || (!from && !to) || j->blamed[rail * j->hosts + other])
            continue;
        x.matches++;
        sent += from;
        got += to;
        if (m->share < x.worst)
            x.worst = m->share;
        if (is_slow(j, m)) {
            x.slow++;
            sent_slow += from;
            got_slow += to;
        }
    }
    x.direction = sent_slow && !got_slow && got ? 1 : got_slow && !sent_slow && sent ? -1 : 0;
    return x;
}

/* How many other hosts it is slow with, and how many it met, of those that are not blamed. */
static void partners(const judge *j, size_t host, size_t rail, size_t *slow, size_t *met)
{
    *slow = *met = 0;
    for (size_t other = 0; other < j->hosts; other++) {
        bool any = false, bad = false;
        if (other == host || j->blamed[rail * j->hosts + other])
            continue;
        for (size_t i = 0; i < j->n; i++) {
            const im_perf_match *m = &j->m[i];
            const bool mine = (m->from == host && m->to == other) || (m->from == other && m->to == host);
            any = any || (mine && m->rail == rail && m->share >= 0);
            bad = bad || (mine && m->rail == rail && is_slow(j, m));
        }
        *met += any;
        *slow += bad;
    }
}

static void blame_hosts(judge *j, size_t rail)
{
    for (;;) {
        size_t best = j->hosts, most = 1;
        for (size_t h = 0; h < j->hosts; h++) {
            size_t slow, met;
            if (j->blamed[rail * j->hosts + h])
                continue;
            partners(j, h, rail, &slow, &met);
            if (slow > most && 4 * slow >= 3 * met) {
                most = slow;
                best = h;
            }
        }
        if (best == j->hosts)
            return;
        j->out[j->nout++] = look_at(j, best, rail);
        j->blamed[rail * j->hosts + best] = true;
    }
}

static void blame_paths(judge *j, size_t rail)
{
    for (size_t i = 0; i < j->n; i++) {
        const im_perf_match *m = &j->m[i];
        if (m->rail != rail || !is_slow(j, m) || j->blamed[rail * j->hosts + m->from] || j->blamed[rail * j->hosts + m->to])
            continue;
        im_perf_blame *x = NULL;
        for (size_t k = 0; k < j->nout && !x; k++)
            if (j->out[k].who >= IM_PERF_PATH && j->out[k].rail == rail && j->out[k].host == m->to && j->out[k].other == m->from)
                x = &j->out[k];
        if (x) { /* the other direction too */
            x->direction = 0;
            x->slow++;
            x->worst = m->share < x->worst ? m->share : x->worst;
            continue;
        }
        size_t slow, met, slow2, met2;
        partners(j, m->from, rail, &slow, &met);
        partners(j, m->to, rail, &slow2, &met2);
        j->out[j->nout++] = (im_perf_blame){.who = met > 1 && met2 > 1 ? IM_PERF_PATH : IM_PERF_PAIR,
                                            .host = m->from,
                                            .other = m->to,
                                            .rail = rail,
                                            .direction = 1,
                                            .worst = m->share,
                                            .slow = 1,
                                            .matches = 2};
    }
}

/* A host that is to blame on each rail that it has matches on, of two or more: one finding. */
static void join_rails(judge *j)
{
    for (size_t h = 0; h < j->hosts && j->rails > 1; h++) {
        size_t on = 0, kept = 0;
        double worst = 1e9;
        for (size_t r = 0; r < j->rails; r++)
            on += j->blamed[r * j->hosts + h];
        if (on < j->rails)
            continue;
        for (size_t i = 0; i < j->nout; i++) {
            if (j->out[i].who == IM_PERF_HOST_RAIL && j->out[i].host == h) {
                worst = j->out[i].worst < worst ? j->out[i].worst : worst;
                if (j->out[i].rail)
                    continue;
                j->out[i].who = IM_PERF_HOST;
            }
            j->out[kept++] = j->out[i];
        }
        j->nout = kept;
        for (size_t i = 0; i < j->nout; i++)
            if (j->out[i].who == IM_PERF_HOST && j->out[i].host == h)
                j->out[i].worst = worst;
    }
}

im_status im_perf_judge(im_context *ctx, im_arena *a, const im_perf_match *m, size_t nmatches, size_t hosts, size_t rails, double least,
                        im_perf_blame **out, size_t *n)
{
    judge j = {.m = m, .n = nmatches, .hosts = hosts, .rails = rails, .least = least};
    j.blamed = IM_ARENA_NEW(a, bool, hosts *rails + 1);
    j.out = IM_ARENA_NEW(a, im_perf_blame, hosts * rails + nmatches + 1);
    if (!j.blamed || !j.out)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory to judge %zu matches", nmatches);
    for (size_t r = 0; r < rails; r++) {
        blame_hosts(&j, r);
        blame_paths(&j, r);
    }
    join_rails(&j);
    *out = j.out;
    *n = j.nout;
    return IM_OK;
}
