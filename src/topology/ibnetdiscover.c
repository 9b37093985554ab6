/* The output of ibnetdiscover. A block for each node: vendid=, devid=, ..., then
 *     Switch  24 "S-005442ba00003080"    # "leaf 3" enhanced port 0 lid 6 lmc 0
 *     [22]    "H-0008f10403961354"[1](8f10403961355)    # "node07 HCA-1" lid 4 4xHDR
 * or the same of a Ca or a Router, whose lines have the GUID of the own port first. -f appends more words, -g writes "[ext 5]".
 */
#include "topology/network_parts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 1024 };

typedef struct reading {
    im_net_build *b;
    int64_t vendor, device; /* of the block that begins */
    int node;               /* of the open block; -1 */
    int line;
    size_t blocks;
} reading;

static im_status wrong(const reading *r, const char *what)
{
    return im_fail(r->b->ctx, IM_ERR_FORMAT, "%s: line %d: %s: no output of ibnetdiscover", r->b->name, r->line, what);
}

static int bounded(const char *text, const char **end, long max)
{
    char *stop;
    errno = 0;
    const long v = isdigit((unsigned char)*text) ? strtol(text, &stop, 10) : -1;
    *end = v < 0 ? text : stop;
    return v < 0 || v > max || errno ? -1 : (int)v;
}

/* What stands between the quotes at *p, into `into`; *p goes behind them. False: there are none. A description may hold anything but '"'. */
static bool quoted(const char **p, char *into, size_t size)
{
    const char *open = strchr(*p, '"'), *close = open ? strchr(open + 1, '"') : NULL;
    if (!close)
        return false;
    size_t n = (size_t)(close - open - 1);
    n = n < size ? n : size - 1;
    memcpy(into, open + 1, n);
    into[n] = '\0';
    *p = close + 1;
    return true;
}

static bool kind_of(const char *id, im_net_kind *kind)
{
    if (!(id[0] == 'S' || id[0] == 'H' || id[0] == 'R') || id[1] != '-' || !isxdigit((unsigned char)id[2]))
        return false;
    *kind = id[0] == 'S' ? IM_NET_SWITCH : id[0] == 'H' ? IM_NET_PORTS : IM_NET_ROUTER;
    return true;
}

/* "node07 HCA-1" and "node07 mlx5_0" are of node07; "MT4129 ConnectX7   Mellanox Technologies" names no host: its GUID does. */
static im_status name_host(im_net_build *b, int node)
{
    im_net_node *n = &b->net->node[node];
    char name[128];
    if (n->host >= 0 || strstr(n->text, "Aggregation Node"))
        return IM_OK;
    const size_t len = strcspn(n->text, " \t/");
    const bool product = strstr(n->text, "Technologies") || strstr(n->text, "ConnectX") || !len;
    snprintf(name, sizeof name, "%.*s", product ? 100 : (int)(len < 100 ? len : 100), product ? n->id : n->text);
    int host;
    IM_TRY(im_net_host_of(b, name, &host));
    n = &b->net->node[node];
    n->host = host;
    b->net->host[host].nodes++;
    return IM_OK;
}

/* Switch, Ca or Router: the number of ports, the id, and behind '#' the description. */
static im_status open_block(reading *r, const char *line, const char *behind)
{
    char id[64], text[256];
    im_net_kind kind;
    const char *p = behind + strspn(behind, " \t");
    const int ports = bounded(p, &p, 1024);
    (void)line;
    if (ports < 0)
        return wrong(r, "no number of ports");
    if (!quoted(&p, id, sizeof id) || !kind_of(id, &kind))
        return wrong(r, "no \"S-...\", \"H-...\" or \"R-...\"");
    IM_TRY(im_net_node_of(r->b, id, kind, &r->node));
    im_net_node *n = &r->b->net->node[r->node];
    n->ports = ports;
    n->vendor = r->vendor;
    n->device = r->device;
    r->vendor = r->device = 0;
    r->blocks++;
    if (quoted(&p, text, sizeof text) && *text) {
        const char *copy = im_arena_strdup(r->b->a, text);
        n->text = copy ? copy : n->text;
    }
    return kind == IM_NET_PORTS ? name_host(r->b, r->node) : IM_OK;
}

/* " 4xHDR" or " 2xNDR" somewhere in the words behind the last quote */
static void find_rate(im_arena *a, const char *p, im_net_link *l)
{
    while (*p) {
        p += strspn(p, " \t");
        const char *x;
        const int width = bounded(p, &x, 12);
        if (width > 0 && *x == 'x' && isupper((unsigned char)x[1])) {
            const size_t n = strcspn(x + 1, " \t");
            char *speed = n < 16 ? im_arena_alloc(a, n + 1) : NULL;
            if (speed)
                memcpy(speed, x + 1, n);
            l->width = width;
            l->speed = speed;
            l->gbps = im_lane_gbps(speed, width);
            return;
        }
        p += strcspn(p, " \t");
    }
}

/* [22] "H-0008f10403961354"[1](8f10403961355)  # ... */
static im_status link_line(reading *r, const char *line)
{
    char id[64], text[256];
    im_net_kind kind;
    im_net_link l = {0};
    const char *p = line + 1;
    l.a_port = bounded(p, &p, 1024);
    if (r->node < 0)
        return wrong(r, "a link that stands in no node's block");
    if (l.a_port < 0 || *p != ']')
        return wrong(r, "no port number in brackets");
    if (!quoted(&p, id, sizeof id) || !kind_of(id, &kind) || *p != '[')
        return wrong(r, "no other end");
    p++;
    l.b_port = bounded(p, &p, 1024);
    if (l.b_port < 0)
        return wrong(r, "no port number of the other end");
    int other;
    IM_TRY(im_net_node_of(r->b, id, kind, &other));
    const char *hash = strchr(p, '#');
    if (hash) {
        p = hash;
        if (quoted(&p, text, sizeof text) && *text && r->b->net->node[other].text == r->b->net->node[other].id) {
            const char *copy = im_arena_strdup(r->b->a, text);
            if (copy)
                r->b->net->node[other].text = copy;
        }
        find_rate(r->b->a, p, &l);
    }
    if (kind == IM_NET_PORTS)
        IM_TRY(name_host(r->b, other));
    l.a = r->node;
    l.b = other;
    return im_net_add_link(r->b, l);
}

static im_status one_line(reading *r, const char *line)
{
    if (strncmp(line, "vendid=", 7) == 0)
        r->vendor = strtoll(line + 7, NULL, 0);
    else if (strncmp(line, "devid=", 6) == 0)
        r->device = strtoll(line + 6, NULL, 0);
    else if (strncmp(line, "Switch", 6) == 0 && isspace((unsigned char)line[6]))
        return open_block(r, line, line + 6);
    else if (strncmp(line, "Ca", 2) == 0 && isspace((unsigned char)line[2]))
        return open_block(r, line, line + 2);
    else if (strncmp(line, "Rt", 2) == 0 && isspace((unsigned char)line[2]))
        return open_block(r, line, line + 2);
    else if (line[0] == '[')
        return link_line(r, line);
    return IM_OK; /* comments, GUIDs, chassis, warnings of the tool */
}

/* Both ends tell of a link: it is kept once. A link that only one end tells stays. */
static int by_ends(const void *pa, const void *pb)
{
    const im_net_link *x = pa, *y = pb;
    const int ax = x->a < x->b ? x->a : x->b, bx = x->a < x->b ? x->b : x->a, ay = y->a < y->b ? y->a : y->b, by = y->a < y->b ? y->b : y->a;
    if (ax != ay || bx != by)
        return ax != ay ? (ax > ay) - (ax < ay) : (bx > by) - (bx < by);
    const int px = x->a < x->b ? x->a_port : x->b_port, py = y->a < y->b ? y->a_port : y->b_port;
    const int qx = x->a < x->b ? x->b_port : x->a_port, qy = y->a < y->b ? y->b_port : y->a_port;
    return px != py ? (px > py) - (px < py) : (qx > qy) - (qx < qy);
}

static void drop_twice(im_network *net)
{
    if (net->nlinks)
        qsort(net->link, net->nlinks, sizeof *net->link, by_ends);
    size_t n = 0;
    for (size_t i = 0; i < net->nnodes; i++)
        net->node[i].nlinks = 0;
    for (size_t i = 0; i < net->nlinks; i++) {
        if (n && by_ends(&net->link[n - 1], &net->link[i]) == 0)
            continue;
        net->link[n++] = net->link[i];
        net->node[net->link[n - 1].a].nlinks++;
        net->node[net->link[n - 1].b].nlinks++;
    }
    net->nlinks = n;
}

static im_status read_all(reading *r, const char *text, size_t len)
{
    char line[MAX_LINE];
    for (size_t at = 0; at < len; r->line++) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - text) - at : len - at;
        const size_t whole = n;
        n = n < sizeof line - 1 ? n : sizeof line - 1;
        for (size_t i = 0; i < n; i++)
            line[i] = text[at + i] && text[at + i] != '\r' && text[at + i] != '\033' ? text[at + i] : ' ';
        line[n] = '\0';
        IM_TRY(one_line(r, line));
        at += whole + 1;
    }
    if (!r->blocks)
        return im_fail(r->b->ctx, IM_ERR_FORMAT, "%s: no line begins with Switch or Ca: no output of ibnetdiscover", r->b->name);
    drop_twice(r->b->net);
    return im_net_analyse(r->b);
}

im_status im_network_from_ibnetdiscover(im_context *ctx, im_arena *a, const char *name, const char *text, size_t len, im_network **out)
{
    im_net_build b;
    *out = NULL;
    im_status status = im_net_begin(ctx, a, name, &b);
    if (status == IM_OK)
        status = read_all(&(reading){.b = &b, .node = -1, .line = 1}, text, len);
    im_net_end(&b);
    if (status == IM_OK)
        *out = b.net;
    return status;
}
