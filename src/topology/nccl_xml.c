/* The machine's graph in NCCL's XML: <system><cpu><pci><gpu><nvlink/></gpu></pci><pci><nic><net/></nic></pci></cpu></system>, as
 * NCCL_TOPO_DUMP_FILE writes it and NCCL_TOPO_FILE gives it (there often without <gpu> and <net>: then the PCI class tells).
 */
#include "topology/graph.h"

#include <expat.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_DEPTH = 32, MAX_ITEMS = 512, MAX_LINKS = 8192 };

typedef enum tag { TAG_OTHER, TAG_SYSTEM, TAG_CPU, TAG_PCI, TAG_GPU, TAG_NIC, TAG_NET, TAG_NVLINK } tag;

typedef struct link_row {
    size_t gpu;
    const char *target;
    bool is_switch;
    int count;
} link_row;

typedef struct reader {
    im_context *ctx;
    im_arena *a;
    XML_Parser parser;
    const char *name;
    im_graph *g;
    tag stack[MAX_DEPTH];
    int depth;
    /* the <cpu> and the <pci> elements that are open */
    int numa, host, nhosts;
    const char *host_hash[64], *cpus;
    const char *bus[MAX_DEPTH];
    double pci_bytes[MAX_DEPTH];
    int pci_kind[MAX_DEPTH]; /* class >> 8 */
    bool filled[MAX_DEPTH];  /* it has its <gpu> or <net> */
    int npci;
    size_t gpu; /* of the open <gpu> */
    link_row *link;
    size_t nlinks, ncpus;
    im_status status;
} reader;

static void stop(reader *r, im_status status)
{
    if (r->status == IM_OK)
        r->status = status;
    XML_StopParser(r->parser, XML_FALSE);
}

#define WRONG(r, ...) stop((r), im_fail((r)->ctx, IM_ERR_FORMAT, __VA_ARGS__))

static int line_of(const reader *r)
{
    return (int)XML_GetCurrentLineNumber(r->parser);
}

static const char *attribute(const char **attr, const char *key)
{
    for (size_t i = 0; attr[i]; i += 2)
        if (strcmp(attr[i], key) == 0)
            return attr[i + 1];
    return NULL;
}

/* What the text says, held in [min, max]; fallback where there is none. */
static long number(const char **attr, const char *key, int base, long min, long max, long fallback)
{
    const char *text = attribute(attr, key);
    char *end;
    if (!text || !*text)
        return fallback;
    const long v = strtol(text, &end, base);
    return end == text || v < min || v > max ? fallback : v;
}

/* "00000000,0000ffff": 32 bits a word, the highest first -> "0-15". */
static const char *cpu_list(im_arena *a, const char *mask)
{
    enum { MOST = 4096 };
    unsigned char bit[MOST] = {0};
    size_t n = 0;
    for (size_t i = mask ? strlen(mask) : 0; i-- > 0 && n + 4 <= MOST;) {
        const char *digits = "0123456789abcdef", c = (char)(mask[i] | 0x20);
        const char *at = mask[i] == ',' ? NULL : strchr(digits, c);
        if (mask[i] == ',')
            continue;
        if (!at || !*at)
            return NULL; /* "0x": the mask ends here, or it is none */
        for (int b = 0; b < 4; b++)
            bit[n++] = (unsigned char)((at - digits) >> b & 1);
    }
    im_str out = {0};
    for (size_t i = 0; i < n; i++) {
        size_t end = i;
        while (bit[i] && end + 1 < n && bit[end + 1])
            end++;
        if (bit[i])
            im_str_printf(&out, end > i ? "%s%zu-%zu" : "%s%zu", out.len ? "," : "", i, end);
        i = end;
    }
    const char *text = out.len ? im_arena_strdup(a, im_str_text(&out)) : NULL;
    im_str_free(&out);
    return text;
}

/* ---- items --------------------------------------------------------------------------------- */

static void open_cpu(reader *r, const char **attr)
{
    const char *hash = attribute(attr, "host_hash");
    r->ncpus++;
    r->numa = (int)number(attr, "numaid", 0, 0, 1023, -1);
    r->cpus = cpu_list(r->a, attribute(attr, "affinity"));
    if (!r->g->cpu_arch && attribute(attr, "arch")) {
        r->g->cpu_arch = im_arena_strdup(r->a, attribute(attr, "arch"));
        r->g->cpu_vendor = attribute(attr, "vendor") ? im_arena_strdup(r->a, attribute(attr, "vendor")) : NULL;
    }
    r->host = 0;
    while (hash && r->host < r->nhosts && strcmp(r->host_hash[r->host], hash) != 0)
        r->host++;
    if (hash && r->host == r->nhosts && r->nhosts < (int)IM_COUNT_OF(r->host_hash) && (hash = im_arena_strdup(r->a, hash)))
        r->host_hash[r->nhosts++] = hash;
}

static void open_pci(reader *r, const char **attr)
{
    const char *bus = attribute(attr, "busid"), *speed = attribute(attr, "link_speed");
    if (!bus) {
        WRONG(r, "%s: line %d: <pci> without busid", r->name, line_of(r));
        return;
    }
    const double gts = speed ? strtod(speed, NULL) : 0;
    r->bus[r->npci] = im_arena_strdup(r->a, bus);
    r->pci_bytes[r->npci] = gts > 0 && gts < 1000 ? im_pci_rate(gts, number(attr, "link_width", 0, 0, 32, 0)) : 0;
    r->pci_kind[r->npci] = (int)number(attr, "class", 16, 0, 0xffffff, 0) >> 8;
    r->filled[r->npci] = false;
    if (!r->bus[r->npci])
        stop(r, im_fail(r->ctx, IM_ERR_NOMEM, "no memory for %s", r->name));
    r->npci++;
}

/* The item in the innermost open <pci>; the ones around it are switches. */
static im_item *add_item(reader *r, im_item_kind kind)
{
    im_graph *g = r->g;
    if (g->ngpus + g->nnics >= MAX_ITEMS) {
        WRONG(r, "%s: line %d: more than %d GPUs and NICs", r->name, line_of(r), MAX_ITEMS);
        return NULL;
    }
    const int above = r->npci ? r->npci - 1 : 0;
    im_item *x = kind == IM_ITEM_GPU ? &g->gpu[g->ngpus] : &g->nic[g->nnics];
    *x = (im_item){.kind = kind, .numa = r->numa, .host = r->host, .cpus = r->cpus, .active = -1, .ports = -1};
    x->address = r->npci ? r->bus[r->npci - 1] : "";
    x->pci_bytes = r->npci ? r->pci_bytes[r->npci - 1] : 0;
    x->pci_switch = IM_ARENA_NEW(r->a, const char *, above + 1);
    if (!x->pci_switch) {
        stop(r, im_fail(r->ctx, IM_ERR_NOMEM, "no memory for %s", r->name));
        return NULL;
    }
    for (int i = 0; i < above; i++)
        x->pci_switch[x->nswitches++] = r->bus[i];
    if (r->npci)
        r->filled[r->npci - 1] = true;
    *(kind == IM_ITEM_GPU ? &g->ngpus : &g->nnics) += 1;
    return x;
}

/* Names are keys of what is written: of a second item of that name the number goes behind it. */
static const char *one_name(reader *r, const im_item *x, const char *name)
{
    const im_graph *g = r->g;
    for (size_t i = 0; name && i < g->ngpus + g->nnics; i++) {
        const im_item *y = i < g->ngpus ? &g->gpu[i] : &g->nic[i - g->ngpus];
        if (y != x && y->name && strcmp(y->name, name) == 0)
            return im_arena_printf(r->a, "%.100s#%zu", name, g->ngpus + g->nnics - 1);
    }
    return name;
}

static void open_gpu(reader *r, const char **attr)
{
    im_item *x = add_item(r, IM_ITEM_GPU);
    if (!x)
        return;
    r->gpu = r->g->ngpus - 1;
    const long dev = number(attr, "dev", 0, 0, 100000, (long)r->gpu);
    x->name = one_name(r, x, r->nhosts > 1 ? im_arena_printf(r->a, "H%d.GPU%ld", r->host, dev) : im_arena_printf(r->a, "GPU%ld", dev));
}

static void open_net(reader *r, const char **attr)
{
    const char *name = attribute(attr, "name");
    im_item *x = add_item(r, IM_ITEM_NIC);
    if (!x)
        return;
    x->name = one_name(r, x, name && *name ? im_arena_printf(r->a, "%.100s", name) : im_arena_printf(r->a, "net%zu", r->g->nnics - 1));
    x->gbps = (double)number(attr, "speed", 0, 0, 100000000, 0) / 1000;
    x->ethernet = r->npci && r->pci_kind[r->npci - 1] == 0x0200;
}

static void open_nvlink(reader *r, const char **attr)
{
    const char *target = attribute(attr, "target");
    r->g->nvlink_known = true;
    if (!target || r->depth < 2 || r->stack[r->depth - 2] != TAG_GPU)
        return;
    if (r->nlinks == MAX_LINKS) {
        WRONG(r, "%s: line %d: more than %d NVLinks", r->name, line_of(r), MAX_LINKS);
        return;
    }
    const long kind = number(attr, "tclass", 16, 0, 0xffffff, 0);
    r->link[r->nlinks++] = (link_row){r->gpu, im_arena_strdup(r->a, target), kind >> 8 == 0x0680, (int)number(attr, "count", 0, 0, 1000, 1)};
}

/* A <pci> with nothing inside: its class says what it is. */
static void close_pci(reader *r)
{
    const int kind = r->pci_kind[r->npci - 1];
    if (!r->filled[r->npci - 1] && (kind == 0x0302 || kind == 0x0300 || kind == 0x1200)) {
        im_item *x = add_item(r, IM_ITEM_GPU);
        if (x)
            x->name = one_name(r, x, im_arena_printf(r->a, "GPU%zu", r->g->ngpus - 1));
    } else if (!r->filled[r->npci - 1] && (kind == 0x0207 || kind == 0x0200)) {
        im_item *x = add_item(r, IM_ITEM_NIC);
        if (x) {
            x->name = one_name(r, x, x->address);
            x->ethernet = kind == 0x0200;
        }
    }
    r->npci--;
}

/* ---- expat ------------------------------------------------------------------------------------ */

static tag tag_of(const char *name)
{
    static const char *const names[] = {NULL, "system", "cpu", "pci", "gpu", "nic", "net", "nvlink"};
    for (size_t i = 1; i < IM_COUNT_OF(names); i++)
        if (strcmp(names[i], name) == 0)
            return (tag)i;
    return TAG_OTHER;
}

static void XMLCALL on_open(void *arg, const char *name, const char **attr)
{
    reader *r = arg;
    const tag t = tag_of(name);
    if (r->depth == MAX_DEPTH) {
        WRONG(r, "%s: line %d: elements are nested deeper than %d", r->name, line_of(r), MAX_DEPTH);
        return;
    }
    if (r->depth == 0 && t != TAG_SYSTEM) {
        WRONG(r, "%s: line %d: the first element is <%.40s>, not <system>: no topology of NCCL", r->name, line_of(r), name);
        return;
    }
    r->stack[r->depth++] = t;
    switch (t) {
    case TAG_CPU: open_cpu(r, attr); break;
    case TAG_PCI: open_pci(r, attr); break;
    case TAG_GPU: open_gpu(r, attr); break;
    case TAG_NET: open_net(r, attr); break;
    case TAG_NVLINK: open_nvlink(r, attr); break;
    default: break;
    }
}

static void XMLCALL on_close(void *arg, const char *name)
{
    reader *r = arg;
    (void)name;
    if (r->status != IM_OK || !r->depth)
        return;
    if (r->stack[--r->depth] == TAG_PCI && r->npci)
        close_pci(r);
}

static void XMLCALL on_doctype(void *arg, const char *name, const char *sysid, const char *pubid, int internal)
{
    reader *r = arg;
    (void)name, (void)sysid, (void)pubid, (void)internal;
    WRONG(r, "%s: line %d: a document type; NCCL writes none", r->name, line_of(r));
}

/* ---- links ----------------------------------------------------------------------------------------- */

static im_status join_links(reader *r)
{
    im_graph *g = r->g;
    const size_t n = g->ngpus;
    int *to_switch = IM_ARENA_NEW(r->a, int, n + 1);
    g->nvlink = IM_ARENA_NEW(r->a, int, n *n + 1);
    if (!to_switch || !g->nvlink)
        return im_fail(r->ctx, IM_ERR_NOMEM, "no memory for %s", r->name);
    for (size_t i = 0; i < r->nlinks; i++) {
        const link_row *l = &r->link[i];
        g->gpu[l->gpu].nvlinks += l->count;
        if (l->is_switch)
            to_switch[l->gpu] += l->count;
        for (size_t k = 0; l->target && !l->is_switch && k < n; k++)
            if (k != l->gpu && strcasecmp(g->gpu[k].address, l->target) == 0)
                g->nvlink[l->gpu * n + k] += l->count;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k)
                g->nvlink[i * n + k] += to_switch[i] < to_switch[k] ? to_switch[i] : to_switch[k];
    return IM_OK;
}

static int count_numas(const im_graph *g)
{
    bool seen[1024] = {false};
    int n = 0;
    for (size_t i = 0; i < g->ngpus + g->nnics; i++) {
        const im_item *x = i < g->ngpus ? &g->gpu[i] : &g->nic[i - g->ngpus];
        if (x->numa >= 0 && !seen[x->numa]) {
            seen[x->numa] = true;
            n++;
        }
    }
    return n;
}

static im_status parse(reader *r, const char *text, size_t len)
{
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, on_open, on_close);
    XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
    const enum XML_Status got = XML_Parse(r->parser, text, (int)len, XML_TRUE);
    IM_TRY(r->status);
    if (got != XML_STATUS_OK)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: line %d: %s", r->name, line_of(r), XML_ErrorString(XML_GetErrorCode(r->parser)));
    if (!r->ncpus)
        return im_fail(r->ctx, IM_ERR_FORMAT, "%s: no <cpu> in <system>: no topology of NCCL", r->name);
    IM_TRY(join_links(r));
    r->g->numas = count_numas(r->g);
    r->g->hosts = r->nhosts ? r->nhosts : 1;
    return IM_OK;
}

im_status im_graph_from_nccl(im_context *ctx, im_arena *a, const char *name, const char *text, size_t len, im_graph **out)
{
    *out = NULL;
    if (len > (size_t)64 << 20)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: larger than 64 MiB: no topology of one machine", name);
    reader *r = IM_ARENA_NEW(a, reader, 1);
    im_graph *g = IM_ARENA_NEW(a, im_graph, 1);
    if (!r || !g || !(g->gpu = IM_ARENA_NEW(a, im_item, MAX_ITEMS)) || !(g->nic = IM_ARENA_NEW(a, im_item, MAX_ITEMS)) ||
        !(r->link = IM_ARENA_NEW(a, link_row, MAX_LINKS)))
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %s", name);
    g->source = name;
    *r = (reader){.ctx = ctx, .a = a, .name = name, .g = g, .numa = -1, .link = r->link};
    r->parser = XML_ParserCreate(NULL);
    if (!r->parser)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %s", name);
    im_status status = parse(r, text, len);
    XML_ParserFree(r->parser);
    for (size_t i = 0; status == IM_OK && i < g->ngpus + g->nnics; i++)
        if (!(i < g->ngpus ? &g->gpu[i] : &g->nic[i - g->ngpus])->name)
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for %s", name);
    if (status == IM_OK)
        *out = g;
    return status;
}
