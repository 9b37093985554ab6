/* Slurm's topology.conf of topology/tree:
 *     SwitchName=leaf0 Nodes=node[00-15]
 *     SwitchName=spine Switches=leaf[0-3]    # words may stand in any order and case
 * A list has commas and brackets with numbers; a number keeps its leading zeros.
 */
#include "topology/network_parts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_NAMES = 1 << 18, MAX_NAME = 200 };

typedef struct conf {
    im_net_build *b;
    int line;
    size_t names; /* made so far, against "n[0-999999999]" */
} conf;

/* What is done with each name of a list; `above` is the switch of the line. */
typedef im_status (*name_fn)(conf *c, int above, const char *name);

static im_status expand(conf *c, const char *text, size_t n, char *made, size_t len, int above, name_fn use)
{
    size_t lead = 0;
    while (lead < n && text[lead] != '[')
        lead++;
    if (len + lead >= MAX_NAME)
        return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: a name longer than %d", c->b->name, c->line, MAX_NAME);
    memcpy(made + len, text, lead);
    len += lead;
    made[len] = '\0';
    if (lead == n) {
        if (++c->names > MAX_NAMES)
            return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: more than %d names", c->b->name, c->line, MAX_NAMES);
        return len ? use(c, above, made) : IM_OK;
    }
    const char *p = text + lead + 1, *close = memchr(p, ']', n - lead - 1);
    if (!close)
        return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: \"[\" without \"]\"", c->b->name, c->line);
    const char *behind = close + 1;
    while (p < close) {
        char *end;
        const int digits = (int)strspn(p, "0123456789");
        const long from = digits && digits < 10 ? strtol(p, &end, 10) : -1;
        const bool range = from >= 0 && *end == '-';
        const long to = range && isdigit((unsigned char)end[1]) && strspn(end + 1, "0123456789") < 10 ? strtol(end + 1, &end, 10) : range ? -1 : from;
        if (from < 0 || to < from || (*end != ',' && end != close))
            return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: \"%.*s\" is no list of numbers", c->b->name, c->line, (int)(close - p), p);
        for (long v = from; v <= to; v++) {
            char number[24];
            const int wrote = snprintf(number, sizeof number, "%0*ld", digits, v);
            if (len + (size_t)wrote >= MAX_NAME)
                return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: a name longer than %d", c->b->name, c->line, MAX_NAME);
            memcpy(made + len, number, (size_t)wrote + 1);
            IM_TRY(expand(c, behind, n - (size_t)(behind - text), made, len + (size_t)wrote, above, use));
        }
        p = end + (*end == ',');
    }
    return IM_OK;
}

static im_status each_name(conf *c, const char *list, size_t n, int above, name_fn use)
{
    char made[MAX_NAME + 1];
    size_t from = 0;
    int depth = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && list[i] == '[')
            depth++;
        else if (i < n && list[i] == ']')
            depth--;
        else if (i == n || (list[i] == ',' && depth <= 0)) {
            IM_TRY(expand(c, list + from, i - from, made, 0, above, use));
            from = i + 1;
        }
    }
    return IM_OK;
}

static im_status switch_of(conf *c, const char *name, int *out)
{
    char id[MAX_NAME + 8];
    snprintf(id, sizeof id, "switch %s", name); /* a host may have a switch's name */
    IM_TRY(im_net_node_of(c->b, id, IM_NET_SWITCH, out));
    const char *copy = im_arena_strdup(c->b->a, name);
    if (copy)
        c->b->net->node[*out].text = copy;
    return IM_OK;
}

static im_status add_switch(conf *c, int above, const char *name)
{
    int below;
    IM_TRY(switch_of(c, name, &below));
    if (below == above)
        return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: switch %s is below itself", c->b->name, c->line, name);
    return im_net_add_link(c->b, (im_net_link){.a = above, .b = below});
}

static im_status add_node(conf *c, int above, const char *name)
{
    char id[MAX_NAME + 8];
    int node, host;
    snprintf(id, sizeof id, "node %s", name);
    IM_TRY(im_net_node_of(c->b, id, IM_NET_PORTS, &node));
    IM_TRY(im_net_host_of(c->b, name, &host));
    im_net_node *n = &c->b->net->node[node];
    if (n->host >= 0)
        im_net_find(c->b, "node %s is at several switches (line %d): Slurm takes one", name, c->line);
    else
        c->b->net->host[host].nodes++;
    n->host = host;
    n->text = c->b->net->host[host].name;
    return im_net_add_link(c->b, (im_net_link){.a = above, .b = node});
}

/* The value of key= in the line, up to a blank; NULL: it has none. */
static const char *value_of(const char *line, const char *key, size_t *n)
{
    const size_t k = strlen(key);
    for (const char *p = line; *p;) {
        p += strspn(p, " \t");
        const size_t word = strcspn(p, " \t");
        if (word > k && strncasecmp(p, key, k) == 0 && p[k] == '=') {
            *n = word - k - 1;
            return p + k + 1;
        }
        p += word;
    }
    return NULL;
}

static im_status one_line(conf *c, char *line)
{
    line[strcspn(line, "#\r")] = '\0';
    size_t n, nswitches = 0, nnodes = 0;
    const char *name = value_of(line, "SwitchName", &n), *block = value_of(line, "BlockName", &nnodes);
    if (!line[strspn(line, " \t")] || value_of(line, "BlockSizes", &nnodes))
        return IM_OK;
    if (block)
        return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: BlockName: topology/block is not read, only topology/tree", c->b->name, c->line);
    if (!name || !n || n > MAX_NAME)
        return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: no SwitchName=: no topology.conf of topology/tree", c->b->name, c->line);
    const char *switches = value_of(line, "Switches", &nswitches), *nodes = value_of(line, "Nodes", &nnodes);
    char own[MAX_NAME + 1];
    int above;
    memcpy(own, name, n);
    own[n] = '\0';
    IM_TRY(switch_of(c, own, &above));
    c->b->net->node[above].ports = -1; /* it has a line */
    if (!switches && !nodes)
        return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: line %d: switch %s has neither Switches= nor Nodes=", c->b->name, c->line, own);
    if (switches)
        IM_TRY(each_name(c, switches, nswitches, above, add_switch));
    return nodes ? each_name(c, nodes, nnodes, above, add_node) : IM_OK;
}

static im_status read_all(conf *c, char *text)
{
    bool any = false;
    for (char *line = text; line; c->line++) {
        char *nl = strchr(line, '\n');
        if (nl)
            *nl = '\0';
        IM_TRY(one_line(c, line));
        line = nl ? nl + 1 : NULL;
    }
    for (size_t i = 0; i < c->b->net->nnodes; i++) {
        im_net_node *n = &c->b->net->node[i];
        any = any || n->ports < 0;
        if (n->kind == IM_NET_SWITCH && n->ports >= 0)
            im_net_find(c->b, "switch %s is named below another and has no line of its own", n->text);
        n->ports = 0;
    }
    if (!any)
        return im_fail(c->b->ctx, IM_ERR_FORMAT, "%s: no line SwitchName=: no topology.conf of Slurm", c->b->name);
    return im_net_analyse(c->b);
}

im_status im_network_from_slurm(im_context *ctx, im_arena *a, const char *name, const char *text, size_t len, im_network **out)
{
    im_net_build b;
    void *copy = NULL;
    *out = NULL;
    im_status status = im_net_begin(ctx, a, name, &b);
    if (status == IM_OK)
        status = im_alloc(ctx, len + 1, 1, &copy);
    if (status == IM_OK) {
        for (size_t i = 0; i < len; i++)
            ((char *)copy)[i] = text[i] ? text[i] : ' ';
        status = read_all(&(conf){.b = &b, .line = 1}, copy);
    }
    free(copy);
    im_net_end(&b);
    if (status == IM_OK)
        *out = b.net;
    return status;
}
