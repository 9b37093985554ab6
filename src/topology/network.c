/* A network while it is read: nodes by id, hosts by name, links. */
#include "topology/network_parts.h"

#include <stdlib.h>
#include <string.h>

double im_lane_gbps(const char *speed, int width)
{
    /* data after the line's encoding (InfiniBand spec vol. 2; XDR: 4 lanes 800) */
    static const struct {
        const char *name;
        double lane;
    } table[] = {{"SDR", 2}, {"DDR", 4}, {"QDR", 8}, {"FDR10", 10}, {"FDR", 14.0 * 64 / 66}, {"EDR", 25}, {"HDR", 50}, {"NDR", 100}, {"XDR", 200}};
    for (size_t i = 0; speed && i < IM_COUNT_OF(table); i++)
        if (strcmp(table[i].name, speed) == 0)
            return table[i].lane * width;
    return 0;
}

const char *im_net_shape_name(im_net_shape s)
{
    static const char *const name[] = {"no switches", "one switch",       "tree", "fat-tree", "dragonfly", "dragonfly+",
                                       "full mesh",   "several networks", "other"};
    return name[s];
}

static im_status no_memory(const im_net_build *b)
{
    return im_fail(b->ctx, IM_ERR_NOMEM, "no memory for the network in %s", b->name);
}

im_status im_net_begin(im_context *ctx, im_arena *a, const char *name, im_net_build *b)
{
    *b = (im_net_build){.ctx = ctx, .a = a, .name = name, .net = IM_ARENA_NEW(a, im_network, 1), .nslot = 1024, .nhost_slot = 1024};
    void *slot, *host_slot;
    if (!b->net)
        return no_memory(b);
    b->net->source = name;
    IM_TRY(im_alloc(ctx, b->nslot, sizeof(int), &slot));
    b->slot = slot;
    IM_TRY(im_alloc(ctx, b->nhost_slot, sizeof(int), &host_slot));
    b->host_slot = host_slot;
    return IM_OK;
}

void im_net_end(im_net_build *b)
{
    free(b->slot);
    free(b->host_slot);
    b->slot = b->host_slot = NULL;
}

/* An array in the arena that doubles. */
static im_status room(im_net_build *b, void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return IM_OK;
    const size_t more = *cap ? 2 * *cap : 64;
    void *grown = im_arena_alloc(b->a, more * size);
    if (!grown)
        return no_memory(b);
    if (n)
        memcpy(grown, *items, n * size);
    *items = grown;
    *cap = more;
    return IM_OK;
}

static const char *key_of(const im_net_build *b, bool host, int i)
{
    return host ? b->net->host[i].name : b->net->node[i].id;
}

static im_status widen(im_net_build *b, bool host)
{
    int **table = host ? &b->host_slot : &b->slot;
    size_t *n = host ? &b->nhost_slot : &b->nslot;
    const size_t used = host ? b->net->nhosts : b->net->nnodes, more = *n * 2;
    void *fresh;
    if (used * 2 < *n)
        return IM_OK;
    IM_TRY(im_alloc(b->ctx, more, sizeof(int), &fresh));
    int *slot = fresh;
    for (size_t i = 0; i < used; i++) {
        const char *key = key_of(b, host, (int)i);
        size_t at = im_hash64(key, strlen(key), 0) & (more - 1);
        while (slot[at])
            at = (at + 1) & (more - 1);
        slot[at] = (int)i + 1;
    }
    free(*table);
    *table = slot;
    *n = more;
    return IM_OK;
}

/* Where key stands or would stand. */
static int *seek(const im_net_build *b, bool host, const char *key)
{
    int *slot = host ? b->host_slot : b->slot;
    const size_t n = host ? b->nhost_slot : b->nslot;
    size_t at = im_hash64(key, strlen(key), 0) & (n - 1);
    while (slot[at] && strcmp(key_of(b, host, slot[at] - 1), key) != 0)
        at = (at + 1) & (n - 1);
    return &slot[at];
}

im_status im_net_node_of(im_net_build *b, const char *id, im_net_kind kind, int *out)
{
    im_network *net = b->net;
    void *nodes = net->node;
    IM_TRY(widen(b, false));
    int *slot = seek(b, false, id);
    if (!*slot) {
        if (net->nnodes >= IM_NET_MAX_NODES)
            return im_fail(b->ctx, IM_ERR_FORMAT, "%s: more than %d nodes", b->name, IM_NET_MAX_NODES);
        IM_TRY(room(b, &nodes, net->nnodes, &b->node_cap, sizeof *net->node));
        net->node = nodes;
        const char *copy = im_arena_strdup(b->a, id);
        if (!copy)
            return no_memory(b);
        net->node[net->nnodes++] = (im_net_node){.kind = kind, .id = copy, .text = copy, .host = -1, .group = -1};
        *slot = (int)net->nnodes;
    }
    *out = *slot - 1;
    return IM_OK;
}

im_status im_net_host_of(im_net_build *b, const char *name, int *out)
{
    im_network *net = b->net;
    void *hosts = net->host;
    IM_TRY(widen(b, true));
    int *slot = seek(b, true, name);
    if (!*slot) {
        IM_TRY(room(b, &hosts, net->nhosts, &b->host_cap, sizeof *net->host));
        net->host = hosts;
        const char *copy = im_arena_strdup(b->a, name);
        if (!copy)
            return no_memory(b);
        net->host[net->nhosts++] = (im_net_host){.name = copy};
        *slot = (int)net->nhosts;
    }
    *out = *slot - 1;
    return IM_OK;
}

im_status im_net_add_link(im_net_build *b, im_net_link link)
{
    im_network *net = b->net;
    void *links = net->link;
    if (net->nlinks >= IM_NET_MAX_LINKS)
        return im_fail(b->ctx, IM_ERR_FORMAT, "%s: more than %d links", b->name, IM_NET_MAX_LINKS);
    IM_TRY(room(b, &links, net->nlinks, &b->link_cap, sizeof *net->link));
    net->link = links;
    net->link[net->nlinks++] = link;
    net->node[link.a].nlinks++;
    net->node[link.b].nlinks++;
    return IM_OK;
}

void im_net_find(im_net_build *b, const char *fmt, ...)
{
    void *findings = b->net->finding;
    if (b->net->nfindings >= 1000 || room(b, &findings, b->net->nfindings, &b->finding_cap, sizeof *b->net->finding) != IM_OK)
        return;
    b->net->finding = findings;
    im_str text = {0};
    va_list ap;
    va_start(ap, fmt);
    im_str_vprintf(&text, fmt, ap);
    va_end(ap);
    const char *copy = im_arena_strdup(b->a, im_str_text(&text));
    if (copy)
        b->net->finding[b->net->nfindings++] = copy;
    im_str_free(&text);
}

im_status im_net_index_of(im_net_build *b, im_net_index *out)
{
    const im_network *net = b->net;
    int *first = IM_ARENA_NEW(b->a, int, net->nnodes + 2), *of = IM_ARENA_NEW(b->a, int, 2 * net->nlinks + 1);
    int *at = IM_ARENA_NEW(b->a, int, net->nnodes + 1);
    if (!first || !of || !at)
        return no_memory(b);
    for (size_t i = 0; i < net->nnodes; i++)
        first[i + 1] = first[i] + net->node[i].nlinks;
    for (size_t i = 0; i < net->nlinks; i++) {
        const im_net_link *l = &net->link[i];
        of[first[l->a] + at[l->a]++] = (int)i;
        of[first[l->b] + at[l->b]++] = (int)i;
    }
    *out = (im_net_index){first, of};
    return IM_OK;
}
