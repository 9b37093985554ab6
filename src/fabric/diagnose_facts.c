/* What logs say of transports, ranks and settings: no faults by themselves, but what "did it use RDMA?" is answered from. */
#include "fabric/diagnose_state.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*fact_fn)(im_diagnose *d, im_log_line *l);
typedef struct fact {
    const char *pattern;
    fact_fn read;
} fact;

/* ---- small tools ------------------------------------------------------------------------------------------- */

void im_diag_tally(im_tallies *t, const char *name, size_t n, int64_t by)
{
    n = n < sizeof t->item[0].name ? n : sizeof t->item[0].name - 1;
    for (size_t i = 0; i < t->n; i++)
        if (!memcmp(t->item[i].name, name, n) && !t->item[i].name[n]) {
            t->item[i].count += by;
            return;
        }
    if (!n || t->n == IM_DIAG_TALLY) {
        t->more = t->more || n;
        return;
    }
    im_tally *x = &t->item[t->n++];
    for (size_t i = 0; i < n; i++)
        x->name[i] = (unsigned char)name[i] < 32 || name[i] == 127 ? '?' : name[i];
    x->name[n] = 0;
    x->count = by;
}

im_host_seen *im_diag_host(im_diagnose *d, const char *name)
{
    if (!*name)
        return NULL;
    for (size_t i = 0; i < d->nhost; i++)
        if (!strcmp(d->host[i].name, name))
            return &d->host[i];
    if (d->nhost == IM_DIAG_HOSTS_ALL)
        return NULL;
    im_host_seen *h = &d->host[d->nhost++];
    snprintf(h->name, sizeof h->name, "%s", name);
    return h;
}

im_rank_of *im_diag_rank_of(im_diagnose *d, const char *host, int pid, bool make)
{
    uint64_t key = im_hash64(host, strlen(host), (uint64_t)pid) | 1;
    for (size_t i = key % IM_DIAG_MAP, tried = 0; tried < IM_DIAG_MAP; tried++, i = (i + 1) % IM_DIAG_MAP) {
        if (d->rank_of[i].key == key)
            return &d->rank_of[i];
        if (d->rank_of[i].key)
            continue;
        if (!make || d->nrank_of >= IM_DIAG_MAP / 2)
            return NULL;
        d->nrank_of++;
        d->rank_of[i] = (im_rank_of){.key = key, .rank = -1};
        return &d->rank_of[i];
    }
    return NULL;
}

/* The number behind `what`. */
static bool number_behind(const im_log_line *l, const char *what, int64_t *out)
{
    size_t i = im_scan_find(l->s, l->n, 0, what);
    if (i >= l->n)
        return false;
    i += strlen(what);
    while (i < l->n && (l->s[i] == ' ' || l->s[i] == ':'))
        i++;
    return im_log_number(l->s, l->n, &i, out);
}

/* Behind "NCCL INFO": said by NCCL or RCCL, not by somebody who happens to use the same words. */
static bool is_nccl(const im_log_line *l, size_t at)
{
    return im_scan_find(l->s, at, 0, "NCCL INFO ") < at || im_scan_find(l->s, at, 0, "NCCL WARN ") < at;
}

static size_t word_end(const im_log_line *l, size_t i, const char *ends)
{
    for (; i < l->n && (unsigned char)l->s[i] > 31; i++)
        for (const char *e = ends; *e; e++)
            if (*e == l->s[i])
                return i;
    return i;
}

static void note_socket(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    if (!f->socket_at.line)
        im_diag_evidence(d, l, &f->socket_at);
}

/* ---- NCCL and RCCL -------------------------------------------------------------------------------------------- */

static void count_net_channel(im_diagnose *d, im_log_line *l, const char *via, size_t n)
{
    im_log_facts *f = im_diag_file(d);
    bool gdr = im_scan_find(via, n, 0, "GDRDMA") < n, socket = im_scan_stands(via, n, 4, "Socket"), verbs = im_scan_stands(via, n, 4, "IB");
    f->gdr += gdr;
    f->rdma += !gdr && verbs;
    f->tcp += socket;
    f->plugin += !gdr && !socket && !verbs;
    if (socket)
        note_socket(d, l);
    if (verbs && !gdr && im_scan_find(l->s, l->n, 0, "[send]") >= l->n) { /* sends alone: NCCL_NET_GDR_READ, no fault */
        f->received_plain++;
        im_diag_record(d, im_rule_find("gdr-off"), l);
    }
}

static void count_channel(im_diagnose *d, im_log_line *l, const char *via, size_t n)
{
    im_log_facts *f = im_diag_file(d);
    if (im_scan_stands(via, n, 0, "NET/"))
        count_net_channel(d, l, via, n);
    else if (im_scan_stands(via, n, 0, "P2P"))
        f->p2p++;
    else if (im_scan_stands(via, n, 0, "COLLNET"))
        f->collnet++;
    else
        f->shm++;
}

/* "... 9[1a000] -> 2[6b000] [send] via NET/IB/0/GDRDMA": an arrow must be in it. A pair of a receiver counts as one of a sender. */
static void read_channel(im_diagnose *d, im_log_line *l)
{
    size_t i = im_scan_find(l->s, l->n, l->at > 8 ? l->at - 8 : 0, " via "), k; /* the window lies in it, or just behind */
    if (i >= l->n || (im_scan_find(l->s, i, 0, "->") >= i && im_scan_find(l->s, i, 0, "CollNet") >= i))
        return;
    i += 5;
    k = i + (im_scan_stands(l->s, l->n, i, "NET/AWS ") ? 8 : im_scan_stands(l->s, l->n, i, "direct shared ") ? 14 : 0); /* names with blanks */
    while (k < l->n && (unsigned char)l->s[k] > ' ' && l->s[k] != '"' && l->s[k] != ',' && l->s[k] != '<')
        k++;
    if (k == i)
        return;
    im_diag_tally(&im_diag_file(d)->channel, l->s + i, k - i, 1);
    count_channel(d, l, l->s + i, k - i);
}

static void read_network(im_diagnose *d, im_log_line *l)
{
    size_t i = im_scan_find(l->s, l->n, 0, "Using network "), k;
    if (i >= l->n || !is_nccl(l, i))
        return;
    i += strlen("Using network ");
    k = word_end(l, i, "\t\",;");
    while (k > i && l->s[k - 1] == ' ')
        k--;
    im_diag_tally(&im_diag_file(d)->network, l->s + i, k - i, 1);
    if (!strncasecmp(l->s + i, "Socket", 6))
        note_socket(d, l);
    const im_log_where *w = im_diag_where(d, l);
    if (!isnan(w->time) && !(d->first_init <= w->time))
        d->first_init = w->time;
}

static void read_assigned(im_diagnose *d, im_log_line *l)
{
    static const char what[] = "Assigned NET plugin ";
    size_t i = im_scan_find(l->s, l->n, 0, what), k;
    if (i >= l->n)
        return;
    i += sizeof what - 1;
    k = im_scan_find(l->s, l->n, i, " to comm");
    if (k < l->n && k > i)
        im_diag_tally(&im_diag_file(d)->network, l->s + i, k - i, 1);
}

/* "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:..." : also with both link layers in it. */
static void read_nics(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    bool ib = false, roce = false;
    for (size_t i = l->at; i < l->n && l->s[i] != ';'; i++) {
        size_t k = i + 1;
        int64_t v;
        if (l->s[i] != '[' || !im_log_number(l->s, l->n, &k, &v) || k >= l->n || l->s[k] != ']')
            continue;
        size_t end = word_end(l, ++k, " \t;\"");
        im_diag_tally(&f->nic, l->s + k, end - k, 1);
        ib = ib || im_scan_find(l->s + k, end - k, 0, "/IB") < end - k;
        roce = roce || im_scan_find(l->s + k, end - k, 0, "/RoCE") < end - k;
        i = end - 1;
    }
    if (ib && roce)
        im_diag_record(d, im_rule_find("mixed-link-layers"), l);
}

static void tally_interface(im_diagnose *d, im_log_line *l, size_t i)
{
    size_t k = word_end(l, i, " :<\t\"");
    if (k > i && k - i < 16)
        im_diag_tally(&im_diag_file(d)->socket, l->s + i, k - i, 1);
}

static bool is_bad_interface(const char *s, size_t n)
{
    static const char *const bad[] = {"docker", "veth", "virbr", "ip6tnl", "tunl", "cni", "flannel",   "cali", "br-", "lxc",
                                      "sit",    "gre",  "wg",    "tun",    "tap",  "zt",  "tailscale", "vnet", "lo"};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        size_t m = strlen(bad[i]);
        if (n >= m && !strncmp(s, bad[i], m) && (strcmp(bad[i], "lo") != 0 || n == 2))
            return true;
    }
    return false;
}

/* "Bootstrap : Using [0]eth0:10.0.0.1<0>", "NET/Socket : Using [0]eth0:...", "NET : Using interface lo:127.0.0.1<0>": the first one listed is used. */
static void read_interface(im_diagnose *d, im_log_line *l)
{
    size_t i = im_scan_find(l->s, l->n, 0, "Using ");
    if (i >= l->n || !is_nccl(l, i))
        return;
    if (im_scan_find(l->s, i, 0, "NET/Socket") < i)
        note_socket(d, l);
    i += strlen("Using ");
    if (im_scan_stands(l->s, l->n, i, "interface "))
        i += strlen("interface ");
    if (i + 3 < l->n && l->s[i] == '[' && isdigit((unsigned char)l->s[i + 1])) {
        while (i < l->n && l->s[i] != ']')
            i++;
        i++;
    }
    size_t k = word_end(l, i, " :<\t\"");
    tally_interface(d, l, i);
    if (k > i && k < l->n && l->s[k] == ':' && is_bad_interface(l->s + i, k - i))
        im_diag_record(d, im_rule_find("wrong-interface"), l); /* kept only when more than one host is there: diagnose_reason.c */
}

static void read_env(im_diagnose *d, im_log_line *l)
{
    static const char what[] = " set by environment to ";
    char text[96];
    size_t i = im_scan_find(l->s, l->n, 0, what), begin = i;
    if (i >= l->n)
        return;
    while (begin > 0 && (isalnum((unsigned char)l->s[begin - 1]) || l->s[begin - 1] == '_'))
        begin--;
    size_t v = i + sizeof what - 1, end = word_end(l, v, " \t\";");
    if (end > v && l->s[end - 1] == '.')
        end--;
    int n =
        snprintf(text, sizeof text, "%.*s=%.*s", (int)(i - begin < 40 ? i - begin : 40), l->s + begin, (int)(end - v < 50 ? end - v : 50), l->s + v);
    if (begin < i)
        im_diag_tally(&im_diag_file(d)->env, text, (size_t)n, 1);
}

/* "UCX_* env variables: UCX_TLS=rc,self UCX_NET_DEVICES=rxe0:1" */
static void read_ucx_env(im_diagnose *d, im_log_line *l)
{
    size_t i = im_scan_find(l->s, l->n, 0, "env variable");
    while ((i = im_scan_find(l->s, l->n, i, " UCX_")) < l->n) {
        size_t end = word_end(l, ++i, " \t\"");
        if (memchr(l->s + i, '=', end - i))
            im_diag_tally(&im_diag_file(d)->env, l->s + i, end - i, 1);
        i = end;
    }
}

/* "ncclCommInitRank comm 0x... rank 3 nranks 16 ... - Init START", "comm 0x... rank 0 nRanks 16 nNodes 2 localRanks 8" */
static void read_init(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    int64_t rank = -1, n = 0;
    const im_log_where *w = im_diag_where(d, l);
    if (number_behind(l, " nranks ", &n) && n <= IM_DIAG_RANK_BITS)
        f->nranks = (int)n > f->nranks ? (int)n : f->nranks;
    d->nranks = f->nranks > d->nranks ? f->nranks : d->nranks;
    if (number_behind(l, " nNodes ", &n) && n <= IM_DIAG_RANK_BITS)
        f->nnodes = (int)n > f->nnodes ? (int)n : f->nnodes;
    d->nnodes = f->nnodes > d->nnodes ? f->nnodes : d->nnodes;
    if (!number_behind(l, " rank ", &rank) || rank >= IM_DIAG_RANK_BITS)
        return;
    d->ranks[rank / 8] |= (uint8_t)(1 << rank % 8);
    d->most_rank = rank > d->most_rank ? (int)rank : d->most_rank;
    if (w->pid < 0)
        return;
    im_rank_of *r = im_diag_rank_of(d, w->host, w->pid, true);
    if (!r)
        return;
    if (r->rank < 0) /* the first communicator is the world */
        r->rank = (int)rank;
    bool begun = im_scan_find(l->s, l->n, 0, "Init START") < l->n, done = im_scan_find(l->s, l->n, 0, "Init COMPLETE") < l->n;
    r->begun += begun;
    r->done += done;
    if (begun && r->begun > r->done)
        im_diag_record(d, im_rule_find("init-hang"), l); /* dropped at the end when all were completed */
}

static void read_gdr(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    bool off = im_scan_find(l->s, l->n, 0, "GPU Direct RDMA Disabled for HCA") < l->n; /* with a distance: one pair among many */
    if (!off && im_scan_find(l->s, l->n, 0, "RDMA Disabled") < l->n)
        return;
    f->gdr_disabled = f->gdr_disabled || off;
    f->gdr_enabled = f->gdr_enabled || !off;
}

/* "Connected all rings, use ring PXN 0 GDR 1" */
static void read_rings(im_diagnose *d, im_log_line *l)
{
    int64_t v;
    im_log_facts *f = im_diag_file(d);
    if (!number_behind(l, " GDR ", &v))
        return;
    f->gdr_flag_on = f->gdr_flag_on || v;
    f->gdr_flag_off = f->gdr_flag_off || !v;
}

static void read_no_device(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    f->no_device = true;
    if (!f->device_at.line)
        im_diag_evidence(d, l, &f->device_at);
}

static void read_version(im_diagnose *d, im_log_line *l)
{
    size_t i = im_scan_find(l->s, l->n, 0, "CCL version "), k;
    if (i >= l->n || !i || !strchr("NnRr", l->s[i - 1]))
        return;
    k = word_end(l, i + strlen("CCL version "), " \t\",;");
    if (k > i + strlen("CCL version ") && isdigit((unsigned char)l->s[i + strlen("CCL version ")]))
        im_diag_tally(&im_diag_file(d)->version, l->s + i - 1, k - i + 1, 1);
}

static size_t copy_word(const im_log_line *l, size_t i, char *to, size_t cap)
{
    size_t k = word_end(l, i, " \t,\"");
    size_t n = k - i < cap ? k - i : cap - 1;
    memcpy(to, l->s + i, n);
    to[n] = 0;
    return k;
}

/* "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE", "... -> Algo 1 proto 2 time 12.3" */
static void read_algo(im_diagnose *d, im_log_line *l)
{
    static const char *const algos[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"}, *const protos[] = {
                                                                                                                            "LL", "LL128", "SIMPLE"};
    size_t at = im_scan_find(l->s, l->n, 0, " -> Algo "), colon = at, begin;
    char algo[24], proto[16], text[96];
    if (at >= l->n)
        return;
    size_t i = copy_word(l, at + strlen(" -> Algo "), algo, sizeof algo);
    size_t p = im_scan_find(l->s, l->n, i, " proto ");
    if (p >= l->n)
        return;
    copy_word(l, p + strlen(" proto "), proto, sizeof proto);
    while (colon > 0 && l->s[colon] != ':')
        colon--;
    for (begin = colon; begin > 0 && isalpha((unsigned char)l->s[begin - 1]);)
        begin--;
    const char *a = isdigit((unsigned char)algo[0]) && !algo[1] && (size_t)(algo[0] - '0') < IM_COUNT_OF(algos) ? algos[algo[0] - '0'] : algo;
    const char *q = isdigit((unsigned char)proto[0]) && !proto[1] && (size_t)(proto[0] - '0') < IM_COUNT_OF(protos) ? protos[proto[0] - '0'] : proto;
    int n = snprintf(text, sizeof text, "%.*s %s %s", (int)(colon - begin < 32 ? colon - begin : 32), l->s + begin, a, q);
    im_diag_tally(&im_diag_file(d)->algo, text, (size_t)n, 1);
}

/* The peer behind `what`: "192.0.2.59<44206>" without its port. */
static void tally_peer(im_tallies *t, const im_log_line *l, const char *what)
{
    size_t i = im_scan_find(l->s, l->n, 0, what), k;
    if (i >= l->n)
        return;
    i += strlen(what);
    for (k = i; k < l->n && (isalnum((unsigned char)l->s[k]) || strchr(".:-_%", l->s[k])); k++) {}
    if (k < l->n && l->s[k] == '<' && k > i)
        im_diag_tally(t, l->s + i, k - i, 1);
}

/* Who did not answer; a flushed request says nothing on that. */
static void read_peer(im_diagnose *d, im_log_line *l)
{
    static const char *const codes[] = {"error 12,", "status=12 ", "(12)", "error 13,", "status=13 ", "(13)"};
    for (size_t i = 0; i < IM_COUNT_OF(codes); i++)
        if (im_scan_find(l->s, l->n, 0, codes[i]) < l->n) {
            tally_peer(&d->late, l, "from peer ");
            return;
        }
}

static void read_gone(im_diagnose *d, im_log_line *l)
{
    tally_peer(&d->gone, l, "closed by remote peer ");
    tally_peer(&d->gone, l, "Call to recv from ");
}

/* ---- UCX, Open MPI, libfabric ----------------------------------------------------------------------------------- */

/* Every word of the form transport/device. */
static void read_ucx(im_diagnose *d, im_log_line *l)
{
    static const char *const kind[] = {"rc_",   "dc_",    "ud_",   "tcp/",  "sysv/", "posix/", "cma/",
                                       "knem/", "xpmem/", "self/", "cuda_", "rocm_", "gga",    "srd/"};
    im_log_facts *f = im_diag_file(d);
    for (size_t i = 0; i < l->n; i++) {
        if (i && !strchr(" (|\t", l->s[i - 1]))
            continue;
        for (size_t k = 0; k < IM_COUNT_OF(kind); k++) {
            size_t m = strlen(kind[k]), end;
            if (l->n - i <= m || memcmp(l->s + i, kind[k], m) != 0)
                continue;
            end = word_end(l, i, " \t)|\",;");
            const char *slash = memchr(l->s + i, '/', end - i);
            if (!slash)
                break;
            const char *path = memchr(slash + 1, '/', (size_t)(l->s + end - slash - 1)); /* mlx5_0:1/path0 */
            im_diag_tally(&f->ucx, l->s + i, path ? (size_t)(path - (l->s + i)) : end - i, 1);
            if (k == 3 && is_bad_interface(slash + 1, (size_t)(l->s + end - slash - 1)))
                im_diag_record(d, im_rule_find("wrong-interface"), l);
            i = end;
            break;
        }
    }
}

static void read_mpi(im_diagnose *d, im_log_line *l)
{
    static const struct {
        const char *words, *name;
    } known[] = {{"Selected component [ucx]", "pml ucx"},
                 {"Selected component [ob1]", "pml ob1"},
                 {"Selected component [cm]", "pml cm"},
                 {"component ucx selected", "pml ucx"},
                 {"component ob1 selected", "pml ob1"},
                 {"component cm selected", "pml cm"},
                 {"Using tcp btl", "btl tcp"},
                 {"Using vader btl", "btl vader"},
                 {"Using sm btl", "btl sm"},
                 {"Using openib btl", "btl openib"},
                 {"Using uct btl", "btl uct"},
                 {"Using self btl", "btl self"}};
    for (size_t i = 0; i < IM_COUNT_OF(known); i++)
        if (im_scan_find(l->s, l->n, 0, known[i].words) < l->n)
            im_diag_tally(&im_diag_file(d)->mpi, known[i].name, strlen(known[i].name), 1);
}

static void read_ofi(im_diagnose *d, im_log_line *l)
{
    size_t i = im_scan_find(l->s, l->n, 0, "Selected Provider is ");
    if (i >= l->n)
        return;
    i += strlen("Selected Provider is ");
    size_t k = word_end(l, i, " \t,\"(");
    char text[64];
    int n = snprintf(text, sizeof text, "libfabric %.*s", (int)(k - i < 40 ? k - i : 40), l->s + i);
    im_diag_tally(&im_diag_file(d)->nic, text, (size_t)n, 1);
}

/* ---- nccl-tests and perftest ---------------------------------------------------------------------------------------- */

/* "#   Rank  0 on nodeA device  0 [0x00]": a table begins; two begun at once are two worlds. */
static void read_device(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    int64_t rank;
    size_t hash = im_scan_find(l->s, l->n, 0, "#");
    if (hash >= l->n || im_scan_find(l->s, l->n, hash, " on ") >= l->n || !number_behind(l, "Rank ", &rank))
        return;
    f->nranks = rank + 1 > f->nranks && rank < IM_DIAG_RANK_BITS ? (int)rank + 1 : f->nranks;
    if (rank != 0)
        return;
    f->worlds++;
    if (f->worlds > f->most_worlds)
        f->most_worlds = f->worlds;
    im_diag_record(d, im_rule_find("worlds"), l); /* kept only when more than one is open: diagnose_reason.c */
}

static void read_tests_end(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    (void)l;
    f->worlds -= f->worlds > 0;
    f->finished_worlds++;
}

static void read_perftest(im_diagnose *d, im_log_line *l)
{
    im_log_facts *f = im_diag_file(d);
    size_t i = im_scan_find(l->s, l->n, 0, "Device         : ");
    size_t k = im_scan_find(l->s, l->n, 0, "Link type       : ");
    if (i < l->n) {
        i += strlen("Device         : ");
        im_diag_tally(&f->nic, l->s + i, word_end(l, i, " \t") - i, 1);
        if (!*f->perftest)
            snprintf(f->perftest, sizeof f->perftest, "perftest");
    }
    if (k < l->n) {
        k += strlen("Link type       : ");
        snprintf(f->perftest, sizeof f->perftest, "perftest over %.*s", (int)(word_end(l, k, " \t") - k), l->s + k);
    }
}

static void read_watchdog(im_diagnose *d, im_log_line *l)
{
    im_diag_watchdog(d, l);
}

static void read_launched(im_diagnose *d, im_log_line *l)
{
    im_diag_launched(d, l);
}

static const fact facts[] = {
    {" via NET/", read_channel},
    {" via P2P", read_channel},
    {" via SHM", read_channel},
    {" via COLLNET/", read_channel},
    {" via direct shared memory", read_channel},
    {"Using network ", read_network},
    {"Assigned NET plugin ", read_assigned},
    {"NET/IB*Using [", read_nics},
    {"NET/IBext*Using [", read_nics},
    {"Bootstrap*Using ", read_interface},
    {"NET/Socket*Using [", read_interface},
    {"NET*Using interface ", read_interface},
    {" set by environment to ", read_env},
    {"env variable*UCX_", read_ucx_env},
    {"Init START", read_init},
    {"Init COMPLETE", read_init},
    {" nNodes ", read_init},
    {" rank * nranks ", read_init},
    {"GPU Direct RDMA Enabled", read_gdr},
    {"GPU Direct RDMA Disabled", read_gdr},
    {"Connected all rings*GDR ", read_rings},
    {"NET/IB*No device found", read_no_device},
    {"NCCL version ", read_version},
    {"RCCL version ", read_version},
    {" -> Algo * proto ", read_algo},
    {" tag(posix/", read_ucx},
    {" tag(cma/", read_ucx},
    {" tag(cuda_", read_ucx},
    {" tag(rocm_", read_ucx},
    {" tag(knem/", read_ucx},
    {" tag(xpmem/", read_ucx},
    {"-node cfg#", read_ucx},
    {" tag(self/", read_ucx},
    {" tag(sysv/", read_ucx},
    {" tag(tcp/", read_ucx},
    {"rc_mlx5/", read_ucx},
    {"rc_verbs/", read_ucx},
    {"dc_mlx5/", read_ucx},
    {"ud_mlx5/", read_ucx},
    {"ud_verbs/", read_ucx},
    {"Selected component [", read_mpi},
    {"component * selected", read_mpi},
    {"Using * btl for send to", read_mpi},
    {"Selected Provider is ", read_ofi},
    {"# *Rank * on * device ", read_device},
    {"Avg bus bandwidth", read_tests_end},
    {"Device         : ", read_perftest},
    {"Link type       : ", read_perftest},
    {"Got completion from peer ", read_peer},
    {"closed by remote peer ", read_gone},
    {"Call to recv from ", read_gone},
    {"WorkNCCL(", read_watchdog},
    {"last enqueued*work: ", read_watchdog},
    {"launched up to operation ", read_launched},
};

size_t im_diag_fact_count(void)
{
    return IM_COUNT_OF(facts);
}

const char *im_diag_fact_pattern(size_t i)
{
    return facts[i].pattern;
}

void im_diag_fact(im_diagnose *d, size_t i, im_log_line *l)
{
    facts[i].read(d, l);
}
