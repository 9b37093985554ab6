/* Did it use RDMA? For each log that says anything on it: the transports of its channels, cards, GPUDirect, algorithms, and why it went over TCP. */
#include "fabric/diagnose_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool holds(const char *text, const char *what)
{
    size_t n = strlen(text);
    return im_scan_find(text, n, 0, what) < n;
}

static bool is_tcp_name(const char *name)
{
    return holds(name, "socket") || holds(name, "tcp") || holds(name, "FasTrak");
}

const char *im_diag_env(const im_log_facts *f, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < f->env.n; i++)
        if (!strncmp(f->env.item[i].name, name, n) && f->env.item[i].name[n] == '=')
            return f->env.item[i].name + n + 1;
    return NULL;
}

static bool is_one_node(const im_log_facts *f)
{
    int64_t net = f->gdr + f->rdma + f->tcp + f->plugin + f->collnet;
    return !net && f->nnodes <= 1 && (f->nnodes == 1 || f->nranks == 1 || f->p2p + f->shm > 0);
}

static im_rdma by_names(const im_tallies *t)
{
    size_t tcp = 0;
    for (size_t i = 0; i < t->n; i++)
        tcp += is_tcp_name(t->item[i].name);
    return tcp == t->n ? IM_RDMA_NO : tcp ? IM_RDMA_PARTLY : IM_RDMA_YES;
}

static im_rdma by_ucx(const im_tallies *t)
{
    bool rdma = false, tcp = false;
    for (size_t i = 0; i < t->n; i++) {
        const char *s = t->item[i].name;
        rdma = rdma || !strncmp(s, "rc_", 3) || !strncmp(s, "dc_", 3) || !strncmp(s, "ud_", 3) || !strncmp(s, "gga", 3) || !strncmp(s, "srd/", 4);
        tcp = tcp || !strncmp(s, "tcp/", 4);
    }
    return rdma ? IM_RDMA_YES : tcp ? IM_RDMA_NO : IM_RDMA_NOT_NEEDED;
}

static bool has_mpi(const im_log_facts *f, const char *name)
{
    for (size_t i = 0; i < f->mpi.n; i++)
        if (!strcmp(f->mpi.item[i].name, name))
            return true;
    return false;
}

im_rdma im_diag_rdma(const im_log_facts *f)
{
    int64_t rdma = f->gdr + f->rdma, tcp = f->tcp;
    for (size_t i = 0; f->plugin && i < f->channel.n; i++) {
        const im_tally *t = &f->channel.item[i];
        if (strncasecmp(t->name, "NET/", 4) == 0 && strncasecmp(t->name, "NET/IB", 6) != 0 && !holds(t->name, "GDRDMA") &&
            strncasecmp(t->name, "NET/Socket", 10) != 0)
            *(is_tcp_name(t->name) ? &tcp : &rdma) += t->count;
    }
    if (rdma || tcp)
        return !tcp ? IM_RDMA_YES : rdma ? IM_RDMA_PARTLY : IM_RDMA_NO;
    if (is_one_node(f))
        return IM_RDMA_NOT_NEEDED;
    if (f->network.n)
        return by_names(&f->network);
    if (f->ucx.n)
        return by_ucx(&f->ucx);
    if (has_mpi(f, "btl openib"))
        return IM_RDMA_YES;
    if (has_mpi(f, "btl tcp"))
        return IM_RDMA_NO;
    if (*f->perftest || f->gdr_flag_on)
        return IM_RDMA_YES;
    if (f->no_device || f->socket_at.line)
        return IM_RDMA_NO;
    return f->nic.n ? IM_RDMA_YES : IM_RDMA_UNKNOWN;
}

const char *im_diag_rdma_name(im_rdma r)
{
    static const char *const names[] = {"unknown", "yes", "no", "partly", "not needed"};
    return names[r];
}

/* ---- why not -------------------------------------------------------------------------------------------- */

static bool found(const im_diagnose *d, const char *id)
{
    return d->found[im_rule_find(id)].count > 0;
}

void im_diag_rdma_why(const im_diagnose *d, const im_log_facts *f, im_str *out)
{
    const char *disable = im_diag_env(f, "NCCL_IB_DISABLE"), *net = im_diag_env(f, "NCCL_NET"), *hca = im_diag_env(f, "NCCL_IB_HCA"),
               *tls = im_diag_env(f, "UCX_TLS"), *devices = im_diag_env(f, "UCX_NET_DEVICES");
    im_rdma r = im_diag_rdma(f);
    if (r != IM_RDMA_NO && r != IM_RDMA_PARTLY)
        return;
    if (disable && strcmp(disable, "0") != 0)
        im_str_printf(out, "NCCL_IB_DISABLE=%s switches it off", disable);
    else if (net && is_tcp_name(net))
        im_str_printf(out, "NCCL_NET=%s asks for TCP", net);
    else if (f->ucx.n && tls && !holds(tls, "rc") && !holds(tls, "dc") && !holds(tls, "ud") && !holds(tls, "ib") && !holds(tls, "all"))
        im_str_printf(out, "UCX_TLS=%s leaves no RDMA transport", tls);
    else if (f->ucx.n && devices && !holds(devices, ":"))
        im_str_printf(out, "UCX_NET_DEVICES=%s names no RDMA port (those have the form mlx5_0:1)", devices);
    else if (found(d, "no-verbs"))
        im_str_append(out, "libibverbs is not installed there");
    else if (found(d, "container-device"))
        im_str_append(out, "the RDMA device could not be opened (/dev/infiniband in the container)");
    else if (found(d, "ofi-provider"))
        im_str_append(out, "the libfabric plug-in found no provider");
    else if (found(d, "ucx-no-rdma"))
        im_str_append(out, "UCX has no RDMA transport there");
    else if (f->no_device && hca)
        im_str_printf(out, "no device found: NCCL_IB_HCA=%s may match nothing that is active", hca);
    else if (f->no_device)
        im_str_append(out, "NCCL found no InfiniBand or RoCE device: no card, no /dev/infiniband in the container, or no active port");
    else
        im_str_append(out, "this log does not say why: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV (UCX_LOG_LEVEL=info) does");
}

/* ---- text ------------------------------------------------------------------------------------------------ */

static bool is_heard(const im_log_facts *f)
{
    return im_diag_rdma(f) != IM_RDMA_UNKNOWN || f->algo.n || f->mpi.n;
}

static void list(im_str *out, const char *before, const im_tallies *t, bool counts, size_t most)
{
    if (!t->n)
        return;
    im_str_printf(out, "\n      %-11s", before);
    for (size_t i = 0; i < t->n && i < most; i++) {
        im_str_printf(out, "%s%s", i ? ", " : "", t->item[i].name);
        if (counts)
            im_str_printf(out, " x%lld", (long long)t->item[i].count);
    }
    if (t->n > most || t->more)
        im_str_append(out, ", ...");
}

static void put_gdr(const im_log_facts *f, im_str *out)
{
    if (f->gdr && !f->rdma)
        im_str_append(out, "\n      GPUDirect  on, in all channels over RDMA");
    else if (f->gdr)
        im_str_printf(out, "\n      GPUDirect  on in %lld channels, off in %lld%s", (long long)f->gdr, (long long)f->rdma,
                      f->received_plain ? "" : " (these only send: NCCL_NET_GDR_READ)");
    else if (f->rdma || f->gdr_disabled)
        im_str_append(out, "\n      GPUDirect  off: data goes through host memory");
    else if (f->gdr_flag_on || f->gdr_flag_off)
        im_str_printf(out, "\n      GPUDirect  %s", f->gdr_flag_on ? f->gdr_flag_off ? "on at some ranks, off at others" : "on" : "off");
}

/* What stands behind the name of a log. */
static void put_answer(const im_diagnose *d, const im_log_facts *f, im_str *out)
{
    static const char *const say[] = {"not said", "yes, RDMA", "no, TCP", "partly: RDMA and TCP", "no network was needed: all ranks on one host"};
    im_str why = {0};
    im_str_append(out, say[im_diag_rdma(f)]);
    im_diag_rdma_why(d, f, &why);
    if (why.len)
        im_str_printf(out, "\n      why        %s", im_str_text(&why));
    im_str_free(&why);
    list(out, "channels", &f->channel, true, 12);
    list(out, "network", &f->network, false, 4);
    list(out, "cards", &f->nic, false, 16);
    put_gdr(f, out);
    list(out, "UCX", &f->ucx, false, 12);
    list(out, "Open MPI", &f->mpi, false, 6);
    list(out, "algorithms", &f->algo, true, 8);
    list(out, "sockets", &f->socket, false, 4);
    list(out, "version", &f->version, false, 4);
    if (*f->perftest)
        im_str_printf(out, "\n      perftest   %s", f->perftest);
    if (!f->channel.n && f->network.n && im_diag_rdma(f) != IM_RDMA_NO)
        im_str_append(out, "\n      (by what was chosen; with NCCL_DEBUG_SUBSYS=INIT,NET the log has each channel)");
    im_str_append(out, "\n");
}

enum { MOST_TOLD = 12 };

void im_diag_rdma_text(const im_diagnose *d, im_str *out)
{
    im_str told[MOST_TOLD] = {{0}};
    size_t first[MOST_TOLD], count[MOST_TOLD] = {0}, n = 0, rest = 0;
    for (size_t i = 0; i < d->nfile; i++) {
        im_str one = {0};
        size_t k = 0;
        if (!is_heard(d->file[i]))
            continue;
        put_answer(d, d->file[i], &one);
        while (k < n && strcmp(im_str_text(&told[k]), im_str_text(&one)) != 0)
            k++;
        if (k == n && n < MOST_TOLD) {
            told[n] = one;
            first[n++] = i;
        } else {
            im_str_free(&one);
        }
        if (k < MOST_TOLD)
            count[k]++;
        else
            rest++;
    }
    im_str_append(out,
                  n ? "\nDid it use RDMA?\n"
                    : "\nDid it use RDMA? The logs do not say: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV or UCX_LOG_LEVEL=info make them.\n");
    for (size_t k = 0; k < n; k++) {
        im_str_printf(out, "   %s", d->file[first[k]]->name);
        if (count[k] > 1)
            im_str_printf(out, " and %zu more", count[k] - 1);
        im_str_printf(out, ": %s", im_str_text(&told[k]));
        im_str_free(&told[k]);
    }
    if (rest)
        im_str_printf(out, "   %zu more logs: with --json\n", rest);
}

/* ---- JSON -------------------------------------------------------------------------------------------------- */

static void put_tallies(im_str *out, const char *key, const im_tallies *t)
{
    im_str_printf(out, ", \"%s\": {", key);
    for (size_t i = 0; i < t->n; i++) {
        im_str_append(out, i ? ", " : "");
        im_str_json_string(out, t->item[i].name, strlen(t->item[i].name));
        im_str_printf(out, ": %lld", (long long)t->item[i].count);
    }
    im_str_append(out, "}");
}

void im_diag_rdma_json(const im_diagnose *d, im_str *out)
{
    size_t n = 0;
    for (size_t i = 0; i < d->nfile; i++) {
        const im_log_facts *f = d->file[i];
        im_str why = {0};
        if (!is_heard(f))
            continue;
        im_str_append(out, n++ ? ",\n  {\"log\": " : "\n  {\"log\": ");
        im_str_json_string(out, f->name, strlen(f->name));
        im_str_printf(out, ", \"rdma\": \"%s\"", im_diag_rdma_name(im_diag_rdma(f)));
        im_diag_rdma_why(d, f, &why);
        if (why.len) {
            im_str_append(out, ", \"why\": ");
            im_str_json_string(out, why.data, why.len);
        }
        im_str_free(&why);
        if (f->gdr || f->rdma || f->gdr_disabled || f->gdr_flag_on || f->gdr_flag_off)
            im_str_printf(out, ", \"gpudirect\": \"%s\"",
                          f->gdr                                          ? f->rdma ? "partly" : "on"
                          : f->rdma || f->gdr_disabled || !f->gdr_flag_on ? "off"
                          : f->gdr_flag_off                               ? "partly"
                                                                          : "on");
        put_tallies(out, "channels", &f->channel);
        put_tallies(out, "network", &f->network);
        put_tallies(out, "cards", &f->nic);
        put_tallies(out, "interfaces", &f->socket);
        put_tallies(out, "ucx", &f->ucx);
        put_tallies(out, "mpi", &f->mpi);
        put_tallies(out, "algorithms", &f->algo);
        put_tallies(out, "settings", &f->env);
        put_tallies(out, "versions", &f->version);
        if (f->nranks)
            im_str_printf(out, ", \"ranks\": %d", f->nranks);
        if (f->nnodes)
            im_str_printf(out, ", \"nodes\": %d", f->nnodes);
        im_str_append(out, "}");
    }
}
