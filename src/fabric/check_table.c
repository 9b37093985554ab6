/* The table of checks: what is asked and why it matters. docs/fabric-check.md lists the same rows; a test keeps them equal. */
#include "fabric/check_rows.h"

#define HOST(fn) .kind = IM_CHECK_HOST, .host = im_check_##fn
#define BETWEEN(fn) .kind = IM_CHECK_BETWEEN, .between = im_check_##fn

const im_check_row im_check_table[] = {
    /* ---- devices and ports ---- */
    {"rdma-devices", "RDMA devices are there",
     "Without one NCCL and UCX take TCP, and say so only at the level INFO: the job runs, many times slower.", HOST(rdma_devices)},
    {"port-down", "every port that should carry traffic is up",
     "NCCL uses active ports only: a rail that is down takes its share of the bandwidth with it, for every host of the job.", HOST(port_down)},
    {"subnet-manager", "InfiniBand ports have a LID and a subnet manager",
     "A link that is up stays in INIT until a subnet manager configures it: no traffic passes.", HOST(subnet_manager)},
    {"link-rate", "ports of one kind have one rate and width",
     "A cable with a bad lane comes up narrower or slower. Rings and trees go at the speed of their slowest link.", HOST(link_rate)},
    {"rate-named", "the kernel knows the ports' speed",
     "A kernel older than the card prints a new speed as SDR: libraries that go by it take other devices.", HOST(rate_named)},
    {"expect", "ports have the rate that is expected (--expect)",
     "A rate that is the same everywhere may be wrong everywhere: a split cable, a switch port profile, a card in its slower mode.", HOST(expect)},
    {"mtu", "RDMA MTU is 4096",
     "Headers cost 7 % of a RoCE link at 1024 bytes and 2 % at 4096. Two ends that differ take the smaller one, or do not connect.", HOST(mtu)},
    {"firmware", "cards of one kind have one firmware",
     "Firmware decides about link training, congestion control and adaptive routing: rails that differ behave differently under load.",
     HOST(firmware)},

    /* ---- counters ---- */
    {"link-errors", "no errors of the link",
     "Damaged packets are sent again: each costs a timeout or a retry, and the collective waits for the slowest.", HOST(link_errors)},
    {"link-flaps", "links do not come and go", "A link that goes down for longer than NCCL's retries (30 s by default) ends the job with status 12.",
     HOST(link_flaps)},
    {"loss", "no packets lost or sent again",
     "Loss and timeouts are what NCCL's error 12 begins with; on RoCE they say that the path is not lossless.", HOST(loss)},
    {"fatal-counters", "no connection ended by an error", "Each one ended a queue pair, and with it a job.", HOST(fatal)},
    {"congestion", "congestion is answered",
     "Marks without notifications, or notifications that are ignored, mean that congestion control is off on a side: queues fill, and PFC or loss "
     "follows.",
     HOST(congestion)},

    /* ---- addresses and variables ---- */
    {"roce-v2", "RoCE ports have a routable RoCE v2 GID",
     "RoCE v1 does not pass routers, and many switches do not classify it; a link-local address does not leave its subnet.", HOST(roce_v2)},
    {"gid-choice", "the GID that NCCL takes is RoCE v2 and routable",
     "The index is a place in a table that differs between hosts and changes after a flap: a pinned one points to RoCE v1 or to nothing.",
     HOST(gid_choice)},
    {"bootstrap", "a net device can carry the bootstrap",
     "Ranks find each other over TCP before RDMA is used: without an address on a device that is up, init fails.", HOST(bootstrap)},
    {"env", "variables of NCCL and UCX fit this machine", "A variable that was copied from another cluster switches parts off, and nothing says so.",
     HOST(variables)},

    /* ---- PCIe and GPUs ---- */
    {"pcie-link", "PCIe links run at their width and speed",
     "A card that trained at half the width or a lower generation gives half the bandwidth, with no error anywhere.", HOST(pcie_link)},
    {"pcie-feeds", "the card's PCIe link carries what its port can",
     "Gen4 x16 carries 230 Gb/s of payload: behind it a 400 Gb/s port is a 230 Gb/s one.", HOST(pcie_feeds)},
    {"relaxed-order", "PCIe relaxed ordering is allowed",
     "Without it the writes of a NIC wait for each other at the root complex: on many CPUs, and in virtual machines, half the bandwidth.",
     HOST(relaxed_order)},
    {"acs", "ACS does not send GPU and NIC traffic through the CPU",
     "With ACS on, what a GPU and a NIC below one switch send each other goes up to the root complex and back: GPUDirect at a fraction of its rate, "
     "or hangs.",
     HOST(acs)},
    {"iommu", "the IOMMU does not translate",
     "In translating mode every buffer of a DMA goes through page tables of the IOMMU, and peer-to-peer traffic through the root complex.",
     HOST(iommu)},
    {"gpu-direct", "GPUs' memory can be registered for RDMA", "Without nvidia_peermem or dma-buf every message is copied through host memory.",
     HOST(gpu_direct)},
    {"pairing", "each GPU has a NIC near it",
     "NCCL uses GPUDirect up to the distance PXB: beyond it messages go through host memory, or through the link between the sockets.",
     HOST(pairing)},

    /* ---- kernel and limits ---- */
    {"numa-spread", "GPUs and NICs are spread over the NUMA nodes",
     "When all hang at one socket (or the firmware does not say where), processes of the other one reach them through the link between the sockets.",
     HOST(numa_spread)},
    {"numa-balancing", "the kernel does not move pages between NUMA nodes",
     "Automatic balancing unmaps pages to see who touches them: jitter in every step, and buffers that move away from their NIC.",
     HOST(numa_balancing)},
    {"governor", "CPUs do not save power while they work",
     "The proxy threads of NCCL sleep and wake all the time: a governor that is slow to raise the clock adds microseconds to each message.",
     HOST(governor)},
    {"memlock", "memory can be locked without limit",
     "RDMA registers memory by locking it: with a limit ibv_reg_mr or ibv_create_qp fails, or NCCL falls back.", HOST(memlock)},
    {"shm", "/dev/shm is large enough",
     "NCCL keeps the buffers between the ranks of a host in /dev/shm; Docker's 64 MB end in 'No space left on device' or a bus error.", HOST(shm)},
    {"dev-infiniband", "/dev/infiniband has the devices",
     "Verbs need /dev/infiniband/uverbsN: a container that was not given them sees the cards in sysfs and uses TCP.", HOST(dev_infiniband)},
    {"readable", "everything could be read", "What may not be read is not checked.", HOST(readable)},

    /* ---- quality of service ---- */
    {"qos-trust", "RoCE ports trust DSCP",
     "With trust pcp the priority comes from the VLAN tag, which routed RoCE has not: the traffic class that NCCL sets has no effect.",
     HOST(qos_trust)},
    {"qos-pfc", "PFC is on for one or two priorities, alike on all rails",
     "No PFC means loss under congestion; PFC on many priorities means that storage's pauses stop training too.", HOST(qos_pfc)},
    {"qos-dscp", "training's traffic class maps to the lossless priority",
     "The traffic class is DSCP << 2: when its DSCP maps to a priority without PFC, the lossless queue stays empty and training is dropped.",
     HOST(qos_dscp)},
    {"qos-ecn", "ECN is on for training's priority",
     "Without ECN on both sides (notification and reaction point) only PFC holds traffic back, and its pauses spread over the fabric.",
     HOST(qos_ecn)},
    {"qos-class", "NCCL and UCX use one traffic class",
     "NCCL's default is 0 and UCX's on RoCE v2 is 106: one job in two classes, of which one is unprotected.", HOST(qos_class)},
    {"ib-sl", "the service level of training is usable",
     "A service level that maps to VL 15, or to a lane that the port does not have, is dropped: the connection does not come up.", HOST(ib_sl)},
    {"ib-lanes", "training does not share a virtual lane with storage",
     "Packets of one lane share buffers and credits: a checkpoint of one job stalls the all-reduce of another.", HOST(ib_lanes)},

    /* ---- several hosts ---- */
    {"hosts-devices", "hosts have the same devices", "A host with fewer rails or other cards sets the pace for all.", BETWEEN(hosts_devices)},
    {"hosts-firmware", "hosts have the same firmware", "Mixed firmware is the first thing that support asks about.", BETWEEN(hosts_firmware)},
    {"hosts-driver", "hosts have the same kernel and drivers", "NCCL probes what each driver can do and takes other paths on hosts that differ.",
     BETWEEN(hosts_driver)},
    {"hosts-rate", "hosts have the same rates", "The slowest link sets the pace of every collective.", BETWEEN(hosts_rate)},
    {"hosts-mtu", "hosts have the same MTU", "Ends of different MTU take the smaller one, or lose the packets that do not fit.", BETWEEN(hosts_mtu)},
    {"hosts-gid", "one GID index means the same on all hosts",
     "A pinned NCCL_IB_GID_INDEX is used on every host: where the tables differ it is wrong on some.", BETWEEN(hosts_gid)},
    {"hosts-qos", "hosts have the same QoS settings", "A host with another trust mode, map or PFC set sends into another queue.", BETWEEN(hosts_qos)},
    {"hosts-env", "hosts have the same variables", "Ranks that were told different things disagree on transports, or hang at init.",
     BETWEEN(hosts_env)},
    {"hosts-system", "hosts have the same limits and settings", "One host with another governor, IOMMU mode or limit is the slow one.",
     BETWEEN(hosts_system)},

    /* ---- bandwidth: filled from what perftest measured (--bandwidth) ---- */
    {"bandwidth", "each pair reaches what its link must give (--bandwidth)",
     "Cables and switch ports that train at full rate may still lose half of it: only traffic shows that.", .kind = IM_CHECK_BANDWIDTH},
    {"latency", "each pair's latency is that of its fellows (--bandwidth)",
     "A path through more switches, a sleeping CPU or a busy port shows in the time of a small read first.", .kind = IM_CHECK_BANDWIDTH},
    {"bandwidth-errors", "no error counter rises under load (--bandwidth)",
     "A link that is clean while idle and damages packets under load has a bad cable or connector.", .kind = IM_CHECK_BANDWIDTH},
};

const size_t im_check_table_rows = IM_COUNT_OF(im_check_table);
