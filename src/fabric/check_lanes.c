/* Service levels and virtual lanes on InfiniBand. */
#include "fabric/check_rows.h"
#include "fabric/lanes.h"

#include <string.h>

/* ---- what is known ------------------------------------------------------------------------------ */

typedef struct known {
    im_lanes lanes;
    const char *map_from, *weights_from; /* paths; NULL: not known */
    im_lanes_policy policy;
    const char *policy_from;
} known;

static im_reading first_of(const im_check_host *h, const char *const *paths, size_t n)
{
    im_reading r = {.why = "absent"};
    for (size_t i = 0; i < n && !r.text; i++)
        r = im_root_read(h->root, "%s", paths[i]);
    return r;
}

/* smpquery tells what the port has; OpenSM's file what it should get. */
static void look(const im_check_host *h, const im_rdma_device *d, const im_rdma_port *p, known *k)
{
    static const char *const confs[] = {IM_BUNDLE_DIR "/opensm.conf", "/etc/opensm/opensm.conf", "/etc/rdma/opensm.conf"};
    static const char *const policies[] = {IM_BUNDLE_DIR "/qos-policy.conf", "/etc/opensm/qos-policy.conf", "/etc/rdma/qos-policy.conf"};
    *k = (known){.policy = {.fallback = -1, .storage = -1}};
    im_lanes_init(&k->lanes);
    im_reading r = first_of(h, confs, IM_COUNT_OF(confs));
    if (r.text) {
        im_lanes_opensm(r.text, &k->lanes);
        k->map_from = k->lanes.map_known ? r.path : NULL;
        k->weights_from = k->lanes.weights_known ? r.path : NULL;
    }
    im_lanes live;
    im_lanes_init(&live);
    r = im_root_read(h->root, IM_BUNDLE_DIR "/smpquery-sl2vl-%s-%d.txt", d->name, p->number);
    if (r.text && im_lanes_sl2vl(r.text, &live)) {
        memcpy(k->lanes.vl, live.vl, sizeof live.vl);
        k->lanes.map_known = true;
        k->map_from = r.path;
    }
    r = im_root_read(h->root, IM_BUNDLE_DIR "/smpquery-vlarb-%s-%d.txt", d->name, p->number);
    if (r.text && im_lanes_vlarb(r.text, &live)) {
        memcpy(k->lanes.high, live.high, sizeof live.high);
        memcpy(k->lanes.low, live.low, sizeof live.low);
        k->lanes.weights_known = true;
        k->weights_from = r.path;
    }
    r = first_of(h, policies, IM_COUNT_OF(policies));
    if (r.text) {
        im_lanes_policy_parse(r.text, &k->policy);
        k->policy_from = r.path;
    }
}

/* NCCL_IB_SL, else UCX_IB_SL, else 0; *name: the variable, or NULL. */
static int training_sl(const im_check_host *h, const char **name)
{
    static const char *const names[] = {"NCCL_IB_SL", "UCX_IB_SL"};
    for (size_t i = 0; i < IM_COUNT_OF(names); i++) {
        const char *v = im_check_env(h, names[i]);
        const im_env_number n = v ? im_env_nccl_int(v) : (im_env_number){0};
        if (n.digits && n.value >= 0 && n.value < 1000) {
            *name = names[i];
            return (int)n.value;
        }
    }
    *name = NULL;
    return 0;
}

static const im_rdma_port *first_port(const im_check_host *h, const im_rdma_device **of)
{
    IM_EACH_PORT(h)
    {
        if (!p->ethernet && p->link_layer.text && im_port_is_active(p)) {
            *of = d;
            return p;
        }
    }
    return NULL;
}

static void mend_query(im_check_result *r, const im_rdma_device *d, const im_rdma_port *p, const char *what)
{
    im_check_mend(r, "smpquery -C %s -P %d %s %lld %d > commands/smpquery-%s-%s-%d.txt    # into the bundle; `imece fabric bundle` as root does it",
                  d->name, p->number, what, (long long)(p->lid.is_number ? p->lid.value : 0), p->number, what, d->name, p->number);
}

/* ---- the service level ---------------------------------------------------------------------------- */

void im_check_ib_sl(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    const im_rdma_device *d = NULL;
    const im_rdma_port *p = first_port(h, &d);
    const char *name, *nccl = im_check_env(h, "NCCL_IB_SL"), *ucx = im_check_env(h, "UCX_IB_SL");
    const int sl = training_sl(h, &name);
    known k;
    if (!p) {
        im_check_note(r, "no active InfiniBand port");
        return;
    }
    look(h, d, p, &k);
    const char *set = name ? im_arena_printf(r->arena, "%s=%s", name, im_check_env(h, name)) : NULL;
    const char *where = im_check_port_name(r->arena, d, p);
    if (sl > 15) {
        im_check_say(r, IM_VERDICT_FAIL, NULL, im_env_used(&h->env, name)->file, set, "service levels are 0 to 15");
        im_check_mend(r, "unset %s", name);
    } else if (k.lanes.map_known && k.lanes.vl[sl] == 15) {
        im_check_say(r, IM_VERDICT_FAIL, where, k.map_from, im_arena_printf(r->arena, "SL %d -> VL 15", sl),
                     "service level %d%s%s%s is dropped: VL 15 takes no data", sl, set ? " (" : "", set ? set : "", set ? ")" : "");
        im_check_mend(r, "export NCCL_IB_SL=0    # or another that the subnet manager maps to a data lane");
    } else if (k.lanes.map_known && k.lanes.weights_known && k.lanes.vl[sl] >= 0 && !k.lanes.high[k.lanes.vl[sl]] && !k.lanes.low[k.lanes.vl[sl]]) {
        im_check_say(r, IM_VERDICT_FAIL, where, k.weights_from, im_arena_printf(r->arena, "SL %d -> VL %d, weight 0", sl, k.lanes.vl[sl]),
                     "the lane of service level %d stands in no arbitration list: what is sent on it waits", sl);
        im_check_mend(r, "grep -e qos_sl2vl -e qos_vlarb /etc/opensm/opensm.conf    # give VL %d a weight, and restart opensm", k.lanes.vl[sl]);
    } else if (sl && !k.lanes.map_known) {
        im_check_say(r, IM_VERDICT_UNKNOWN, where, NULL, set,
                     "which lane service level %d takes is not known: neither smpquery's output nor OpenSM's file is here", sl);
        mend_query(r, d, p, "sl2vl");
    }
    if (nccl && ucx && strcmp(nccl, ucx) != 0 && strcmp(ucx, "auto") != 0) {
        im_check_say(r, IM_VERDICT_WARN, NULL, im_env_used(&h->env, "UCX_IB_SL")->file,
                     im_arena_printf(r->arena, "NCCL_IB_SL=%s, UCX_IB_SL=%s", nccl, ucx), "NCCL and UCX send on two service levels");
        im_check_mend(r, "export UCX_IB_SL=%s", nccl);
    }
    im_check_note(r, "service level %d%s", sl, k.lanes.map_known ? im_arena_printf(r->arena, ", VL %d", k.lanes.vl[sl > 15 ? 0 : sl]) : "");
}

/* ---- storage ----------------------------------------------------------------------------------------- */

/* A module or a mount that carries storage over RDMA; NULL: none seen. */
static const char *storage_seen(const im_check_host *h)
{
    static const char *const modules[] = {"ko2iblnd", "ib_srp", "ib_iser", "nvme_rdma", "rpcrdma", "beegfs", "mmfs26"};
    for (size_t i = 0; i < IM_COUNT_OF(modules); i++) {
        char *path = im_arena_printf(im_root_arena(h->root), "/sys/module/%s", modules[i]);
        if (path && im_root_exists(h->root, path))
            return path;
    }
    const im_reading mounts = im_root_read(h->root, "/proc/self/mounts");
    if (mounts.text && (strstr(mounts.text, "proto=rdma") || strstr(mounts.text, "@o2ib")))
        return "/proc/self/mounts";
    return NULL;
}

static void mend_lanes(im_check_result *r, int storage)
{
    im_str s = {0};
    im_lanes_fragment(im_lanes_free_sl(storage), storage, &s);
    im_check_mend(r, "%s", im_str_text(&s));
    im_str_free(&s);
}

static void judge_lanes(im_check_result *r, const char *where, const known *k, int training, int storage, const char *evidence)
{
    const im_lanes *l = &k->lanes;
    if (training == storage || (l->map_known && l->vl[training] == l->vl[storage])) {
        const char *lane = l->map_known ? im_arena_printf(r->arena, "SL %d and SL %d -> VL %d", training, storage, l->vl[training])
                                        : im_arena_printf(r->arena, "SL %d and SL %d", training, storage);
        im_check_say(r, IM_VERDICT_WARN, where, k->map_from ? k->map_from : evidence, lane,
                     "training (SL %d) and storage (SL %d, %s) share a virtual lane", training, storage, evidence);
        mend_lanes(r, storage);
        return;
    }
    if (!l->weights_known) {
        im_check_say(r, IM_VERDICT_UNKNOWN, where, NULL, NULL, "lanes differ (VL %d and VL %d); how they share the link is not known",
                     l->vl[training], l->vl[storage]);
        return;
    }
    const int t = l->vl[training], s = l->vl[storage];
    if (t >= 0 && s >= 0 && l->high[s] && !l->high[t]) {
        im_check_say(r, IM_VERDICT_WARN, where, k->weights_from, im_arena_printf(r->arena, "high: VL %d weight %d; VL %d weight 0", s, l->high[s], t),
                     "storage's lane goes ahead of training's: VL %d stands in the high list alone", s);
        mend_lanes(r, storage);
        return;
    }
    im_check_note(r, "training on VL %d, storage on VL %d", t, s);
}

void im_check_ib_lanes(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    const im_rdma_device *d = NULL;
    const im_rdma_port *p = first_port(h, &d);
    const char *name, *seen = storage_seen(h);
    const int training = training_sl(h, &name);
    known k;
    if (!p || training > 15) {
        im_check_note(r, p ? "the service level is not one" : "no active InfiniBand port");
        return;
    }
    look(h, d, p, &k);
    const char *where = im_check_port_name(r->arena, d, p);
    if (o->storage_sl < 0 && k.policy.storage < 0 && !seen) {
        im_check_note(r, "no storage over RDMA is seen here (modules, mounts, OpenSM's policy)");
        return;
    }
    const int storage = o->storage_sl >= 0       ? o->storage_sl
                        : k.policy.storage >= 0  ? k.policy.storage
                        : k.policy.fallback >= 0 ? k.policy.fallback
                                                 : 0;
    const char *evidence = o->storage_sl >= 0      ? "--storage-sl"
                           : k.policy.storage >= 0 ? im_arena_printf(r->arena, "%s: %s", k.policy_from, k.policy.storage_rule)
                           : seen                  ? seen
                                                   : k.policy_from;
    if (storage > 15) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, NULL, NULL, "service level %d of storage is not one (0 to 15)", storage);
    } else if (training != storage && !k.lanes.map_known) {
        im_check_say(
            r, IM_VERDICT_UNKNOWN, where, NULL, NULL,
            "training has SL %d and storage SL %d; whether they take two lanes is not known: neither smpquery's output nor OpenSM's file is here",
            training, storage);
        mend_query(r, d, p, "sl2vl");
    } else {
        judge_lanes(r, where, &k, training, storage, evidence);
    }
}
