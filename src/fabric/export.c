/* The exporter: readings, the machine's own facts, and what to compare with. */
#include "fabric/export.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ratios over shorter times are mostly the clock's and the counters' grain: cards renew theirs every 10 ms or so. */
#define LEAST_SECONDS 0.5

typedef struct reading {
    im_arena *arena; /* NULL: none yet */
    const im_machine *m;
    double seconds;
} reading;

struct im_exporter {
    im_export_options o;
    reading before, older; /* the last one that others are compared with, and the one before it */
};

im_status im_exporter_create(im_context *ctx, const im_export_options *o, im_exporter **out)
{
    im_exporter *x;
    IM_TRY(im_alloc(ctx, 1, sizeof *x, (void **)&x));
    x->o = *o;
    *out = x;
    return IM_OK;
}

void im_exporter_destroy(im_exporter *x)
{
    if (!x)
        return;
    im_arena_destroy(x->before.arena);
    im_arena_destroy(x->older.arena);
    free(x);
}

static void device_of(im_prom *p, const im_rdma_device *d)
{
    const im_prom_label node[] = {
        {"device", d->name}, {"board_id", d->board_id.text}, {"firmware_version", d->fw_ver.text}, {"hca_type", d->hca_type.text}};
    im_prom_add(p, im_prom_find(p, "node_infiniband_info", IM_PROM_GAUGE, "Board, firmware and type of an RDMA device."), node, IM_COUNT_OF(node), 1);
}

void im_export_machine(im_prom *p, const im_machine *m, const im_machine *before, double seconds, bool beside_node_exporter)
{
    for (size_t d = 0; d < m->nrdma; d++) {
        if (!beside_node_exporter)
            device_of(p, &m->rdma[d]);
        for (size_t k = 0; k < m->rdma[d].nports; k++)
            im_export_port(p, &m->rdma[d], &m->rdma[d].port[k], beside_node_exporter);
    }
    if (!m->rdma_why)
        im_prom_add_count(p, im_prom_find(p, "imece_fabric_rdma_devices", IM_PROM_GAUGE, "RDMA devices that the kernel has."), NULL, 0, m->nrdma);
    im_export_pcie(p, m, before, seconds);
    for (size_t i = 0; i < m->nnets; i++) {
        const im_net *n = &m->net[i];
        const im_prom_label l[] = {{"netdev", n->name}};
        if (!n->is_virtual && n->carrier_changes.is_number && n->carrier_changes.value >= 0)
            im_prom_add_count(p,
                              im_prom_find(p, "imece_fabric_carrier_changes_total", IM_PROM_COUNTER,
                                           "How often the carrier of a net device came or went: a flapping link."),
                              l, IM_COUNT_OF(l), (uint64_t)n->carrier_changes.value);
    }
}

static im_status collect(im_context *ctx, im_exporter *x, double seconds, reading *now, im_str *out)
{
    im_root *root = NULL;
    im_prom *p;
    IM_TRY(im_root_open(ctx, now->arena, x->o.root, &root));
    im_check_host h = {0};
    im_status status = im_check_host_read(ctx, root, NULL, NULL, NULL, &h); /* this process's variables are not a job's */
    now->m = h.m;
    if (status == IM_OK)
        status = im_prom_create(ctx, now->arena, &p);
    if (status == IM_OK) {
        const reading *was = x->before.m && seconds - x->before.seconds < LEAST_SECONDS ? &x->older : &x->before;
        const im_trouble *first;
        size_t nfirst;
        im_export_machine(p, now->m, was->m, seconds - was->seconds, x->o.beside_node_exporter);
        im_prom_add_count(p, im_prom_find(p, "imece_fabric_unreadable_files", IM_PROM_GAUGE, "Files that are there and could not be read."), NULL, 0,
                          im_root_troubles(root, &first, &nfirst));
        status = im_export_checks(ctx, now->arena, p, &h, x->o.expect_gbps);
        if (status == IM_OK && x->o.nccl)
            status = im_export_nccl(ctx, now->arena, p, x->o.nccl, (double)time(NULL), x->o.nccl_age);
        if (status == IM_OK && x->o.run)
            status = im_export_run(ctx, now->arena, p, x->o.run);
    }
    if (status == IM_OK)
        status = im_prom_write(ctx, p, out);
    im_root_close(root);
    return status;
}

im_status im_exporter_collect(im_context *ctx, im_exporter *x, double seconds, im_str *out)
{
    reading now = {.seconds = seconds};
    IM_TRY(im_arena_create(ctx, &now.arena));
    const im_status status = collect(ctx, x, seconds, &now, out);
    if (status != IM_OK || (x->before.m && seconds - x->before.seconds < LEAST_SECONDS)) {
        im_arena_destroy(now.arena);
        return status;
    }
    im_arena_destroy(x->older.arena);
    x->older = x->before;
    x->before = now;
    return IM_OK;
}
