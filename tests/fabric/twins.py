#!/usr/bin/env python3
"""twins.py IMECE WORK [CHECK...]      runs `imece fabric check` on a healthy machine and on its broken twin, for every check of the table

Each twin is a healthy machine of make_tree.py with one thing changed. The check must say ok of the healthy one, and the twin's verdict of the
broken one, with the evidence, a reason and a command. A check of the table without a twin fails, and so does a twin without a check."""
import json
import os
import re
import shutil
import subprocess
import sys

import make_tree as mt

IMECE, WORK, ONLY = sys.argv[1], sys.argv[2], sys.argv[3:]
failures = 0


# ---- healthy machines -----------------------------------------------------------------------------

def netdevs(m):
    return [p["gids"][-1]["ndev"] for d in m["rdma"] for p in d["ports"] if p["link"] == "Ethernet"]


def mlnx_qos(trust="dscp", pfc="00010000", move=None):
    prios = {p: [d for d in range(63, -1, -1) if d >> 3 == p] for p in range(8)}
    if move:
        prios[move[0] >> 3].remove(move[0])
        prios[move[1]].append(move[0])
    return "\n".join(["DCBX mode: OS controlled", "Priority trust state: " + trust, "dscp2prio mapping:"] +
                     ["\tprio:%d dscp:%s" % (p, "".join("%02d," % d for d in ds)) for p, ds in prios.items()] +
                     ["default priority:", "Cable len: 7", "PFC configuration:", "\tpriority    0   1   2   3   4   5   6   7",
                      "\tenabled     " + "   ".join(pfc), "tc: 0 ratelimit: unlimited, tsa: vendor", "\t priority:  1"])


def qos(m, env="NCCL_IB_TC=106\nUCX_IB_TRAFFIC_CLASS=106", **how):
    for name in netdevs(m):
        m["files"]["/commands/mlnx_qos-%s.txt" % name] = mlnx_qos(**how)
        for side in ("roce_np", "roce_rp"):
            for p in range(8):
                m["files"]["/sys/class/net/%s/ecn/%s/enable/%d" % (name, side, p)] = "1"
    m["files"]["/commands/env.txt"] = env


def row(values, form="0x%X"):
    return "".join("|%-4s" % (form % v) for v in values) + "|"


def lanes(m, sl2vl, high, low, env="NCCL_IB_SL=1\nUCX_IB_SL=1"):
    """what smpquery prints of the first port, OpenSM's policy, and a storage client over RDMA"""
    m["files"]["/commands/smpquery-sl2vl-mlx5_0-1.txt"] = ("# SL2VL table: Lid 150\n#                 SL: " + "".join("|%2d" % i for i in range(16)) +
                                                            "|\nports: in  0, out  0: " + "".join("|%2d" % v for v in sl2vl) + "|")
    vlarb = "# VLArbitration tables: Lid 150 port 1 LowCap 8 HighCap 8\n"
    for name, weights in (("Low", low), ("High", high)):
        vlarb += "# %s priority VL Arbitration Table:\nVL    : %s\nWEIGHT: %s\n" % (name, row(w[0] for w in weights), row(w[1] for w in weights))
    m["files"]["/commands/smpquery-vlarb-mlx5_0-1.txt"] = vlarb
    m["files"]["/etc/opensm/qos-policy.conf"] = "qos-ulps\n    default : 0\n    any, service-id 0x00000000010603db : 3 # Lustre\nend-qos-ulps"
    m["files"]["/sys/module/ko2iblnd/initstate"] = "live"
    m["files"]["/commands/env.txt"] = env


def roce_qos():
    m = mt.roce8()
    qos(m)
    return m


def ib_lanes():
    m = mt.ib_ndr()
    lanes(m, [0, 1] + [0] * 14, [(1, 64)], [(0, 64), (1, 64)])
    return m


def broken(case, *names):
    def make():
        m = case()
        for n in names:
            n(m) if callable(n) else mt.BREAKS[n](m)
        return m
    return make


def put(path, text):
    return lambda m: m["files"].update({path: text})


def env(text):
    return put("/commands/env.txt", text)


def later(name, rise, seconds=2):
    """an earlier reading of a counter of the last port, in which it was smaller"""
    def change(m):
        d = m["rdma"][-1]
        kind = "hw_counters" if name in d["ports"][0]["hw"] else "counters"
        value = d["ports"][0]["hw" if kind == "hw_counters" else "counters"][name]
        m["files"]["/commands/counters-before.txt"] = "seconds %g\n/sys/class/infiniband/%s/ports/1/%s/%s %d" % (seconds, d["name"], kind, name, value - rise)
    return change


def counters(**values):
    def change(m):
        p = m["rdma"][-1]["ports"][0]
        for k, v in values.items():
            p["hw" if k in p["hw"] else "counters"][k] = v
    return change


def each_net(**values):
    def change(m):
        for n in m["net"]:
            if n.get("pci") and n["name"] in netdevs(m):
                n.update(values)
    return change


def v1_address(m):
    """IPv4 addresses as RoCE v1 alone: v2 is link-local"""
    mt.gids(m, lambda g: [x for x in g if x["index"] != 3])


def no_addresses(m):
    for n in m["net"]:
        n["addresses"] = []
    mt.gids(m, lambda g: [x for x in g if x["index"] < 2])


def one_socket_without(m):
    """the cards of the second socket are gone: its GPUs have none near"""
    gone = {d["pci"] for d in m["rdma"][4:]}
    m["rdma"] = m["rdma"][:4]
    m["functions"] = [f for f in m["functions"] if f["address"] not in gone]
    m["net"] = [n for n in m["net"] if n.get("pci") not in gone]


def gen4_slots(m):
    for f in m["functions"]:
        if f["class"] == "0x020000" and f["vendor"] == "0x15b3":
            f.update(speed=mt.GEN4, max_speed=mt.GEN4)


def no_ordering(m):
    mt.card_of(m)["control"] = 0x2926


def numa_on(m):
    m["files"]["/proc/sys/kernel/numa_balancing"] = "1"


# check: (healthy, broken, arguments, verdict, what is said, evidence)
TWINS = {
    "rdma-devices": (mt.roce8, broken(mt.roce8, "no-rdma"), [], "fail", "driver is not loaded", "/sys/class/infiniband"),
    "port-down": (mt.ib_ndr, broken(mt.ib_ndr, "port-down"), [], "fail", "looks for a signal", "ports/1/state"),
    "subnet-manager": (mt.ib_ndr, broken(mt.ib_ndr, "no-sm"), [], "fail", "no subnet manager", "ports/1/state"),
    "link-rate": (mt.ib_ndr, broken(mt.ib_ndr, "half-rate"), [], "fail", "narrower than mlx5_0 .400 Gb/sec", "ports/1/rate"),
    "rate-named": (mt.ib_ndr, broken(mt.ib_ndr, "old-kernel"), [], "warn", r"4\.18.*does not know", "ports/1/rate"),
    "expect": (mt.ib_hdr, mt.ib_hdr, ["--expect", "400"], "fail", "400 Gb/s expected, 200 there", "ports/1/rate"),
    "mtu": (mt.roce8, broken(mt.roce8, "mtu"), [], "warn", "RDMA MTU 1024: at most 92.6 %", "/mtu"),
    "firmware": (mt.ib_ndr, broken(mt.ib_ndr, "firmware"), [], "warn", "has 28.39.3004", "fw_ver"),
    "link-errors": (mt.ib_ndr, broken(mt.ib_ndr, "errors"), [], "warn", "symbol_error.*greatest value", "counters/symbol_error"),
    "link-errors/rising": (mt.ib_ndr, broken(mt.ib_ndr, counters(port_rcv_errors=7), later("port_rcv_errors", 4)), [], "fail", r"rose by 4 in 2 s \(2 a second\)",
                           "counters/port_rcv_errors"),
    "link-flaps": (mt.roce8, broken(mt.roce8, "flaps"), [], "warn", "went down 42 times", "link_downed"),
    "link-flaps/carrier": (mt.roce8, broken(mt.roce8, each_net(carrier_changes=84)), [], "warn", "lost and found its carrier 42 times", "carrier_changes"),
    "loss": (mt.roce8, broken(mt.roce8, "congested"), [], "warn", "packet_seq_err", "hw_counters/packet_seq_err"),
    "fatal-counters": (mt.roce8, broken(mt.roce8, counters(req_remote_access_errors=2)), [], "warn", "jobs have failed", "req_remote_access_errors"),
    "fatal-counters/rising": (mt.roce8, broken(mt.roce8, counters(req_remote_access_errors=2), later("req_remote_access_errors", 1)), [], "fail", "happens now",
                              "req_remote_access_errors"),
    "congestion": (mt.roce8, broken(mt.roce8, "congested"), [], "warn", "17.9 % of the packets", "np_ecn_marked"),
    "congestion/no answer": (mt.roce8, broken(mt.roce8, counters(np_ecn_marked_roce_packets=5000)), [], "warn", "roce_np. is off", "np_cnp_sent"),
    "congestion/ignored": (mt.roce8, broken(mt.roce8, counters(rp_cnp_ignored=5)), [], "warn", "roce_rp. is off", "rp_cnp_ignored"),
    "roce-v2": (mt.roce8, broken(mt.roce8, "no-v2"), [], "fail", "RoCE v1 alone", "gids"),
    "roce-v2/no GIDs": (mt.roce8, broken(mt.roce8, "no-gids"), [], "fail", "has no GID", "gids"),
    "roce-v2/link-local": (mt.roce8, broken(mt.roce8, v1_address), [], "fail", "link-local alone", "gids"),
    "gid-choice": (mt.roce8, broken(mt.roce8, "gid-shift", env("NCCL_IB_GID_INDEX=3")), [], "fail", "points to an empty entry; by itself NCCL takes index 7", "gids/3"),
    "gid-choice/pinned to v1": (mt.roce8, broken(mt.roce8, env("NCCL_IB_GID_INDEX=2")), [], "fail", "points to a GID of RoCE v1", "gids/2"),
    "gid-choice/no address": (mt.roce8, broken(mt.roce8, no_addresses), [], "fail", "by itself, which is RoCE v1", "gids/0"),
    "bootstrap": (mt.roce8, broken(mt.roce8, no_addresses), [], "fail", "no net device", "/sys/class/net"),
    "env": (mt.roce8, broken(mt.roce8, env("NCCL_IB_TIMEOUT=99")), [], "fail", "31", "env.txt"),
    "pcie-link": (mt.ib_ndr, broken(mt.ib_ndr, "pcie-narrow"), [], "fail", "PCIe x8, and the card can x16: 31.5 of 63.0 GB/s", "current_link_width"),
    "pcie-link/speed": (mt.ib_ndr, broken(mt.ib_ndr, "pcie-slow"), [], "fail", "PCIe 8 GT/s, and the card can 32", "current_link_speed"),
    "pcie-feeds": (mt.ib_ndr, broken(mt.ib_ndr, gen4_slots), [], "warn", "its ports carry 400 Gb/s.* about 230 Gb/s", "max_link_speed"),
    "relaxed-order": (mt.ib_ndr, broken(mt.ib_ndr, no_ordering), [], "warn", "RlxdOrd-", "config"),
    "relaxed-order/variable": (mt.ib_ndr, broken(mt.ib_ndr, env("NCCL_IB_PCI_RELAXED_ORDERING=0")), [], "warn", "variable switches", "env.txt"),
    "acs": (mt.roce8, broken(mt.roce8, "acs"), [], "fail", "ports of PCIe switches", "config"),
    "iommu": (mt.roce8, broken(mt.roce8, "iommu"), [], "warn", "translates.*intel_iommu=on", "type"),
    "gpu-direct": (mt.roce8, broken(mt.roce8, "no-peermem"), [], "fail", "neither nvidia_peermem", "nvidia_peermem"),
    "pairing": (mt.roce8, broken(mt.roce8, one_socket_without), [], "fail", "at the other socket", "/sys/bus/pci/devices"),
    "numa-spread": (mt.roce8, broken(mt.roce8, "numa"), [], "warn", "all 16 NICs and GPUs say NUMA node 0", "numa_node"),
    "numa-balancing": (mt.roce8, broken(mt.roce8, numa_on), [], "warn", "is on, on 2 nodes", "numa_balancing"),
    "governor": (mt.roce8, broken(mt.roce8, "governor"), [], "warn", "64 of 64 CPUs have the governor powersave", "scaling_governor"),
    "memlock": (mt.container, broken(mt.container, "memlock"), [], "fail", "limited to 64.0 KiB", "/proc/self/limits"),
    "shm": (mt.container, broken(mt.container, "shm"), [], "fail", "has 64.0 MiB", "/proc/self/mounts"),
    "dev-infiniband": (mt.container, broken(mt.container, "no-dev"), [], "fail", "no /dev/infiniband/uverbsN", "/dev/infiniband"),
    "qos-trust": (roce_qos, broken(roce_qos, lambda m: qos(m, trust="pcp")), [], "warn", "trusts pcp", "mlnx_qos-ens1f0np0"),
    "qos-pfc": (roce_qos, broken(roce_qos, lambda m: qos(m, pfc="00000000")), [], "warn", "off for every priority", "mlnx_qos"),
    "qos-pfc/many": (roce_qos, broken(roce_qos, lambda m: qos(m, pfc="11110000")), [], "warn", "priorities 0,1,2,3", "mlnx_qos"),
    "qos-dscp": (roce_qos, broken(roce_qos, env("NCCL_IB_TC=41\nUCX_IB_TRAFFIC_CLASS=41")), [], "fail", r"DSCP 10 maps to priority 1, and the lossless one is 3", "mlnx_qos"),
    "qos-dscp/map": (roce_qos, broken(roce_qos, lambda m: qos(m, move=(26, 5))), [], "fail", r"DSCP 26 maps to priority 5", "mlnx_qos"),
    "qos-dscp/override": (roce_qos, broken(roce_qos, lambda m: m["files"].update({"/sys/class/infiniband/mlx5_3/tc/1/traffic_class": "Global tclass=32"})), [], "fail",
                          "the port's override.: DSCP 8 maps to priority 1", "mlnx_qos"),
    "qos-ecn": (roce_qos, broken(roce_qos, put("/sys/class/net/ens4f0np0/ecn/roce_rp/enable/3", "0")), [], "warn", "does not slow down", "roce_rp/enable/3"),
    "qos-class": (roce_qos, broken(roce_qos, env("NCCL_IB_TC=106\nUCX_IB_TRAFFIC_CLASS=96")), [], "warn", "DSCP 26 and DSCP 24", "env.txt"),
    "qos-class/defaults": (roce_qos, broken(roce_qos, env("NCCL_DEBUG=WARN")), [], "warn", "DSCP 0 and DSCP 26", None),
    "ib-sl": (ib_lanes, broken(ib_lanes, lambda m: lanes(m, [0, 15] + [0] * 14, [(1, 64)], [(0, 64)])), [], "fail", "VL 15 takes no data", "sl2vl-mlx5_0"),
    "ib-sl/no weight": (ib_lanes, broken(ib_lanes, lambda m: lanes(m, [0, 1] + [0] * 14, [(0, 64)], [(0, 64)])), [], "fail", "no arbitration list", "vlarb-mlx5_0"),
    "ib-lanes": (ib_lanes, broken(ib_lanes, lambda m: lanes(m, [0] * 16, [(0, 4)], [(0, 4)])), [], "warn", r"training .SL 1. and storage .SL 3.* share a virtual lane", "sl2vl-mlx5_0"),
    "ib-lanes/storage ahead": (ib_lanes, broken(ib_lanes, lambda m: lanes(m, [0, 1] + [0] * 14, [(0, 64)], [(1, 64)])), [], "warn", "storage's lane goes ahead", "vlarb-mlx5_0"),
}


def second(change=None):
    def make():
        m = mt.roce8()
        qos(m)
        m["hostname"] = "roce02"
        if change:
            change(m)
        return m
    return make


def older_kernel(m):
    m["kernel"] = "5.15.0-91-generic"


def old_firmware(m):
    for d in m["rdma"]:
        d["fw"] = "28.35.2000"


def shifted(m):
    mt.BREAKS["gid-shift"](m)
    m["files"]["/commands/env.txt"] += "\nNCCL_IB_GID_INDEX=3"


def pinned(m):
    m["files"]["/commands/env.txt"] += "\nNCCL_IB_GID_INDEX=3"


# check: (what is done to the first host, what to the second), verdict, what is said
BETWEEN = {
    "hosts-devices": (None, lambda m: m["rdma"].pop(), "warn", "RDMA devices: 7 here, 8 on"),
    "hosts-firmware": (None, old_firmware, "warn", "28.35.2000 here, 28.39.3004"),
    "hosts-driver": (None, older_kernel, "warn", "kernel: 5.15"),
    "hosts-rate": (None, mt.BREAKS["half-rate"], "fail", "rate of mlx5_7/1: 200 Gb/sec"),
    "hosts-mtu": (None, mt.BREAKS["mtu"], "fail", "RDMA MTU of mlx5_0/1: 1024"),
    "hosts-gid": (pinned, shifted, "fail", "index of the RoCE v2 GID of mlx5_0/1: 7 here, 3"),
    "hosts-qos": (None, lambda m: qos(m, pfc="00001000"), "warn", "PFC of mlx5_0/1: priorities 0x10"),
    "hosts-env": (None, env("NCCL_IB_TC=106\nUCX_IB_TRAFFIC_CLASS=106\nNCCL_IB_TIMEOUT=22"), "warn", "NCCL_IB_TIMEOUT: 22 here, not set"),
    "hosts-system": (None, mt.BREAKS["iommu"], "warn", "IOMMU: DMA here, identity"),
}


# ---- trees: only what differs from the machine before is written ------------------------------------------

class Memory:
    """a tree that is remembered, not written"""

    def __init__(self):
        self.at = {}

    def put(self, path, text):
        self.at[path] = text if isinstance(text, bytes) else (str(text) + "\n").encode()

    def link(self, path, target):
        self.at[path] = os.path.relpath(target, os.path.dirname(path))

    def real(self, path):
        return os.path.join(WORK, "unused", path.lstrip("/"))


def clear(out, path):
    os.remove(out + path)
    parent = os.path.dirname(out + path)
    while len(parent) > len(out) and not os.listdir(parent):
        if os.path.islink(parent):
            break
        os.rmdir(parent)
        parent = os.path.dirname(parent)


def change(out, was, now):
    is_link = lambda at, path: isinstance(at[path], str)
    gone = [p for p in was if p not in now or was[p] != now[p]]
    for path in sorted(gone, key=lambda p: is_link(was, p)):  # links last: others may lie behind them
        clear(out, path)
    new = [p for p in now if p not in was or was[p] != now[p]]
    for path in sorted(new, key=lambda p: not is_link(now, p)):
        os.makedirs(os.path.dirname(out + path), exist_ok=True)
        if is_link(now, path):
            os.symlink(now[path], out + path)
        else:
            with open(out + path, "wb") as f:
                f.write(now[path])


# ---- running ---------------------------------------------------------------------------------------

def say(name, why):
    global failures
    failures += 1
    print("%s: %s" % (name, why), flush=True)


def check(args):
    r = subprocess.run([IMECE, "fabric", "check", "--json", "--interval", "0"] + args, capture_output=True, text=True)
    if r.returncode not in (0, 3):
        raise SystemExit("exit code %d of check %s: %s" % (r.returncode, args, r.stderr))
    report = json.loads(r.stdout)
    if (r.returncode == 3) != (report["verdict"] == "fail"):
        say(" ".join(args), "exit code %d and the verdict %s" % (r.returncode, report["verdict"]))
    return report


written = {}


def tree(make, name):
    out, t = os.path.join(WORK, name), Memory()
    if out not in written:
        shutil.rmtree(out, ignore_errors=True)
    mt.fill(t, make())
    change(out, written.get(out, {}), t.at)
    written[out] = t.at
    return out


def result(report, check_id):
    return next(c for p in report["parts"] for c in p["checks"] if c["id"] == check_id)


def judge(name, found, verdict, says, path):
    if found["verdict"] != verdict:
        return say(name, "the broken twin gets %s, not %s: %s" % (found["verdict"], verdict, json.dumps(found["items"])[:600]))
    hit = [x for x in found["items"] if re.search(says, x["says"])]
    if not hit:
        return say(name, "nothing says /%s/: %s" % (says, json.dumps(found["items"])[:600]))
    if path and not any(path in x.get("path", "") for x in hit):
        say(name, "the evidence is %s, not %s" % (hit[0].get("path"), path))
    if not any(x.get("type") for x in hit):
        say(name, "no command mends it")


def host_twins(healthy):
    for name, (good, bad, args, verdict, says, path) in TWINS.items():
        check_id = name.split("/")[0]
        if ONLY and check_id not in ONLY:
            continue
        if good not in healthy:
            healthy[good] = check(["--root", tree(good, good.__name__)])
        was = result(healthy[good], check_id)
        if was["verdict"] != "ok":
            say(name, "the healthy twin gets %s: %s" % (was["verdict"], json.dumps(was["items"])[:600]))
        judge(name, result(check(["--root", tree(bad, good.__name__)] + args), check_id), verdict, says, path)


def between_twins():
    # three hosts: the second is the odd one
    for name, (first, other, verdict, says) in BETWEEN.items():
        if ONLY and name not in ONLY:
            continue
        make = second(first)
        hosts = [tree(make, "h%d" % i) for i in (1, 2, 3)]
        was = result(check(hosts), name)
        if was["verdict"] != "ok" or "3 hosts" not in was.get("note", ""):
            say(name, "three equal hosts get %s: %s" % (was["verdict"], json.dumps(was)[:400]))
        hosts[1] = tree(second(other), "h2")
        report = check(hosts)
        judge(name, result(report, name), verdict, says, None)
        if any(p["name"] != "between the hosts" for p in report["parts"][3:]):
            say(name, "the parts are %s" % [p["name"] for p in report["parts"]])


def main():
    listed = json.loads(subprocess.run([IMECE, "fabric", "check", "--list", "--json"], capture_output=True, text=True, check=True).stdout)
    have = {n.split("/")[0] for n in TWINS} | set(BETWEEN) | {"readable"}
    for row_ in listed:
        if row_["id"] not in have and row_["kind"] != "bandwidth":
            say(row_["id"], "the check has no broken twin")
    for name in have - {r["id"] for r in listed}:
        say(name, "there is no such check")
    healthy = {}
    host_twins(healthy)
    between_twins()
    if ONLY:
        return 1 if failures else 0
    # machines that are as they should be: no check fails on one
    for case in (mt.ib_ndr, mt.ib_hdr, mt.roce8, mt.dual, mt.container, mt.vm, roce_qos, ib_lanes):
        report = healthy.get(case) or check(["--root", tree(case, case.__name__)])
        for c in report["parts"][0]["checks"]:
            if c["verdict"] == "fail" or (c["verdict"] == "warn" and (case.__name__, c["id"]) not in ALLOWED):
                say(case.__name__, "%s %s on a healthy machine: %s" % (c["id"], c["verdict"], json.dumps(c["items"])[:400]))
    print("%d checks, %d twins" % (len(listed), len(TWINS) + len(BETWEEN)))
    return 1 if failures else 0


# hdr and dual have their GPUs at root ports: that they are PHB from their NICs is so
ALLOWED = {("ib_hdr", "pairing"), ("dual", "pairing"), ("vm", "pairing"), ("dual", "env")}

if __name__ == "__main__":
    sys.exit(main())
