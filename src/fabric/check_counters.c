/* Counters: link errors, flaps, loss, errors that ended connections, congestion. One reading gives what stands since somebody cleared
 * it or the driver came; two give what happens now. Thresholds of standing values are those of infiniband-diags (error_thresholds). */
#include "fabric/check_rows.h"

#include <string.h>

static const struct threshold {
    const char *name;
    uint64_t most; /* a standing value below it is no finding */
} thresholds[] = {
    {"symbol_error", 10},
    {"link_error_recovery", 10},
    {"port_rcv_errors", 10},
    {"local_link_integrity_errors", 10},
    {"excessive_buffer_overrun_errors", 10},
    {"port_rcv_remote_physical_errors", 100},
    {"port_rcv_switch_relay_errors", 100},
    {"port_xmit_constraint_errors", 100},
    {"port_rcv_constraint_errors", 100},
    {"port_xmit_discards", 100},
    {"VL15_dropped", 100},
    {"rx_icrc_encapsulated", 10},
    /* of the hardware: any growth counts; a standing value is a suggestion of ours */
    {"packet_seq_err", 100},
    {"implied_nak_seq_err", 100},
    {"local_ack_timeout_err", 10},
    {"rnr_nak_retry_err", 100},
    {"out_of_buffer", 100},
    {"roce_adp_retrans_to", 10},
    {"rp_cnp_ignored", 1},
};

static uint64_t threshold_of(const char *name)
{
    for (size_t i = 0; i < IM_COUNT_OF(thresholds); i++)
        if (strcmp(thresholds[i].name, name) == 0)
            return thresholds[i].most;
    return UINT64_MAX; /* out of sequence, duplicates: usual with adaptive routing; growth alone is judged */
}

static const char *number(im_check_result *r, uint64_t v)
{
    return im_arena_printf(r->arena, "%llu", (unsigned long long)v);
}

/* Whether adaptive routing explains packets out of order: usual on InfiniBand, not on RoCE. */
static bool is_reordering(const char *name)
{
    return strcmp(name, "out_of_sequence") == 0 || strcmp(name, "duplicate_request") == 0 || strcmp(name, "out_of_seq_request") == 0;
}

/* One counter. rising: the verdict when it grows now; standing: when it is past its threshold. Returns whether it was reported. */
static bool judge(const im_check_host *h, im_check_result *r, const char *where, const im_counter *c, im_verdict rising, im_verdict standing)
{
    const im_counter_about *about = im_counter_find(c->name);
    const char *meaning = about ? about->meaning : "";
    uint64_t by = 0;
    const bool two = im_check_rise(h, c, &by);
    if (two && by) {
        im_check_say(r, rising, where, c->path, number(r, c->value), "%s: %s; rose by %llu in %.3g s (%.3g a second)", c->name, meaning,
                     (unsigned long long)by, h->seconds, (double)by / h->seconds);
        return true;
    }
    if (im_counter_is_pegged(c)) {
        im_check_say(r, standing, where, c->path, number(r, c->value), "%s: %s; it stands at its greatest value and counts no more", c->name,
                     meaning);
        return true;
    }
    if (c->value < threshold_of(c->name))
        return false;
    im_check_say(r, two ? IM_VERDICT_WARN : standing, where, c->path, number(r, c->value), "%s: %s; %s", c->name, meaning,
                 two ? "it does not rise now" : "since it was last cleared (one reading: whether it rises now is not known)");
    return true;
}

static void mend_link(im_check_result *r, const im_rdma_device *d, const im_rdma_port *p, bool pegged)
{
    if (p->ethernet)
        im_check_mend(r, "ethtool -S %s | grep -e phy -e err; ethtool -m %s    # then clean, reseat or change cable and transceiver",
                      im_check_netdev(p), im_check_netdev(p));
    else
        im_check_mend(r, "mlxlink -d %s -c -m    # bit error rates; then clean, reseat or change the cable. Clear: perfquery -x -R -C %s -P %d%s",
                      d->name, d->name, p->number, pegged ? "    # it counts again only then" : "");
}

static void no_counters(im_check_result *r, const char *where, const im_rdma_port *p, bool hw)
{
    const char *why = hw ? p->hw_counters_why : p->counters_why;
    if (why)
        im_check_say(r, IM_VERDICT_UNKNOWN, where, im_arena_printf(r->arena, "%s/%s", p->path, hw ? "hw_counters" : "counters"), NULL,
                     "its %scounters are not known: %s", hw ? "hardware " : "", why);
}

static void readings(const im_check_host *h, im_check_result *r)
{
    if (h->nbefore)
        im_check_note(r, "two readings, %.3g s apart", h->seconds);
    else
        im_check_note(r, "one reading: --interval 1 takes two, and sees what rises");
}

void im_check_link_errors(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    IM_EACH_PORT(h)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        no_counters(r, where, p, false);
        for (size_t i = 0; i < p->ncounters; i++) {
            const im_counter *c = &p->counter[i];
            const im_counter_about *about = im_counter_find(c->name);
            if (!c->known || !about || about->kind != IM_COUNTER_LINK || strcmp(c->name, "link_downed") == 0)
                continue;
            const bool far = strcmp(c->name, "port_rcv_remote_physical_errors") == 0;
            if (!judge(h, r, where, c, far ? IM_VERDICT_WARN : IM_VERDICT_FAIL, IM_VERDICT_WARN))
                continue;
            if (far)
                im_check_mend(r, "ibqueryerrors    # the fault is at another link: the one whose port_rcv_errors or symbol_error rises");
            else
                mend_link(r, d, p, im_counter_is_pegged(c));
        }
    }
    readings(h, r);
}

void im_check_link_flaps(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    enum { DOWNS = 5, CHANGES = 10 }; /* of one day on a machine that runs; a start makes one or two */
    IM_EACH_PORT(h)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        const im_counter *c = im_port_counter(p, "link_downed");
        uint64_t by = 0;
        if (c && c->known && im_check_rise(h, c, &by) && by) {
            im_check_say(r, IM_VERDICT_FAIL, where, c->path, number(r, c->value), "the link went down %llu times in %.3g s", (unsigned long long)by,
                         h->seconds);
            mend_link(r, d, p, false);
        } else if (c && c->known && c->value >= DOWNS) {
            im_check_say(r, IM_VERDICT_WARN, where, c->path, number(r, c->value), "the link went down %llu times since the counter was cleared%s",
                         (unsigned long long)c->value, im_counter_is_pegged(c) ? ", or more: it counts no further" : "");
            mend_link(r, d, p, im_counter_is_pegged(c));
        }
        const im_net *net = p->netdev ? im_machine_net(h->m, p->netdev) : NULL;
        if (net && net->carrier_changes.is_number && net->carrier_changes.value >= CHANGES) {
            im_check_say(r, IM_VERDICT_WARN, where, net->carrier_changes.path, net->carrier_changes.text,
                         "%s lost and found its carrier %lld times since it was made", net->name, (long long)net->carrier_changes.value / 2);
            im_check_mend(r, "dmesg -T | grep -i -e '%s.*link' -e 'mlx5.*link'    # when; then cable, transceiver, the switch's port", net->name);
        }
    }
    readings(h, r);
}

void im_check_loss(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    IM_EACH_PORT(h)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        no_counters(r, where, p, true);
        for (size_t i = 0; i < p->ncounters; i++) {
            const im_counter *c = &p->counter[i];
            const im_counter_about *about = im_counter_find(c->name);
            const bool kind =
                about && (about->kind == IM_COUNTER_LOSS || about->kind == IM_COUNTER_RECEIVER) && strcmp(c->name, "rp_cnp_ignored") != 0;
            if (!c->known || !kind || (is_reordering(c->name) && !p->ethernet))
                continue;
            if (!judge(h, r, where, c, IM_VERDICT_WARN, IM_VERDICT_WARN))
                continue;
            if (about->kind == IM_COUNTER_RECEIVER)
                im_check_mend(r, "imece fabric status --watch    # which host; the receiver's CPU is late: governor, pinning, --cpus-per-task");
            else if (p->ethernet)
                im_check_mend(
                    r, "mlnx_qos -i %s; ethtool -S %s | grep -e prio -e discard    # PFC and ECN on the priority of training? Drops on the switch?",
                    im_check_netdev(p), im_check_netdev(p));
            else
                im_check_mend(r, "ibqueryerrors    # which link drops or damages packets");
        }
    }
    readings(h, r);
}

void im_check_fatal(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    IM_EACH_PORT(h)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        for (size_t i = 0; i < p->ncounters; i++) {
            const im_counter *c = &p->counter[i];
            const im_counter_about *about = im_counter_find(c->name);
            uint64_t by = 0;
            if (!c->known || !about || about->kind != IM_COUNTER_FATAL || !c->value)
                continue;
            const bool now = im_check_rise(h, c, &by) && by;
            im_check_say(r, now ? IM_VERDICT_FAIL : IM_VERDICT_WARN, where, c->path, number(r, c->value), "%s: %s; %s", c->name, about->meaning,
                         now ? "and it happens now" : "since the driver came: jobs have failed on this port");
            im_check_mend(r, "imece fabric diagnose LOG    # of the job that failed: which peer, and what came first");
        }
    }
    readings(h, r);
}

/* ---- congestion -------------------------------------------------------------------------------------- */

static uint64_t value_of(const im_check_host *h, const im_rdma_port *p, const char *name, const im_counter **out)
{
    const im_counter *c = im_port_counter(p, name);
    uint64_t by = 0;
    *out = c && c->known ? c : NULL;
    if (!*out)
        return 0;
    return im_check_rise(h, c, &by) ? by : h->nbefore ? 0 : c->value;
}

void im_check_congestion(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    IM_EACH_PORT(h)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        const im_counter *marked, *sent, *ignored, *packets;
        const uint64_t marks = value_of(h, p, "np_ecn_marked_roce_packets", &marked), answers = value_of(h, p, "np_cnp_sent", &sent);
        const uint64_t deaf = value_of(h, p, "rp_cnp_ignored", &ignored), received = value_of(h, p, "port_rcv_packets", &packets);
        if (marked && sent && marks >= 100 && answers * 1000 < marks) {
            im_check_say(r, IM_VERDICT_WARN, where, sent->path, number(r, sent->value),
                         "%llu packets came marked by congested switches, and %llu notifications went back: the notification point (roce_np) is off",
                         (unsigned long long)marks, (unsigned long long)answers);
            im_check_mend(r, "echo 1 > /sys/class/net/%s/ecn/roce_np/enable/3    # the priority of training", im_check_netdev(p));
        }
        if (deaf) {
            im_check_say(r, IM_VERDICT_WARN, where, ignored->path, number(r, ignored->value),
                         "%llu notifications of congestion were ignored: the reaction point (roce_rp) is off", (unsigned long long)deaf);
            im_check_mend(r, "echo 1 > /sys/class/net/%s/ecn/roce_rp/enable/3    # the priority of training", im_check_netdev(p));
        }
        if (marked && packets && marks * 100 > received && marks >= 1000) {
            im_check_say(r, IM_VERDICT_WARN, where, marked->path, number(r, marked->value),
                         "%.1f %% of the packets that came were marked by congested switches",
                         received ? 100.0 * (double)marks / (double)received : 100.0);
            im_check_mend(r, "imece fabric status --watch    # which port, when; then routing (adaptive routing, more QPs for each connection) or "
                             "other jobs on the same links");
        }
    }
    readings(h, r);
}
