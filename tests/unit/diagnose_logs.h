/* Whole logs, written for this test: faults with the cause that must come first, healthy ones, and logs of other things. Hosts and addresses are made up. */
#ifndef TEST_DIAGNOSE_LOGS_H
#define TEST_DIAGNOSE_LOGS_H

typedef struct diagnose_log {
    const char *name, *first; /* first: id of the rule that must come first; NULL: no fault */
    const char *says, *also;  /* in the text */
    const char *text;
} diagnose_log;

#define HEALTHY_IB                                                                                                                                                     \
    "NCCL version 2.23.4+cuda12.6\n"                                                                                                                                   \
    "nodeA:924:1152 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.7<0>\n"                                                                                               \
    "nodeA:924:1152 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:192.0.2.7<0>\n"                                                          \
    "nodeA:924:1152 [0] NCCL INFO Using network IB\n"                                                                                                                  \
    "nodeA:924:1152 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 53000 commId 0x1 - Init START\n"                                \
    "nodeA:924:1152 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"                                                               \
    "nodeA:924:1152 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"                                                                         \
    "nodeA:924:1152 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"                                                                            \
    "nodeA:924:1152 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"                                                                                         \
    "nodeA:924:1152 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"                                                                                         \
    "nodeA:924:1152 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 53000 commId 0x1 - Init COMPLETE\n"                             \
    "nodeA:924:1152 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}\n"

static const diagnose_log diagnose_logs[] = {
    {"socket fall-back", "tcp-fallback", "no, TCP", "/dev/infiniband",
     "nodeA:924:1152 [0] NCCL INFO P2P plugin IBext\n"
     "nodeA:924:1152 [0] NCCL INFO NET/IB : No device found.\n"
     "nodeA:924:1152 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.7<0>\n"
     "nodeA:924:1152 [0] NCCL INFO Using network Socket\n"},
    {"socket fall-back, 2.28", "tcp-fallback", "no, TCP", NULL,
     "nodeA:924:1152 [0] NCCL INFO Failed to initialize NET plugin IB\n"
     "nodeA:924:1152 [0] NCCL INFO NET/Socket: Using [0]eth0:192.0.2.7<0>\n"
     "nodeA:924:1152 [0] NCCL INFO Initialized NET plugin Socket\n"
     "nodeA:924:1152 [0] NCCL INFO Assigned NET plugin Socket to comm\n"
     "nodeA:924:1152 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0\n"},
    {"TCP by setting", "tcp-set", "NCCL_IB_DISABLE=1 switches it off", "NET/Socket/0 x2",
     "nodeA:924:1152 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
     "nodeA:924:1152 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.7<0>\n"
     "nodeA:924:1152 [0] NCCL INFO Using network Socket\n"
     "nodeA:924:1152 [0] NCCL INFO Channel 00 : 8[0] -> 0[0] [receive] via NET/Socket/0\n"
     "nodeA:924:1152 [0] NCCL INFO Channel 00 : 0[0] -> 8[0] [send] via NET/Socket/0\n"},
    {"no verbs library", "no-verbs", "libibverbs is not installed", NULL,
     "nodeA:924:1152 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
     "nodeA:924:1152 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.7<0>\n"
     "nodeA:924:1152 [0] NCCL INFO Using network Socket\n"},
    {"extra slow card", "mixed-link-layers", "mlx5_bond_0:1/RoCE", NULL,
     "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB [7]mlx5_7:1/IB [8]mlx5_bond_0:1/RoCE [RO]; OOB ibp25s0:192.0.2.82<0>\n"},
    {"wrong interface", "wrong-interface", "NCCL_SOCKET_IFNAME", "-> A connection was refused",
     "nodeA:4289:4343 [0] NCCL INFO CUDA Dev 0, IP Interfaces : lo(SOC) eth0(PXB) eth1(PXB)\n"
     "nodeB:4152:4206 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>\n"
     "nodeB:4153:4209 [1] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused\n"
     "nodeC:97:221 [0] NCCL INFO Bootstrap : Using [0]ip6tnl0:fe80::x%ip6tnl0<0> [1]veth0:2001:db8::x<0>\n"},
    {"UCX over docker0", "wrong-interface", "docker0", NULL,
     "[1600000000.000000] [nodeA:1:0] ucp_worker.c:1763 UCX  INFO    ep_cfg[1]: tag(tcp/ib0 tcp/docker0)\n"
     "[1600000000.000000] [nodeB:1:0] ucp_worker.c:1763 UCX  INFO    ep_cfg[1]: tag(tcp/docker0)\n"
     "[nodeB][[1,1],0][btl_tcp_endpoint.c:730:mca_btl_tcp_endpoint_start_connect] connect() to 172.17.0.1 failed: Connection refused (111)\n"},
    {"no interface of that name", "ifname-empty", "NCCL_SOCKET_IFNAME matches no interface", "different NCCL builds",
     "nodeA:1958:1958 [3] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n"
     "Last error: ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)\n"},
    {"mixed builds", "mixed-builds", "NCCL_SOCKET_IFNAME matches no interface", NULL,
     "nodeA:1958:1958 [3] NCCL INFO Bootstrap : Using eth0:192.0.2.1<0>\n"
     "Last error: ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)\n"},
    {"no path between cards", "qp-no-path", "NCCL_CROSS_NIC=0", NULL,
     "nodeA:5 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, curr state INIT,\n"
     "  next state RTR, local GID index 3, local GID ::ffff:192.0.2.11, remote GID ::ffff:192.0.2.130\n"
     "nodeA:5 [5] NCCL INFO transport/net_ib.cc:1000 -> 2\n"},
    {"link-local GID", "gid-link-local", "show_gids", NULL,
     "nodeA:5:9 [5] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, curr state INIT, next state RTR, local GID index 1, local GID "
     "fe80::966d:aeff:fe3b:1, remote GID fe80::966d:aeff:fe3b:2\n"},
    {"GID of another container", "gid-not-here", "show_gids", NULL,
     "nodeA:76786:77145 [3] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error No such device\n"
     "nodeA:76786:77145 [3] NCCL INFO transport/net_ib.cc:395 -> 2\n"},
    {"status 12 at the first use", "wc-12", "at the first use", NULL,
     "[2026-05-05 06:16:33] nodeA:984:1357 [4] NCCL INFO Using network IB\n"
     "[2026-05-05 06:16:47] nodeA:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.59<44206> with status=12 opcode=129 len=65536 vendor err 129 (Recv) localGid "
     "::ffff:192.0.2.182 remoteGids::ffff:192.0.2.221\n"},
    {"status 12", "wc-12", "transport retry counter exceeded", "Requests were flushed",
     "worker-1:946:988 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n"
     "nodeA:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.59<44206> with status=12 opcode=129 len=65536 vendor err 129 (Recv) localGid ::ffff:192.0.2.182 "
     "remoteGids::ffff:192.0.2.221\n"
     "nodeA:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.59<44206> with status=5 opcode=129 len=65536 vendor err 249 (Recv)\n"},
    {"many hosts name one peer", "wc-12", "The peer that does not answer is 192.0.2.9, by 3 lines", NULL,
     "nodeA:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.9<1> with status=12 opcode=0 len=0 vendor err 129\n"
     "nodeB:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.9<2> with status=12 opcode=0 len=0 vendor err 129\n"
     "nodeC:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.9<3> with status=12 opcode=0 len=0 vendor err 129\n"
     "nodeC:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.8<3> with status=5 opcode=0 len=0 vendor err 249\n"},
    {"one host names many peers", "wc-12", "All these lines come from nodeA, and name 3 peers", NULL,
     "nodeA:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.7<1> with status=12 opcode=0 len=0 vendor err 129\n"
     "nodeA:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.8<2> with status=12 opcode=0 len=0 vendor err 129\n"
     "nodeA:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.9<3> with status=12 opcode=0 len=0 vendor err 129\n"},
    {"only the others' lines", "peer-gone", "(2 lines): what ended it there?", NULL,
     "nodeA:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer nodeB<36984>\n"
     "nodeC:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer nodeB<36984>\n"},
    {"a watchdog without its group", "desync-behind", "2 ranks waited in operation 5 (ALLREDUCE) of group 1", NULL,
     "nodeA:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 3 cudaDev 0 - Init COMPLETE\n"
     "[rank0]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
     "[rank2]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
     "[rank0]:[E321 02:07:08.5 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 5, last enqueued NCCL work: 6, last completed NCCL work: 4.\n"},
    {"status 4", "wc-4", "ACSCtl", NULL,
     "nodeA:19989:20082 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer fe80::x%ib0<53249> with error 4, opcode 32564, len 32564, vendor err 81 (Send)\n"
     "nodeA:19989:20082 [1] NCCL INFO transport/net.cc:1008 -> 6\n"},
    {"status 5 alone", "wc-5", "Status 5 is never the first error", NULL,
     "nodeA:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.59<44206> with status=5 opcode=129 len=65536 vendor err 249 (Recv)\n"},
    {"link flap", "port-error", "on nodeA", "-> The peer's network card does not answer",
     "nodeA:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
     "nodeB:73076:73185 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer nodeA<37948> with error 12, opcode 2, len 1, vendor err 129\n"},
    {"GID table change", "gid-change", "NetworkManager", "-> The peer's network card does not answer",
     "nodeA:106:196 [0] transport/net_ib.cc:73 NCCL WARN NET/IB : Got async event : GID table change\n"
     "nodeA:108:593 [0] transport/net_ib.cc:816 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 32633, vendor err 129\n"
     "ib_device.c:475 UCX WARN IB Async event on mlx5_0: GID table change on port 1\n"},
    {"card fails", "hca-fatal", "dmesg", NULL,
     "nodeA:815:864 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error\n"
     "nodeA:815:864 [0] misc/ibvwrap.cu:220 NCCL WARN Call to ibv_get_async_event failed\n"},
    {"GPUDirect on one side", "gdr-one-sided", "nvidia_peermem", "GPUDirect  on in 1 channels, off in 1",
     "nodeA:25668:27396 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.10<0>\n"
     "nodeA:25668:27396 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
     "9[1a000] -> 2[6b000] [send] via NET/IB/0/GDRDMA\n"
     "9[1a000] -> 2[6b000] [receive] via NET/IB/1\n"},
    {"GPUDirect off", "gdr-off", "nvidia_peermem", "yes, RDMA",
     "nodeA:25668:27396 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
     "nodeA:25668:27396 [0] NCCL INFO Using network IB\n"},
    {"/dev/shm full", "no-space-shm", "--shm-size", NULL,
     "nodeA:9621:9691 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes\n"
     "nodeA:9621:9691 [6] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-fjwOOB (size 5967872)\n"
     "[3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"},
    {"NVLS", "nvls", "fabric manager", "NCCL_NVLS_ENABLE=0",
     "nodeA:12098:12141 [2] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'\n"
     "nodeA:12098:12141 [2] NCCL INFO transport/nvls.cc:394 -> 1\n"},
    {"nccl-tests without MPI", "worlds", "MPI=1", NULL,
     "#   Rank  0 on nodeA device  0 [0x00] Tesla M60\n"
     "#   Rank  0 on nodeB device  0 [0x00] Tesla M60\n"
     "   134217728      33554432   float     sum    2.237  60.00   0.00    0e+00    0.001  139715.53   0.00    0e+00\n"
     "# Avg bus bandwidth    : 0\n"},
    {"UCX unreachable", "ucx-unreachable", "UCX_NET_DEVICES", NULL,
     "select.c:649  UCX  ERROR   no active messages transport to <no debug data>: rc_verbs/mlx5_bond_1:1 - Destination is unreachable, rc_mlx5/mlx5_bond_1:1 - Destination is unreachable\n"},
    {"UCX without RDMA", "ucx-no-rdma", "ibv_devinfo", NULL,
     "ucp_context.c:1100 UCX  WARN  transport 'ud' is not available, please use one or more of: cma, cuda, cuda_copy, cuda_ipc, mm, posix, self, shm, sm, sysv, tcp\n"},
    {"desync, several groups and RAS", "desync-order", "30 ranks came to operation 640 only", NULL,
     "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
     "ran for 600060 milliseconds before timing out.\n"
     "[rank0]:[E ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.\n"
     "[rank13]:[E ProcessGroupNCCL.cpp:1664] WorkNCCL(SeqNum=216, OpType=ALLTOALL_BASE, Timeout(ms)=600000) [PG ID 11 PG GUID 119 Rank 1] Exception (either an error or timeout) detected by watchdog "
     "at work: 216, last enqueued NCCL work: 220, last completed NCCL work: 215.\n"
     "[rank15]:[E ProcessGroupNCCL.cpp:1664] WorkNCCL(SeqNum=57, OpType=ALLREDUCE, Timeout(ms)=600000) [PG ID 11 PG GUID 112 Rank 0] Exception detected by watchdog at work: 57, last enqueued NCCL "
     "work: 57, last completed NCCL work: 56.\n"
     "#0-0 (fa93daea854b060b) MISMATCH\n"
     "  Communicator ranks have different AllGather operation counts\n"
     "  30 ranks have launched up to operation 640\n"
     "  2 ranks have launched up to operation 641\n"},
    {"desync, two groups", "desync-groups", "2 groups wait at once", NULL,
     "[rank13]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=216, OpType=ALLTOALL_BASE, NumelIn=1, NumelOut=1, "
     "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
     "[rank13]:[E1218 20:27:21.5 ProcessGroupNCCL.cpp:1785] [PG ID 11 PG GUID 119 Rank 1] Exception (either an error or timeout) detected by watchdog at work: 216, last enqueued NCCL work: 220, last "
     "completed NCCL work: 215.\n"
     "[rank15]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
     "ran for 600060 milliseconds before timing out.\n"
     "[rank15]:[E1218 20:27:21.5 ProcessGroupNCCL.cpp:1785] [PG ID 11 PG GUID 112 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 57, last enqueued NCCL work: 57, last "
     "completed NCCL work: 56.\n"},
    {"desync, order", "desync-order", "rank 0 is in ALLREDUCE", "rank 1 in BROADCAST",
     "[rank0]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran "
     "for 600060 milliseconds before timing out.\n"
     "[rank1]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran "
     "for 600060 milliseconds before timing out.\n"},
    {"one rank's watchdog", "desync-behind", "Rank 0 waited in operation 1580", NULL,
     "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
     "ran for 600060 milliseconds before timing out.\n"},
    {"nobody is missing", "hang-all", "no rank is behind", NULL,
     "[rank0]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran "
     "for 600060 milliseconds before timing out.\n"
     "[rank1]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran "
     "for 600060 milliseconds before timing out.\n"},
    {"a rank out of memory", "cuda-oom", "rank 3", "-> The watchdog",
     "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
     "[rank0]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran "
     "for 600060 milliseconds before timing out.\n"
     "[rank0]:[E1218 20:27:21.5 ProcessGroupNCCL.cpp:577] [Rank 0] Some NCCL operations have failed or timed out.\n"},
    {"a communicator never done", "init-hang", "1 of 1 processes", NULL,
     "nodeA:924:1152 [0] NCCL INFO Using network IB\n"
     "nodeA:924:1152 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 53000 commId 0x1 - Init START\n"},
    {"perftest", "wc-12", "vm1", NULL,
     "                    RDMA_Write BW Test\n"
     " Dual-port       : OFF\t\tDevice         : mlx5_0\n"
     " Link type       : Ethernet\n"
     " Completion with error at client\n"
     " Failed status 12: wr_id 0 syndrom 0x81\n"
     "[vm1:1:0:1] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)\n"},
    {"memory killer", "oom-kill", "on nodeB", "-> A process was killed",
     "Dec  1 12:00:00 nodeB kernel: [99999.5] Out of memory: Killed process 4711 (python3) total-vm:1kB\n"
     "srun: error: nodeB: task 3: Killed\n"
     "nodeA:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer nodeB<36984>\n"},

    {"healthy InfiniBand", NULL, "yes, RDMA", "GPUDirect  on, in all channels", HEALTHY_IB},
    {"healthy, one node", NULL, "no network was needed", "P2P/CUMEM/read x2",
     "nodeA:924:1152 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
     "nodeA:924:1152 [0] NCCL INFO NET/IB : No device found.\n"
     "nodeA:924:1152 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>\n"
     "nodeA:924:1152 [0] NCCL INFO Using network Socket\n"
     "nodeA:924:1152 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
     "nodeA:925:1153 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read\n"
     "nodeA:924:1152 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 53000 commId 0x1 - Init COMPLETE\n"},
    {"healthy UCX", NULL, "yes, RDMA", "rc_verbs/rxe0:1",
     "[1796067784.277994] [vm2:505  :0]     ucp_context.c:1849 UCX  INFO  Version 1.13.1 (loaded from /lib/x86_64-linux-gnu/libucp.so.0)\n"
     "[1796067784.716805] [vm2:505  :0]          parser.c:1916 UCX  INFO  UCX_* env variables: UCX_TLS=rc,self UCX_NET_DEVICES=rxe0:1 UCX_LOG_LEVEL=info\n"
     "[1796067785.994018] [vm2:505  :0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: tag(self/memory0 rc_verbs/rxe0:1)\n"
     "[1796067787.366909] [vm1:995  :0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[1]: tag(rc_verbs/rxe0:1)\n"},
    {"UCX over TCP by setting", "tcp-set", "UCX_TLS=tcp,self leaves no RDMA transport", "tcp/eth0",
     "[1796067784.716805] [vm2:505  :0]          parser.c:1916 UCX  INFO  UCX_* env variables: UCX_TLS=tcp,self UCX_LOG_LEVEL=info\n"
     "[1796067785.994018] [vm2:505  :0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[1]: tag(tcp/eth0)\n"},
    {"healthy UCX, table", NULL, "yes, RDMA", "rc_mlx5/mlx5_0:1",
     "[1645019897.519924] [vulcan04:13202:0]     proto_debug.c:406  UCX  INFO  |       0..2007 | eager short                               | rc_mlx5/mlx5_0:1 |\n"
     "[1645019897.519927] [vulcan04:13202:0]     ucp_worker.c:1855 UCX  INFO    inter-node cfg#1 tag(rc_mlx5/mlx5_0:1)\n"},
    {"healthy EFA", NULL, "yes, RDMA", "AWS Libfabric",
     "algo-1:462:462 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.135<0>\n"
     "algo-1:462:462 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v4 symbol.\n"
     "algo-1:462:462 [0] NCCL INFO NET/OFI Selected Provider is efa\n"
     "algo-1:462:462 [0] NCCL INFO Using network AWS Libfabric\n"
     "algo-1:462:462 [0] NCCL INFO Channel 00 : 7[0] -> 8[0] [send] via NET/AWS Libfabric/0\n"},
    {"healthy nccl-tests", NULL, NULL, NULL,
     "# nThread 1 nGpus 2 minBytes 8 maxBytes 268435456 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
     "#  Rank  0 Group  0 Pid   5950 on nodeA device  0 [0x34] NVIDIA H800\n"
     "#  Rank  1 Group  0 Pid   5950 on nodeA device  1 [0x48] NVIDIA H800\n"
     "           8             2     float    none       0    144.3    0.00    0.00      0    21.60    0.00    0.00      0\n"
     "# Out of bounds values : 0 OK\n"
     "# Avg bus bandwidth    : 12.5\n"
     "#  Rank  0 Group  0 Pid   5951 on nodeA device  0 [0x34] NVIDIA H800\n"
     "#  Rank  1 Group  0 Pid   5951 on nodeA device  1 [0x48] NVIDIA H800\n"
     "# Avg bus bandwidth    : 12.5\n"},
    {"a rank's log says error", NULL, NULL, NULL, "[rank3]: 2026-12-01 12:00:00 ERROR: retrying the download\n[rank3]: step 5 error: 0.25 Error: 3\n"},
    {"healthy perftest", NULL, "perftest over InfiniBand", NULL,
     "                    RDMA_Write BW Test\n"
     " Dual-port       : OFF\t\tDevice         : mlx5_0\n"
     " Link type       : InfiniBand\n"
     " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
     " 65536      5000             392.18             392.10   \t\t   0.747871\n"},
    {"healthy, sends through the host", NULL, "these only send: NCCL_NET_GDR_READ", NULL,
     "nodeA:924:1152 [0] NCCL INFO Using network IB\n"
     "nodeA:924:1152 [0] NCCL INFO Channel 00 : 1[1] -> 2[0] [send] via NET/IB/0\n"
     "nodeA:924:1152 [0] NCCL INFO Channel 00 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA\n"},
};

/* Of things that have nothing to do with it. */
static const char diagnose_unrelated[] =
    "192.0.2.1 - - [01/Dec/2026:12:00:00 +0000] \"GET /index.html HTTP/1.1\" 200 512\n"
    "2026/12/01 12:00:00 [error] 12#12: *1 recv() failed (104: Connection reset by peer) while reading response header from upstream\n"
    "Error: listen EADDRINUSE: address already in use :::3000\n"
    "curl: (7) Failed to connect to 192.0.2.1 port 443: Connection refused\n"
    "* connect to 192.0.2.1 port 443 failed: Connection timed out\n"
    "java.lang.OutOfMemoryError: Java heap space\n"
    "Traceback (most recent call last):\n"
    "ValueError: invalid literal for int() with base 10: 'x'\n"
    "sshd[99]: Connection closed by 192.0.2.9 port 50022 [preauth]\n"
    "kernel: [   12.345678] usb 1-1: USB disconnect, device number 3\n"
    "systemd[1]: Started Session 12 of user root.\n"
    "PING 192.0.2.1: Destination Host Unreachable\n"
    "dial tcp 192.0.2.1:5432: connect: connection refused\n"
    "psql: could not connect to server: No route to host\n"
    "e1000e 0000:00:1f.6 eno1: NIC Link is Up 1000 Mbps Full Duplex\n"
    "operation finished with error 12, try again\n"
    "[INFO] rank 3 of the search results: 12 of 40\n"
    "The package was sent via NET/30 terms\n"
    "INFO:root:epoch 3 loss 1.25 device cuda:0\n"
    "FATAL: terminating connection due to administrator command\n";

#endif
