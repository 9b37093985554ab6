/* What the counters of ports mean, and the rates between two samples. Widths are those of the PMA's attributes (InfiniBand spec
 * vol. 1, 16.1.3.5): such a counter stays at its greatest value until it is cleared. */
#include "fabric/status.h"

#include <string.h>

static const im_counter_about table[] = {
    {"port_xmit_data", IM_COUNTER_BYTES, 0, "sent, in units of 4 bytes"},
    {"port_rcv_data", IM_COUNTER_BYTES, 0, "received, in units of 4 bytes"},
    {"port_xmit_packets", IM_COUNTER_PACKETS, 0, "sent"},
    {"port_rcv_packets", IM_COUNTER_PACKETS, 0, "received"},
    {"sent_pkts", IM_COUNTER_PACKETS, 0, "sent (Soft-RoCE)"},
    {"rcvd_pkts", IM_COUNTER_PACKETS, 0, "received (Soft-RoCE)"},
    {"symbol_error", IM_COUNTER_LINK, 16, "bits damaged on the line; bad with link_error_recovery"},
    {"link_error_recovery", IM_COUNTER_LINK, 8, "the link trained again and came back"},
    {"link_downed", IM_COUNTER_LINK, 8, "the link went down"},
    {"port_rcv_errors", IM_COUNTER_LINK, 16, "damaged packets arrived: cable or connector"},
    {"port_rcv_remote_physical_errors", IM_COUNTER_LINK, 16, "packets that were damaged before the last switch: the fault is elsewhere"},
    {"port_rcv_switch_relay_errors", IM_COUNTER_LINK, 16, "a switch could not forward: routing"},
    {"port_xmit_discards", IM_COUNTER_LOSS, 16, "dropped before sending: congestion or a dead link"},
    {"port_xmit_constraint_errors", IM_COUNTER_LINK, 8, "not sent: partition"},
    {"port_rcv_constraint_errors", IM_COUNTER_LINK, 8, "refused: partition"},
    {"local_link_integrity_errors", IM_COUNTER_LINK, 4, "damaged packets in a row"},
    {"excessive_buffer_overrun_errors", IM_COUNTER_LINK, 4, "buffers ran over"},
    {"VL15_dropped", IM_COUNTER_LINK, 16, "management packets dropped"},
    {"port_xmit_wait", IM_COUNTER_CONGESTION, 32, "ticks with data and no credit to send it"},
    {"out_of_buffer", IM_COUNTER_RECEIVER, 0, "no receive was posted when data came"},
    {"rnr_nak_retry_err", IM_COUNTER_RECEIVER, 0, "the receiver was not ready"},
    {"rcvd_rnr_err", IM_COUNTER_RECEIVER, 0, "the receiver was not ready"},
    {"send_rnr_err", IM_COUNTER_RECEIVER, 0, "this side was not ready"},
    {"out_of_sequence", IM_COUNTER_LOSS, 0, "packets out of order: loss, or adaptive routing, where it is usual"},
    {"packet_seq_err", IM_COUNTER_LOSS, 0, "the peer missed packets"},
    {"implied_nak_seq_err", IM_COUNTER_LOSS, 0, "an answer was lost"},
    {"local_ack_timeout_err", IM_COUNTER_LOSS, 0, "no acknowledgement in time"},
    {"duplicate_request", IM_COUNTER_LOSS, 0, "the peer sent again"},
    {"roce_adp_retrans", IM_COUNTER_LOSS, 0, "sent again"},
    {"roce_adp_retrans_to", IM_COUNTER_LOSS, 0, "sent again after a time-out"},
    {"rx_icrc_encapsulated", IM_COUNTER_LINK, 0, "RoCE packets with a bad checksum"},
    {"rcvd_seq_err", IM_COUNTER_LOSS, 0, "the peer missed packets"},
    {"out_of_seq_request", IM_COUNTER_LOSS, 0, "requests out of order"},
    {"completer_retry_err", IM_COUNTER_LOSS, 0, "sent again"},
    {"req_transport_retries_exceeded", IM_COUNTER_FATAL, 0, "gave up after all retries"},
    {"req_rnr_retries_exceeded", IM_COUNTER_FATAL, 0, "gave up: the receiver never was ready"},
    {"retry_exceeded_err", IM_COUNTER_FATAL, 0, "gave up after all retries"},
    {"retry_rnr_exceeded_err", IM_COUNTER_FATAL, 0, "gave up: the receiver never was ready"},
    {"req_remote_access_errors", IM_COUNTER_FATAL, 0, "the peer refused an access to its memory"},
    {"resp_remote_access_errors", IM_COUNTER_FATAL, 0, "a peer wanted memory that it may not have"},
    {"req_remote_invalid_request", IM_COUNTER_FATAL, 0, "the peer called a request invalid"},
    {"np_ecn_marked_roce_packets", IM_COUNTER_CONGESTION, 0, "packets marked by a congested switch"},
    {"np_cnp_sent", IM_COUNTER_CONGESTION, 0, "congestion notifications sent"},
    {"rp_cnp_handled", IM_COUNTER_CONGESTION, 0, "this side was told to slow down"},
    {"rp_cnp_ignored", IM_COUNTER_LOSS, 0, "told to slow down and did not: congestion control is off"},
};

const im_counter_about *im_counter_find(const char *name)
{
    for (size_t i = 0; i < IM_COUNT_OF(table); i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

bool im_counter_is_pegged(const im_counter *c)
{
    const im_counter_about *about = im_counter_find(c->name);
    return c->known && !c->hw && about && about->bits && c->value >= (UINT64_C(1) << about->bits) - 1;
}

bool im_counter_is_error(const im_counter_about *about)
{
    return about && (about->kind == IM_COUNTER_LINK || about->kind == IM_COUNTER_LOSS || about->kind == IM_COUNTER_RECEIVER ||
                     about->kind == IM_COUNTER_FATAL);
}

/* How much it rose; false: it cannot be told. Hardware counters of 32 bits wrap. */
static bool rise(const im_counter *was, const im_counter *is, uint64_t *by, bool *reset)
{
    if (!was || !was->known || !is->known)
        return false;
    *by = is->value - was->value;
    if (is->value >= was->value)
        return true;
    const bool wrapped = is->hw && was->value <= UINT32_MAX && was->value > UINT32_MAX / 4 * 3 && is->value < UINT32_MAX / 4;
    *by &= UINT32_MAX;
    *reset = true;
    return wrapped;
}

static void add(double *to, double v)
{
    *to = (*to < 0 ? 0 : *to) + v;
}

void im_port_rates_of(const im_rdma_port *before, const im_rdma_port *after, double seconds, im_port_rates *out)
{
    *out = (im_port_rates){.seconds = seconds, .tx_bits = -1, .rx_bits = -1, .tx_packets = -1, .rx_packets = -1, .congestion = -1};
    for (size_t i = 0; i < after->ncounters; i++) {
        const im_counter *is = &after->counter[i];
        const im_counter_about *about = im_counter_find(is->name);
        uint64_t by;
        if (!about)
            continue;
        if (im_counter_is_error(about) && is->known)
            out->errors_standing += is->value;
        if (!(seconds > 0) || !rise(im_port_counter(before, is->name), is, &by, &out->reset))
            continue;
        const bool sent = strstr(is->name, "xmit") || strncmp(is->name, "sent", 4) == 0;
        if (about->kind == IM_COUNTER_BYTES)
            add(sent ? &out->tx_bits : &out->rx_bits, (double)by * 32 / seconds);
        else if (about->kind == IM_COUNTER_PACKETS)
            add(sent ? &out->tx_packets : &out->rx_packets, (double)by / seconds);
        else if (about->kind == IM_COUNTER_CONGESTION)
            add(&out->congestion, (double)by / seconds);
        else if (im_counter_is_error(about) && by) {
            out->errors += by;
            if (by > out->worst_by) {
                out->worst = is->name;
                out->worst_by = by;
            }
        }
    }
}
