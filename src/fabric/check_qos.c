/* QoS on RoCE: trust mode, PFC, DSCP to priority, ECN, traffic classes.
 *
 *     traffic class (8 bits) = DSCP << 2 | ECN; with trust dscp the port maps DSCP to a priority (by default DSCP >> 3), and PFC and ECN
 *     are set for each priority. Read from sysfs, and from the outputs of mlnx_qos and dcb where a bundle has them.
 */
#include "fabric/check_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct qos {
    int trust;   /* 1 dscp, 0 pcp, -1 not known */
    int pfc;     /* bit p; -1 not known */
    int map[64]; /* priority of each DSCP */
    bool map_told;
    const char *trust_path, *pfc_path, *map_path;
    int override; /* of the traffic class, for all programs; -1: none */
} qos;

/* ---- reading ------------------------------------------------------------------------------------ */

/* "prio:3 dscp:31,30,29,..." lines of mlnx_qos. */
static bool read_map(const char *text, int *map)
{
    bool any = false;
    for (const char *p = strstr(text, "prio:"); p; p = strstr(p, "prio:")) {
        char *end;
        const long prio = strtol(p + 5, &end, 10);
        p += 5;
        end += strspn(end, " \t");
        if (prio < 0 || prio > 7 || strncmp(end, "dscp:", 5) != 0)
            continue;
        for (const char *q = end + 5; *q >= '0' && *q <= '9';) {
            const long dscp = strtol(q, &end, 10);
            if (dscp >= 0 && dscp < 64) {
                map[dscp] = (int)prio;
                any = true;
            }
            q = *end == ',' ? end + 1 : end;
        }
    }
    return any;
}

/* "AF31", "CS6", "EF", "26"; -1: none of them. */
static int dscp_of(const char *s)
{
    if (strncmp(s, "EF", 2) == 0)
        return 46;
    if (strncmp(s, "CS", 2) == 0 && s[2] >= '0' && s[2] <= '7')
        return (s[2] - '0') * 8;
    if (strncmp(s, "AF", 2) == 0 && s[2] >= '1' && s[2] <= '4' && s[3] >= '1' && s[3] <= '3')
        return (s[2] - '0') * 8 + (s[3] - '0') * 2;
    return *s >= '0' && *s <= '9' && atoi(s) < 64 ? atoi(s) : -1;
}

/* "dscp-prio AF31:3 CS6:6" of `dcb app show`. */
static bool read_dcb_app(const char *text, int *map)
{
    const char *p = strstr(text, "dscp-prio");
    bool any = false;
    for (p = p ? p + 9 : NULL; p && *p && *p != '\n';) {
        p += strspn(p, " \t");
        const char *colon = strchr(p, ':');
        const int dscp = dscp_of(p);
        if (!colon || colon - p > 8 || dscp < 0 || colon[1] < '0' || colon[1] > '7')
            break;
        map[dscp] = colon[1] - '0';
        any = true;
        p = colon + 2;
    }
    return any;
}

/* "prio-pfc 0:off 1:off 2:off 3:on ..." of `dcb pfc show`; -1: not so written. */
static int read_dcb_pfc(const char *text)
{
    const char *p = strstr(text, "prio-pfc");
    int bits = 0, n = 0;
    for (p = p ? p + 8 : NULL; p && n < 8; n++) {
        p += strspn(p, " \t");
        if (p[0] != '0' + n || p[1] != ':' || p[2] != 'o')
            return -1;
        bits |= (p[3] == 'n') << n;
        p += strcspn(p, " \t\n");
    }
    return n == 8 ? bits : -1;
}

static void read_qos(const im_check_host *h, im_check_result *r, const im_rdma_device *d, const im_rdma_port *p, qos *q)
{
    const im_env_port *f = im_check_facts(h, d, p);
    const char *net = p->netdev;
    *q = (qos){.trust = f ? f->trust : -1, .pfc = f ? f->pfc : -1, .override = f ? f->traffic_class : -1};
    for (int i = 0; i < 64; i++)
        q->map[i] = i >> 3;
    if (!net)
        return;
    const char *tool = im_arena_printf(r->arena, IM_BUNDLE_DIR "/mlnx_qos-%s.txt", net);
    const im_reading qr = im_root_read(h->root, "%s", tool), app = im_root_read(h->root, IM_BUNDLE_DIR "/dcb-app-%s.txt", net);
    const im_reading pfc = im_root_read(h->root, IM_BUNDLE_DIR "/dcb-pfc-%s.txt", net);
    q->trust_path = qr.text && strstr(qr.text, "trust state") ? tool : im_arena_printf(r->arena, "/sys/class/net/%s/qos/trust", net);
    q->pfc_path = tool;
    q->map_path = tool;
    if (qr.text)
        q->map_told = read_map(qr.text, q->map);
    if (app.text && !q->map_told) {
        q->map_told = read_dcb_app(app.text, q->map);
        q->map_path = app.path;
    }
    if (q->pfc < 0 && pfc.text) {
        q->pfc = read_dcb_pfc(pfc.text);
        q->pfc_path = pfc.path;
    }
}

/* What a variable of a traffic class says; `fallback` where it is not set or "auto". */
static int class_of(const im_check_host *h, const char *name, int fallback)
{
    const char *v = im_check_env(h, name);
    const im_env_number n = v ? im_env_nccl_int(v) : (im_env_number){0};
    return n.digits && n.value >= 0 && n.value <= 255 ? (int)n.value : fallback;
}

/* The class that training's packets get, and the priority of it. */
static int training_class(const im_check_host *h, const qos *q)
{
    return q->override >= 0 ? q->override & 255 : class_of(h, "NCCL_IB_TC", 0);
}

static int training_priority(const im_check_host *h, const qos *q)
{
    return q->trust == 0 ? class_of(h, "NCCL_IB_SL", 0) & 7 : q->map[training_class(h, q) >> 2];
}

static const char *bits_text(im_check_result *r, int bits)
{
    char text[32] = "";
    size_t at = 0;
    for (int i = 0; i < 8; i++)
        if (bits >> i & 1)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", at ? "," : "", i);
    return im_arena_strdup(r->arena, at ? text : "none");
}

/* A traffic class whose DSCP maps to this priority, with ECN ECT(0): 106 for priority 3, as UCX has it. */
static int class_for(const qos *q, int priority)
{
    for (int dscp = 26; dscp < 26 + 64; dscp++)
        if (q->map[dscp % 64] == priority)
            return (dscp % 64) << 2 | 2;
    return 106;
}

static int lowest(int bits)
{
    for (int i = 0; i < 8; i++)
        if (bits >> i & 1)
            return i;
    return 3;
}

/* Walks the active RoCE ports that have a net device. */
#define EACH_ROCE(h, r, q) \
    IM_EACH_PORT(h)        \
    if (p->ethernet && im_port_is_active(p) && p->netdev && (read_qos(h, r, d, p, q), 1))

static void not_told(im_check_result *r, const char *where, const char *what, const im_rdma_port *p)
{
    im_check_say(r, IM_VERDICT_UNKNOWN, where, NULL, NULL,
                 "%s is not known: no file of the driver tells it, and no output of mlnx_qos or dcb is here", what);
    im_check_mend(r, "mlnx_qos -i %s    # in a bundle: > commands/mlnx_qos-%s.txt; without it: dcb pfc show dev %s; dcb app show dev %s", p->netdev,
                  p->netdev, p->netdev, p->netdev);
}

/* ---- the checks ---------------------------------------------------------------------------------- */

void im_check_qos_trust(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    qos q;
    EACH_ROCE(h, r, &q)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        n++;
        if (q.trust < 0) {
            not_told(r, where, "its trust mode", p);
        } else if (q.trust == 0) {
            im_check_say(r, IM_VERDICT_WARN, where, q.trust_path, "pcp",
                         "it trusts pcp: the priority comes from the VLAN tag and the service level, and traffic classes have no effect");
            im_check_mend(r, "mlnx_qos -i %s --trust dscp    # on the switch's port too; for good: a start script", p->netdev);
        }
    }
    im_check_note(r, n ? "%zu RoCE ports" : "no active RoCE port", n);
}

void im_check_qos_pfc(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    int first = -1;
    const char *first_name = NULL;
    size_t n = 0;
    qos q;
    EACH_ROCE(h, r, &q)
    {
        const char *where = im_check_port_name(r->arena, d, p), *list = bits_text(r, q.pfc);
        n++;
        if (q.pfc < 0) {
            not_told(r, where, "its PFC state", p);
            continue;
        }
        if (!q.pfc) {
            im_check_say(r, IM_VERDICT_WARN, where, q.pfc_path, "none",
                         "PFC is off for every priority: under congestion packets are lost, and all that follow are sent again");
            im_check_mend(r,
                          "mlnx_qos -i %s --trust dscp --pfc 0,0,0,1,0,0,0,0    # the switch's ports alike; a fabric that is lossy by design needs "
                          "none: then ECN must be on",
                          p->netdev);
        } else if (__builtin_popcount((unsigned)q.pfc) > 2) {
            im_check_say(r, IM_VERDICT_WARN, where, q.pfc_path, list,
                         "PFC is on for priorities %s: cards and switches have buffers for one or two lossless ones", list);
            im_check_mend(r, "mlnx_qos -i %s --pfc 0,0,0,1,0,0,0,0", p->netdev);
        }
        if (first < 0) {
            first = q.pfc;
            first_name = d->name;
        } else if (q.pfc != first) {
            im_check_say(r, IM_VERDICT_WARN, where, q.pfc_path, list, "PFC on priorities %s, and %s has %s", list, first_name, bits_text(r, first));
            im_check_mend(r, "mlnx_qos -i %s    # make all rails alike, and the switch's ports", p->netdev);
        }
    }
    im_check_note(r, n ? "%zu RoCE ports, lossless priorities %s" : "no active RoCE port", n, first >= 0 ? bits_text(r, first) : "not known");
}

void im_check_qos_dscp(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    int tc = 0, priority = 0;
    qos q;
    EACH_ROCE(h, r, &q)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        n++;
        tc = training_class(h, &q);
        priority = training_priority(h, &q);
        if (q.trust == 0) /* qos-trust tells it */
            continue;
        if (q.pfc < 0) {
            im_check_say(r, IM_VERDICT_UNKNOWN, where, NULL, NULL,
                         "training has traffic class %d (DSCP %d, priority %d%s); which priorities are lossless is not known", tc, tc >> 2, priority,
                         q.map_told ? "" : " by the default map");
            continue;
        }
        if (!q.pfc || q.pfc >> priority & 1)
            continue;
        const int want = lowest(q.pfc), give = class_for(&q, want);
        im_check_say(r, IM_VERDICT_FAIL, where, q.map_told ? q.map_path : q.pfc_path,
                     im_arena_printf(r->arena, "DSCP %d -> priority %d; PFC on %s", tc >> 2, priority, bits_text(r, q.pfc)),
                     "training has traffic class %d (%s): DSCP %d maps to priority %d, and the lossless one is %s", tc,
                     q.override >= 0                 ? "the port's override"
                     : im_check_env(h, "NCCL_IB_TC") ? "NCCL_IB_TC"
                                                     : "NCCL's default",
                     tc >> 2, priority, bits_text(r, q.pfc));
        if (q.override >= 0)
            im_check_mend(r, "echo %d > /sys/class/infiniband/%s/tc/%d/traffic_class    # the override wins over NCCL_IB_TC", give, d->name,
                          p->number);
        else
            im_check_mend(r, "export NCCL_IB_TC=%d UCX_IB_TRAFFIC_CLASS=%d    # DSCP %d, priority %d", give, give, give >> 2, want);
    }
    im_check_note(r, n ? "%zu RoCE ports: traffic class %d, DSCP %d, priority %d" : "no active RoCE port", n, tc, tc >> 2, priority);
}

void im_check_qos_ecn(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    static const char *const side[] = {"roce_np", "roce_rp"};
    static const char *const about[] = {"as the notification point it does not tell senders that its packets were marked",
                                        "as the reaction point it does not slow down when it is told to"};
    size_t n = 0;
    qos q;
    EACH_ROCE(h, r, &q)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        const int priority = training_priority(h, &q);
        n++;
        for (size_t s = 0; s < 2; s++) {
            const im_reading v = im_root_number(h->root, "/sys/class/net/%s/ecn/%s/enable/%d", p->netdev, side[s], priority);
            if (!v.is_number) {
                im_check_say(r, IM_VERDICT_UNKNOWN, where, v.path, v.text, "ECN (%s) is not known: %s", side[s], v.why ? v.why : "no number");
                im_check_mend(r, "cat /sys/class/net/%s/ecn/%s/enable/%d    # the vendor's driver has the file; upstream: mlxreg or the switch",
                              p->netdev, side[s], priority);
            } else if (!v.value) {
                im_check_say(r, IM_VERDICT_WARN, where, v.path, v.text, "ECN is off for priority %d: %s", priority, about[s]);
                im_check_mend(r, "echo 1 > /sys/class/net/%s/ecn/%s/enable/%d    # for good: a start script; marking on the switch's queue too",
                              p->netdev, side[s], priority);
            }
        }
    }
    im_check_note(r, n ? "%zu RoCE ports: notification and reaction are on" : "no active RoCE port", n);
}

void im_check_qos_class(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    const char *nccl_set = im_check_env(h, "NCCL_IB_TC"), *ucx_set = im_check_env(h, "UCX_IB_TRAFFIC_CLASS");
    const int nccl = class_of(h, "NCCL_IB_TC", 0), ucx = class_of(h, "UCX_IB_TRAFFIC_CLASS", 106);
    const char *seen = im_arena_printf(r->arena, "NCCL %d%s, UCX %d%s", nccl, nccl_set ? "" : " (default)", ucx, ucx_set ? "" : " (default)");
    size_t n = 0;
    qos q;
    EACH_ROCE(h, r, &q)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        n++;
        if (q.override >= 0) {
            const im_reading file = p->traffic_class;
            if (nccl_set && nccl >> 2 != (q.override & 255) >> 2) {
                im_check_say(r, IM_VERDICT_WARN, where, file.path, file.text, "the port's override %d wins over NCCL_IB_TC=%s", q.override, nccl_set);
                im_check_mend(r,
                              "export NCCL_IB_TC=%d UCX_IB_TRAFFIC_CLASS=%d    # what the packets have anyway; or write another class into that file",
                              q.override, q.override);
            }
            continue;
        }
        if (nccl >> 2 == ucx >> 2)
            continue;
        if (!nccl_set && !ucx_set && q.pfc < 0) {
            im_check_say(r, IM_VERDICT_UNKNOWN, where, NULL, seen,
                         "NCCL and UCX use two traffic classes; whether that matters depends on PFC, which is not known");
            continue;
        }
        if (!nccl_set && !ucx_set && !q.pfc)
            continue; /* nothing is lossless */
        const int give = nccl_set ? nccl : ucx_set ? ucx : class_for(&q, q.pfc > 0 ? lowest(q.pfc) : 3);
        im_check_say(r, IM_VERDICT_WARN, where,
                     nccl_set  ? im_env_used(&h->env, "NCCL_IB_TC")->file
                     : ucx_set ? im_env_used(&h->env, "UCX_IB_TRAFFIC_CLASS")->file
                               : NULL,
                     seen, "NCCL and UCX send in two traffic classes: DSCP %d and DSCP %d", nccl >> 2, ucx >> 2);
        im_check_mend(r, "export NCCL_IB_TC=%d UCX_IB_TRAFFIC_CLASS=%d", give, give);
    }
    im_check_note(r, n ? "%zu RoCE ports: %s" : "no active RoCE port", n, seen);
}
