/* Files of counters and the metrics that node_exporter's infiniband collector makes of them (collector/infiniband_linux.go). */
#include "fabric/export.h"

#include <string.h>

#define PMA(file, metric, help)                                  \
    {                                                            \
        file, false, "node_infiniband_" metric "_total", 1, help \
    }
#define HW(file, metric, help)                                  \
    {                                                           \
        file, true, "node_infiniband_" metric "_total", 1, help \
    }

static const im_export_counter table[] = {
    {"port_xmit_data", false, "node_infiniband_port_data_transmitted_bytes_total", 4, "Bytes sent by the port."},
    {"port_rcv_data", false, "node_infiniband_port_data_received_bytes_total", 4, "Bytes received by the port."},
    PMA("port_xmit_packets", "port_packets_transmitted", "Packets sent by the port."),
    PMA("port_rcv_packets", "port_packets_received", "Packets received by the port."),
    PMA("unicast_xmit_packets", "unicast_packets_transmitted", "Packets sent to one receiver."),
    PMA("unicast_rcv_packets", "unicast_packets_received", "Packets received that were sent to one receiver."),
    PMA("multicast_xmit_packets", "multicast_packets_transmitted", "Packets sent to many receivers."),
    PMA("multicast_rcv_packets", "multicast_packets_received", "Packets received that were sent to many receivers."),
    PMA("port_xmit_wait", "port_transmit_wait", "Ticks with data to send and no credit to send it."),
    PMA("link_downed", "link_downed", "How often the link went down."),
    PMA("link_error_recovery", "link_error_recovery", "How often the link trained again and came back."),
    PMA("symbol_error", "symbol_error", "Symbols damaged on the line."),
    PMA("port_rcv_errors", "port_errors_received", "Damaged packets that arrived."),
    PMA("port_rcv_remote_physical_errors", "port_receive_remote_physical_errors", "Packets that were damaged before the last switch."),
    PMA("port_rcv_switch_relay_errors", "port_receive_switch_relay_errors", "Packets that a switch could not forward."),
    PMA("port_xmit_discards", "port_discards_transmitted", "Packets dropped before sending: congestion, or the link is down."),
    PMA("port_rcv_discards", "port_discards_received", "Packets dropped on arrival."),
    PMA("port_xmit_constraint_errors", "port_constraint_errors_transmitted", "Packets not sent because of partition or filter."),
    PMA("port_rcv_constraint_errors", "port_constraint_errors_received", "Packets refused because of partition or filter."),
    PMA("local_link_integrity_errors", "local_link_integrity_errors", "How often damaged packets followed each other too closely."),
    PMA("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors", "How often buffers ran over again and again."),
    PMA("VL15_dropped", "vl15_dropped", "Management packets dropped."),
    HW("duplicate_request", "duplicate_requests_packets", "Requests that came again: the peer sent again."),
    HW("implied_nak_seq_err", "implied_nak_seq_errors", "Answers that were missing."),
    HW("local_ack_timeout_err", "local_ack_timeout_errors", "Acknowledgements that did not come in time."),
    HW("np_cnp_sent", "np_cnp_packets_sent", "Congestion notifications sent to peers."),
    HW("np_ecn_marked_roce_packets", "np_ecn_marked_roce_packets_received", "RoCE packets that a congested switch had marked."),
    HW("out_of_buffer", "out_of_buffer_drops", "Packets dropped because no receive was posted."),
    HW("out_of_sequence", "out_of_sequence_packets_received", "Packets that came out of order."),
    HW("packet_seq_err", "packet_sequence_errors", "Peers' reports of missing packets."),
    HW("req_cqe_error", "req_cqes_errors", "Requests that ended with an error."),
    HW("req_cqe_flush_error", "req_cqes_flush_errors", "Requests flushed after an error."),
    HW("req_remote_access_errors", "req_remote_access_errors", "Requests that the peer's memory protection refused."),
    HW("req_remote_invalid_request", "req_remote_invalid_request_errors", "Requests that the peer called invalid."),
    HW("resp_cqe_error", "resp_cqes_errors", "Receives that ended with an error."),
    HW("resp_cqe_flush_error", "resp_cqes_flush_errors", "Receives flushed after an error."),
    HW("resp_local_length_error", "resp_local_length_errors", "Messages that were longer than the receive."),
    HW("resp_remote_access_errors", "resp_remote_access_errors", "Peers' requests that this side's memory protection refused."),
    HW("rnr_nak_retry_err", "rnr_nak_retry_packets_received", "Peers' reports that they were not ready to receive."),
    HW("roce_adp_retrans", "roce_adp_retransmits", "Adaptive retransmissions."),
    HW("roce_adp_retrans_to", "roce_adp_retransmits_timeout", "Time-outs of adaptive retransmission."),
    HW("roce_slow_restart", "roce_slow_restart_used", "How often slow restart was used."),
    HW("roce_slow_restart_cnps", "roce_slow_restart_cnps", "Congestion notifications that slow restart made."),
    HW("roce_slow_restart_trans", "roce_slow_restart", "How often slow restart began."),
    HW("rp_cnp_handled", "rp_cnp_packets_handled", "Congestion notifications that slowed this sender down."),
    HW("rp_cnp_ignored", "rp_cnp_ignored_packets_received", "Congestion notifications ignored: congestion control is off."),
    HW("rx_atomic_requests", "rx_atomic_requests", "Atomic requests received."),
    HW("rx_dct_connect", "rx_dct_connect_requests", "Connection requests received for dynamic connections."),
    HW("rx_read_requests", "rx_read_requests", "Read requests received."),
    HW("rx_write_requests", "rx_write_requests", "Write requests received."),
    HW("rx_icrc_encapsulated", "rx_icrc_encapsulated_errors", "RoCE packets with a bad checksum."),
};

const im_export_counter *im_export_counter_find(const char *file, bool hw)
{
    for (size_t i = 0; i < IM_COUNT_OF(table); i++)
        if (table[i].hw == hw && strcmp(table[i].file, file) == 0)
            return &table[i];
    return NULL;
}
