/* imece fabric check --bandwidth: ib_write_bw and ib_read_lat of perftest between all pairs of hosts, rail by rail. */
#include "cli/cli_fabric_check.h"
#include "cli/cli_fabric_jobs.h"
#include "fabric/perftest.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIRST_PORT = 18515, TRIES = 50, MOST_RAILS = 16 };

/* One rail of one host. */
typedef struct rail {
    const im_rdma_device *d;
    const im_rdma_port *p;
    int gid; /* -1: none is named (InfiniBand) */
} rail;

typedef struct tournament {
    im_cli *cli;
    const check_options *o;
    const im_check_host *host;
    const char *const *name; /* to reach it; NULL: this machine */
    size_t n, rails;
    rail *rail; /* [n][rails] */
    im_perf_match *match;
    im_perf *latency;
    size_t nmatches;
    im_check_result *bandwidth, *lat;
} tournament;

static const char *address_of(const tournament *t, size_t h)
{
    return t->name[h] ? t->name[h] : t->host[h].name;
}

static const rail *rail_of(const tournament *t, size_t h, size_t r)
{
    return &t->rail[h * t->rails + r];
}

static void add_rails(const im_check_host *h, const im_rdma_device *d, rail *out, size_t most, size_t *n)
{
    for (size_t k = 0; d && k < d->nports && *n < most; k++) {
        const im_rdma_port *p = &d->port[k];
        const im_env_port *f = im_check_facts(h, d, p);
        if (im_port_is_active(p))
            out[(*n)++] = (rail){.d = d, .p = p, .gid = p->ethernet && f ? im_env_nccl_gid(f, false, 2) : -1};
    }
}

/* The NICs for training; a machine whose devices are software alone (rxe, siw): those. */
static void find_rails(const im_check_host *h, rail *out, size_t most, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < h->pairing.nrails; i++)
        add_rails(h, im_machine_rdma(h->m, h->pairing.rail[i]->name), out, most, n);
    for (size_t i = 0; i < h->m->nrdma && !h->pairing.nrails; i++)
        add_rails(h, &h->m->rdma[i], out, most, n);
}

/* The command of one side; to NULL: the server. */
static char **command(const tournament *t, const char *program, size_t h, size_t r, int port, const char *to)
{
    im_arena *a = t->cli->arena;
    const rail *x = rail_of(t, h, r);
    const bool bw = strcmp(program, "ib_write_bw") == 0;
    char *argv[24];
    size_t n = 0;
    argv[n++] = im_arena_strdup(a, program);
    argv[n++] = "-d";
    argv[n++] = im_arena_strdup(a, x->d->name);
    argv[n++] = "-i";
    argv[n++] = im_arena_printf(a, "%d", x->p->number);
    if (x->gid >= 0) {
        argv[n++] = "-x";
        argv[n++] = im_arena_printf(a, "%d", x->gid);
    }
    argv[n++] = "-F";
    argv[n++] = "-p";
    argv[n++] = im_arena_printf(a, "%d", port);
    if (bw) {
        argv[n++] = "--report_gbits";
        argv[n++] = "-s";
        argv[n++] = im_arena_printf(a, "%lld", (long long)t->o->size);
    }
    argv[n++] = bw && t->o->seconds > 0 ? "-D" : "-n";
    argv[n++] = bw && t->o->seconds > 0 ? im_arena_printf(a, "%lld", (long long)t->o->seconds) : "1000";
    if (to)
        argv[n++] = im_arena_strdup(a, to);
    argv[n] = NULL;
    return im_cli_via(a, t->name[h] ? t->o->via : "", address_of(t, h), argv);
}

/* from sends to `to`. A server on `to`, then clients on `from` until one finds it listening. */
static im_status play(tournament *t, const char *program, size_t from, size_t to, size_t r, int port, im_perf *out)
{
    im_context *ctx = t->cli->ctx;
    im_cli_job job[2]; /* client, server */
    const double most = 30 + 2 * (double)t->o->seconds;
    char **server = command(t, program, to, r, port, NULL), **client = command(t, program, from, r, port, address_of(t, to));
    if (!server || !client)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a command");
    IM_TRY(im_cli_job_start(ctx, server, IM_CLI_STDERR_MERGE, &job[1]));
    im_status status = IM_OK;
    for (int i = 0; i < TRIES && status == IM_OK && !im_cli_signal(); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000L}, NULL);
        status = im_cli_job_start(ctx, client, IM_CLI_STDERR_MERGE, &job[0]);
        if (status != IM_OK)
            break;
        im_cli_jobs_finish(job, 1, 1, most);
        im_perf_parse(im_str_text(&job[0].out), out);
        if (!job[0].started)
            snprintf(out->error, sizeof out->error, "%.60s is not there (package perftest)", program);
        else if (!out->known && job[0].late)
            snprintf(out->error, sizeof out->error, "no result in %.0f s", most);
        else if (!out->known && !*out->error)
            snprintf(out->error, sizeof out->error, "no result (exit code %d)", job[0].code);
        im_cli_job_free(&job[0]);
        if (!out->not_listening || out->known)
            break;
    }
    im_cli_jobs_finish(&job[1], 1, out->known ? 1 : 0, out->known ? 5 : 0);
    im_cli_job_free(&job[1]);
    return status;
}

static double expected(const tournament *t, size_t a, size_t b, size_t r, const im_perf *got)
{
    const rail *x = rail_of(t, a, r), *y = rail_of(t, b, r);
    const double gbps = x->p->rate.data_gbps < y->p->rate.data_gbps ? x->p->rate.data_gbps : y->p->rate.data_gbps;
    int mtu = x->p->mtu_active && x->p->mtu_active < y->p->mtu_active ? x->p->mtu_active : y->p->mtu_active;
    if (got->mtu)
        mtu = got->mtu; /* what the connection got */
    return im_perf_expected(gbps, mtu, x->p->ethernet);
}

static im_status one_match(tournament *t, size_t from, size_t to, size_t r, int port)
{
    im_perf got = {0};
    im_check_result *res = t->bandwidth;
    const char *where = im_arena_printf(t->cli->arena, "%s -> %s", address_of(t, from), address_of(t, to));
    const char *dev = rail_of(t, from, r)->d->name;
    if (t->cli->err_is_terminal)
        im_cli_progress(t->cli, im_arena_printf(t->cli->arena, "%s, %s", where, dev));
    IM_TRY(play(t, "ib_write_bw", from, to, r, port, &got));
    im_perf_match *m = &t->match[t->nmatches];
    *m = (im_perf_match){.from = from, .to = to, .rail = r, .share = -1};
    if (!got.known) {
        im_check_say(res, IM_VERDICT_FAIL, where, im_arena_printf(t->cli->arena, "ib_write_bw -d %s", dev), NULL, "nothing was measured: %s",
                     got.error);
        im_check_mend(
            res,
            "imece fabric check    # on both hosts: port, GID, memlock, /dev/infiniband; is perftest there, and does a firewall close TCP port %d?",
            port);
    } else {
        const double want = expected(t, from, to, r, &got);
        m->share = want > 0 ? got.gbps / want : -1;
        if (m->share >= 0 && m->share < 0.95)
            im_check_say(res, m->share < 0.9 ? IM_VERDICT_FAIL : IM_VERDICT_WARN, where, im_arena_printf(t->cli->arena, "ib_write_bw -d %s", dev),
                         im_arena_printf(t->cli->arena, "%.2f Gb/s", got.gbps), "%.1f Gb/s of %.1f that this link must give (%.0f %%)", got.gbps,
                         want, 100 * m->share);
        else if (m->share < 0)
            im_check_say(res, IM_VERDICT_UNKNOWN, where, NULL, im_arena_printf(t->cli->arena, "%.2f Gb/s", got.gbps),
                         "what the link must give is not known");
    }
    if (from < to && got.known)
        IM_TRY(play(t, "ib_read_lat", from, to, r, port + 1, &t->latency[t->nmatches]));
    t->nmatches++;
    return IM_OK;
}

/* ---- judging --------------------------------------------------------------------------------------- */

static void say_blame(tournament *t, const im_perf_blame *x)
{
    const char *host = address_of(t, x->host), *dev = rail_of(t, x->host, x->rail)->d->name;
    const char *way = x->direction > 0 ? ", when it sends" : x->direction < 0 ? ", when it receives" : "";
    im_check_result *r = t->bandwidth;
    const im_verdict v = x->worst < 0.9 ? IM_VERDICT_FAIL : IM_VERDICT_WARN;
    switch (x->who) {
    case IM_PERF_HOST:
        im_check_say(r, v, host, NULL, NULL, "the host is slow on all of its rails, with everybody%s: not a cable; its CPU, PCIe, IOMMU or memory",
                     way);
        im_check_mend(r, "imece fabric check    # on %s: pcie-link, iommu, governor, numa-spread, relaxed-order", host);
        break;
    case IM_PERF_HOST_RAIL:
        im_check_say(r, v, host, NULL, dev, "%s of %s is slow with %zu of %zu matches%s: its cable, card, slot or switch port", dev, host, x->slow,
                     x->matches, way);
        im_check_mend(r, "mlxlink -d %s -m -c    # on %s; then reseat or change the cable of %s, and try another switch port", dev, host, dev);
        break;
    case IM_PERF_PATH:
        im_check_say(r, v, host, NULL, dev, "%s and %s are slow with each other on %s and well with others: the path between them, not the hosts",
                     host, address_of(t, x->other), dev);
        im_check_mend(r, "ibtracert or the switches' tables    # which links lie between %s and %s; ibqueryerrors on those", host,
                      address_of(t, x->other));
        break;
    case IM_PERF_PAIR:
        im_check_say(r, v, host, NULL, dev,
                     "%s and %s are slow on %s; with two hosts it cannot be told which is to blame: a third one tells (--hosts)", host,
                     address_of(t, x->other), dev);
        im_check_mend(r, "imece fabric check --bandwidth --hosts FILE    # with one more host at least");
        break;
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void judge_latency(tournament *t)
{
    double *all = IM_ARENA_NEW(t->cli->arena, double, t->nmatches + 1);
    size_t n = 0;
    for (size_t i = 0; all && i < t->nmatches; i++)
        if (t->latency[i].known)
            all[n++] = t->latency[i].typical_us;
    if (!n) {
        im_check_say(t->lat, IM_VERDICT_UNKNOWN, NULL, "ib_read_lat", NULL, "no latency was measured");
        return;
    }
    qsort(all, n, sizeof *all, ascending);
    const double median = all[n / 2];
    for (size_t i = 0; i < t->nmatches; i++) {
        const im_perf *x = &t->latency[i];
        const im_perf_match *m = &t->match[i];
        if (!x->known || x->typical_us <= 1.5 * median || x->typical_us < median + 1)
            continue;
        im_check_say(t->lat, IM_VERDICT_WARN, im_arena_printf(t->cli->arena, "%s -> %s", address_of(t, m->from), address_of(t, m->to)),
                     im_arena_printf(t->cli->arena, "ib_read_lat -d %s", rail_of(t, m->from, m->rail)->d->name),
                     im_arena_printf(t->cli->arena, "%.2f us", x->typical_us), "%.2f us, and the median of %zu is %.2f us", x->typical_us, n, median);
        im_check_mend(t->lat, "imece fabric check    # on both hosts: governor, numa-spread; then the number of switches between them");
    }
    im_check_note(t->lat, "median of a 2 byte read %.2f us over %zu pairs (ib_read_lat)", median, n);
}

/* Errors that rose between the hosts as they were and as they are. */
static void judge_counters(const tournament *t, const im_check_host *after, im_check_result *r)
{
    for (size_t h = 0; h < t->n; h++)
        for (size_t d = 0; after[h].m && d < after[h].m->nrdma; d++) {
            const im_rdma_device *now = &after[h].m->rdma[d], *was = im_machine_rdma(t->host[h].m, now->name);
            for (size_t p = 0; was && p < now->nports && p < was->nports; p++)
                for (size_t c = 0; c < now->port[p].ncounters; c++) {
                    const im_counter *x = &now->port[p].counter[c], *y = im_port_counter(&was->port[p], x->name);
                    const im_counter_about *about = im_counter_find(x->name);
                    if (!x->known || !y || !y->known || !im_counter_is_error(about) || x->value <= y->value)
                        continue;
                    const bool link = about->kind == IM_COUNTER_LINK || about->kind == IM_COUNTER_FATAL;
                    im_check_say(r, link ? IM_VERDICT_FAIL : IM_VERDICT_WARN,
                                 im_arena_printf(r->arena, "%s %s/%d", address_of(t, h), now->name, now->port[p].number), x->path,
                                 im_arena_printf(r->arena, "%llu", (unsigned long long)x->value), "%s rose by %llu under load: %s", x->name,
                                 (unsigned long long)(x->value - y->value), about->meaning);
                    im_check_mend(r, "imece fabric check    # on %s: link-errors and loss say what to do about it", address_of(t, h));
                }
        }
    im_check_note(r, "counters of %zu hosts before and after", t->n);
}

/* ---- all ------------------------------------------------------------------------------------------------ */

static im_status run_rounds(tournament *t)
{
    size_t *a = IM_ARENA_NEW(t->cli->arena, size_t, t->n + 2), *b = IM_ARENA_NEW(t->cli->arena, size_t, t->n + 2);
    if (!a || !b)
        return im_fail(t->cli->ctx, IM_ERR_NOMEM, "no memory for the pairs");
    int port = FIRST_PORT;
    for (size_t round = 0; round < im_perf_rounds(t->n); round++) {
        const size_t pairs = im_perf_round(t->n, round, a, b);
        for (size_t i = 0; i < pairs; i++)
            for (size_t r = 0; r < t->rails; r++)
                for (int way = 0; way < 2 && !im_cli_signal(); way++) {
                    IM_TRY(one_match(t, way ? b[i] : a[i], way ? a[i] : b[i], r, port));
                    port = port + 2 < FIRST_PORT + 400 ? port + 2 : FIRST_PORT; /* one that just closed may not be free yet */
                }
    }
    im_cli_progress(t->cli, NULL);
    return im_cli_signal() ? im_fail(t->cli->ctx, IM_ERR_CHECK, "stopped by a signal before all pairs were measured") : IM_OK;
}

static im_status prepare(tournament *t)
{
    rail each[MOST_RAILS];
    size_t n, least = MOST_RAILS;
    for (size_t h = 0; h < t->n; h++) {
        find_rails(&t->host[h], each, MOST_RAILS, &n);
        if (!n)
            return im_fail(t->cli->ctx, IM_ERR_CHECK, "%s has no active RDMA port to measure", address_of(t, h));
        least = n < least ? n : least;
    }
    t->rails = least;
    t->rail = IM_ARENA_NEW(t->cli->arena, rail, t->n * least);
    const size_t matches = t->n * (t->n - 1) * least;
    t->match = IM_ARENA_NEW(t->cli->arena, im_perf_match, matches + 1);
    t->latency = IM_ARENA_NEW(t->cli->arena, im_perf, matches + 1);
    if (!t->rail || !t->match || !t->latency)
        return im_fail(t->cli->ctx, IM_ERR_NOMEM, "no memory for %zu matches", matches);
    for (size_t h = 0; h < t->n; h++)
        find_rails(&t->host[h], &t->rail[h * least], least, &n);
    return IM_OK;
}

im_status im_check_bandwidth(im_cli *cli, const check_options *o, im_check_report *report, const im_check_host *host, const char *const *name,
                             size_t n, im_status (*again)(void *arg, size_t h, im_check_host *out), void *arg)
{
    tournament t = {.cli = cli, .o = o, .host = host, .name = name, .n = n};
    im_check_part *part;
    im_perf_blame *blame;
    size_t nblame;
    IM_TRY(prepare(&t));
    IM_TRY(im_check_add_part(cli->ctx, report, "bandwidth", IM_CHECK_BANDWIDTH, &part));
    t.bandwidth = &part->result[0];
    t.lat = &part->result[1];
    IM_TRY(run_rounds(&t));
    IM_TRY(im_perf_judge(cli->ctx, cli->arena, t.match, t.nmatches, n, t.rails, 0.95, &blame, &nblame));
    for (size_t i = 0; i < nblame; i++)
        say_blame(&t, &blame[i]);
    im_check_note(t.bandwidth, "%zu hosts, %zu rails, %zu matches: each gave 95 %% and more of what its link must give", n, t.rails, t.nmatches);
    judge_latency(&t);
    im_check_host *after = IM_ARENA_NEW(cli->arena, im_check_host, n);
    if (!after)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a second reading");
    for (size_t h = 0; h < n; h++)
        IM_TRY(again(arg, h, &after[h]));
    judge_counters(&t, after, &part->result[2]);
    im_check_count(report);
    return IM_OK;
}
