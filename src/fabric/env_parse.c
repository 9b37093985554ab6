/* Values as NCCL reads them. Source: NCCL's src/misc/param.cc, misc/utils.cc, misc/socket.cc, graph/paths.cc and transport/net_ib. */
#include "fabric/env.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const im_env_level_names[IM_ENV_LEVELS] = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"};
const char *const im_env_verdict_names[] = {"ok", "note", "unknown", "warn", "fail"};

im_env_number im_env_nccl_int(const char *text)
{
    im_env_number n = {0};
    char *end;
    errno = 0;
    n.value = strtoll(text, &end, 0);
    n.overflow = errno == ERANGE;
    n.digits = end != text;
    n.trailing = n.digits ? end : text;
    const char *p = text;
    while (isspace((unsigned char)*p))
        p++;
    p += *p == '-' || *p == '+';
    if (n.digits && p[0] == '0' && (p[1] == 'x' || p[1] == 'X') && end > p + 1)
        n.hex = true;
    else if (n.digits && p[0] == '0' && isdigit((unsigned char)p[1]))
        n.octal = true; /* also 08: read as 0, the 8 behind it is ignored */
    return n;
}

void im_env_nccl_list(const char *text, im_env_list *out)
{
    *out = (im_env_list){0};
    if (*text == '^') {
        out->exclude = true;
        text++;
    }
    if (*text == '=') {
        out->exact = true;
        text++;
    }
    out->turned = out->exact && !out->exclude && *text == '^';
    while (*text) {
        size_t n = strcspn(text, ",");
        const char *colon = memchr(text, ':', n);
        size_t own = colon ? (size_t)(colon - text) : n;
        if (own) {
            if (out->n == IM_ENV_LIST_MOST || own >= IM_ENV_NAME_MOST) {
                out->cut = true;
                return;
            }
            memcpy(out->entry[out->n].name, text, own);
            out->entry[out->n].name[own] = '\0';
            /* atoi: an empty field is port 0, which fits none */
            out->entry[out->n].port = colon ? atoi(colon + 1) : -1;
            out->n++;
        }
        text += n + (text[n] == ',');
    }
}

bool im_env_nccl_entry_matches(const im_env_list *l, int i, const char *name, int port)
{
    const char *ref = l->entry[i].name;
    bool same = l->exact ? !strcmp(name, ref) : !strncmp(name, ref, strlen(ref));
    return same && (port < 0 || l->entry[i].port < 0 || port == l->entry[i].port);
}

bool im_env_nccl_list_takes(const im_env_list *l, const char *name, int port)
{
    bool any = l->n == 0; /* an empty list fits everything */
    for (int i = 0; i < l->n && !any; i++)
        any = im_env_nccl_entry_matches(l, i, name, port);
    return any != l->exclude;
}

int im_env_nccl_level(const char *text, bool *legacy)
{
    static const int old[] = {IM_ENV_LOC, IM_ENV_PIX, IM_ENV_PXB, IM_ENV_PHB, IM_ENV_SYS, IM_ENV_SYS};
    *legacy = false;
    for (int i = 0; i < IM_ENV_LEVELS; i++)
        if (!strcmp(text, im_env_level_names[i]))
            return i;
    if (*text < '0' || *text > '9')
        return -1;
    *legacy = true;
    long n = strtol(text, NULL, 0);
    return old[n < 0 || n > 5 ? 5 : n];
}

/* ---- GIDs ------------------------------------------------------------------------------------------ */

const im_env_gid *im_env_gid_at(const im_env_port *p, int index)
{
    for (size_t i = 0; i < p->ngid; i++)
        if (p->gid[i].index == index)
            return &p->gid[i];
    return NULL;
}

bool im_env_gid_is_v4(const im_env_gid *g)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return !memcmp(g->raw, mapped, sizeof mapped) || (g->raw[0] == 0xff && g->raw[1] == 0x0e && g->raw[10] == 0xff && g->raw[11] == 0xff);
}

bool im_env_gid_is_link_local(const im_env_gid *g)
{
    return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

void im_env_gid_text(const im_env_gid *g, char buf[64])
{
    if (im_env_gid_is_v4(g) && g->raw[0] == 0)
        snprintf(buf, 64, "%d.%d.%d.%d", g->raw[12], g->raw[13], g->raw[14], g->raw[15]);
    else if (!inet_ntop(AF_INET6, g->raw, buf, 64))
        snprintf(buf, 64, "?");
}

int im_env_nccl_gid(const im_env_port *p, bool want_v6, int version)
{
    int at = 0, most = p->table;
    for (size_t i = 0; i < p->ngid; i++)
        most = p->gid[i].index >= most ? p->gid[i].index + 1 : most;
    for (int c = 1; c < most; c++) {
        const im_env_gid *now = im_env_gid_at(p, at), *g = im_env_gid_at(p, c);
        bool now_v6 = !now || !im_env_gid_is_v4(now), v6 = !g || !im_env_gid_is_v4(g); /* an empty entry counts as IPv6 */
        bool now_valid = now && !im_env_gid_is_link_local(now), valid = g && !im_env_gid_is_link_local(g);
        if (v6 != now_v6 && v6 == want_v6) {
            at = c; /* the family alone decides, whatever the version */
            continue;
        }
        if (v6 != want_v6 || !valid || !g->version)
            continue;
        if ((!now || now->version != g->version || !now_valid) && g->version == version)
            at = c;
    }
    return at;
}

/* ---- interfaces -------------------------------------------------------------------------------------- */

static size_t take(const im_env_facts *f, const char *list, const im_env_net **out, size_t most)
{
    im_env_list l;
    size_t n = 0;
    im_env_nccl_list(list, &l);
    /* in the system's order, that of the ifindex */
    for (int last = -1; n < most;) {
        const im_env_net *next = NULL;
        for (size_t i = 0; i < f->nnet; i++)
            if (f->net[i].order > last && (!next || f->net[i].order < next->order))
                next = &f->net[i];
        if (!next)
            break;
        last = next->order;
        if (next->up != 0 && next->addressed != 0 && im_env_nccl_list_takes(&l, next->name, -1))
            out[n++] = next;
    }
    return n;
}

size_t im_env_nccl_interfaces(const im_env_facts *f, const char *list, const im_env_net **out, size_t most)
{
    static const char *const orders[] = {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"};
    if (list && strlen(list) > 1) /* shorter: as if unset */
        return take(f, list, out, most);
    for (size_t i = 0; i < IM_COUNT_OF(orders); i++) {
        size_t n = take(f, orders[i], out, most);
        if (n)
            return n;
    }
    return 0;
}
