#!/usr/bin/env python3
"""make_tree.py OUT CASE [--break NAME]...        writes the files of a machine below OUT: sysfs, procfs, /dev
make_tree.py OUT --description FILE.json [--break NAME]...
make_tree.py OUT --record DIR                     the tree of a recorded Soft-RoCE device (tests/fabric/records)
make_tree.py --print CASE [--break NAME]...       the description alone, as JSON, to change and give back
make_tree.py --list                               the cases, and what can be broken

A description says what a machine has; everything is made up here after the kernel's file formats, nothing is copied from
one. The trees have the same links as sysfs: class entries lead to /sys/devices/pciDDDD:BB/... A broken twin is the same
description with one thing changed (BREAKS below: one function each).
"""
import argparse
import json
import os
import shutil
import struct
import sys

GEN3, GEN4, GEN5 = "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"
COUNTERS = {name: 0 for name in """symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors
port_rcv_switch_relay_errors port_xmit_discards port_xmit_constraint_errors port_rcv_constraint_errors local_link_integrity_errors
excessive_buffer_overrun_errors VL15_dropped port_xmit_wait""".split()}
COUNTERS.update(port_xmit_data=123456789, port_rcv_data=223456789, port_xmit_packets=1234567, port_rcv_packets=2234567,
                unicast_xmit_packets=1234567, unicast_rcv_packets=2234567, multicast_xmit_packets=0, multicast_rcv_packets=12)
HW = {name: 0 for name in """duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets out_of_buffer
out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors req_remote_invalid_request resp_cqe_error
resp_cqe_flush_error resp_local_length_error resp_remote_access_errors rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to
roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_dct_connect
rx_icrc_encapsulated rx_read_requests rx_write_requests""".split()}
HW["lifespan"] = 10


# ---- descriptions -----------------------------------------------------------------------------

def base(name, nodes=2, cpus=64):
    each = cpus // nodes
    return {
        "hostname": name, "kernel": "6.8.0-45-generic", "cmdline": "ro iommu=pt", "cpu": "Example Processor 9000", "memory_kib": 1056 << 20,
        "virtual": False, "container": False,
        "nodes": [{"cpus": "%d-%d" % (i * each, (i + 1) * each - 1)} for i in range(nodes)], "cpus": cpus,
        "bridges": [], "functions": [], "rdma": [], "net": [{"name": "lo", "type": 772, "mtu": 65536, "state": "unknown", "mac": "00:00:00:00:00:00",
                                                             "addresses": ["127.0.0.1/8"]}],
        "modules": {"ib_core": "", "ib_uverbs": "", "rdma_cm": "", "mlx5_core": "", "mlx5_ib": "", "nvidia": "550.90.07", "nvidia_uvm": "",
                    "nvidia_peermem": "550.90.07"},
        "memlock": "unlimited", "shm": "size=%dk" % (512 << 20), "governor": "performance", "iommu": "identity", "dev_infiniband": True,
        "files": {"/proc/sys/kernel/numa_balancing": "0"},
    }


def bridge(m, address, under, numa, speed=GEN5, acs="off"):
    m["bridges"].append({"address": address, "under": under, "numa": numa, "speed": speed, "width": 16, "acs": acs})
    return address


def gpu(m, address, under, numa, speed=GEN5, device="0x2330"):
    m["functions"].append({"address": address, "under": under, "numa": numa, "class": "0x030200", "vendor": "0x10de", "device": device, "speed": speed,
                           "max_speed": speed, "width": 16, "max_width": 16, "driver": "nvidia"})


def card(m, address, under, numa, speed=GEN5, device="0x1021"):
    m["functions"].append({"address": address, "under": under, "numa": numa, "class": "0x020000", "vendor": "0x15b3", "device": device, "speed": speed,
                           "max_speed": speed, "width": 16, "max_width": 16, "driver": "mlx5_core"})
    return address


def guid(i, port=0):
    return "b83f:d203:00%02x:%04x" % (0xa0 + port, 0x1000 + i)


def gid(i):
    return {"index": 0, "gid": "fe80:0000:0000:0000:" + guid(i), "type": "IB/RoCE v1", "ndev": ""}


def ib(m, i, pci, rate="400 Gb/sec (4X NDR)", hca="MT4129", fw="28.39.3004", board="MT_0000000838"):
    m["rdma"].append({"name": "mlx5_%d" % i, "pci": pci, "guid": guid(i), "hca": hca, "fw": fw, "board": board, "ports": [
        {"number": 1, "state": "4: ACTIVE", "phys": "5: LinkUp", "rate": rate, "link": "InfiniBand", "lid": 0x96 + i, "sm_lid": 0x11c,
         "cap_mask": "0xa751e848", "gids": [gid(i)], "pkeys": ["0x7fff", "0xffff"], "counters": dict(COUNTERS), "hw": dict(HW),
         "mtu": 4096}]})
    m["net"].append({"name": "ib%d" % i, "pci": pci, "type": 32, "mtu": 2044, "state": "up", "speed": int(rate.split()[0]) * 1000,
                     "mac": "00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:a0:%02x:%02x" % (0x10, i), "addresses": ["10.9.%d.1/24" % i]})


def ether(m, name, pci, address, speed=400000, mtu=9000, i=0):
    m["net"].append({"name": name, "pci": pci, "type": 1, "mtu": mtu, "state": "up", "speed": speed, "mac": "b8:3f:d2:00:10:%02x" % i,
                     "addresses": [address] if address else []})


def roce(m, i, pci, netdev, address, rate="400 Gb/sec (4X NDR)", mtu=9000, hca="MT4129", fw="28.39.3004", board="MT_0000000838", name=None):
    mac = "ba3f:d2ff:fe00:%04x" % (0x1000 + i)
    four = [int(x) for x in address.split("/")[0].split(".")]
    mapped = "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(four)
    local = "fe80:0000:0000:0000:" + mac
    m["rdma"].append({"name": name or "mlx5_%d" % i, "pci": pci, "guid": guid(i), "hca": hca, "fw": fw, "board": board, "ports": [
        {"number": 1, "state": "4: ACTIVE", "phys": "5: LinkUp", "rate": rate, "link": "Ethernet", "lid": 0, "sm_lid": 0, "cap_mask": "0x00010000",
         "gids": [{"index": k, "gid": local if k < 2 else mapped, "type": "RoCE v2" if k % 2 else "IB/RoCE v1", "ndev": netdev} for k in range(4)],
         "pkeys": ["0xffff"], "counters": dict(COUNTERS), "hw": dict(HW)}]})
    ether(m, netdev, pci, address, int(rate.split()[0]) * 1000, mtu, i)


def front(m, name="eno1", address="192.0.2.17/24"):
    bridge(m, "0000:00:1c.0", "pci0000:00", 0, GEN3)
    m["functions"].append({"address": "0000:02:00.0", "under": "0000:00:1c.0", "numa": 0, "class": "0x020000", "vendor": "0x8086", "device": "0x1563",
                           "speed": GEN3, "max_speed": GEN3, "width": 4, "max_width": 4, "driver": "ixgbe"})
    m["net"].append({"name": name, "pci": "0000:02:00.0", "type": 1, "mtu": 1500, "state": "up", "speed": 10000, "mac": "3c:ec:ef:00:00:01",
                     "addresses": [address]})
    m["functions"].append({"address": "0000:03:00.0", "under": "pci0000:00", "numa": 0, "class": "0x030000", "vendor": "0x1a03", "device": "0x2000",
                           "speed": "", "max_speed": "", "width": 0, "max_width": 0, "driver": "ast"})  # the console's VGA: no GPU


def ib_ndr():
    """eight NDR cards and eight GPUs, each pair below a switch of its own, two sockets"""
    m = base("ndr01")
    front(m)
    for i in range(8):
        numa, bus = i // 4, 0x10 + 0x10 * i
        root = bridge(m, "0000:%02x:01.0" % bus, "pci0000:%02x" % bus, numa)
        up = bridge(m, "0000:%02x:00.0" % (bus + 1), root, numa)
        a, b = (bridge(m, "0000:%02x:%02x.0" % (bus + 2, s), up, numa) for s in (0, 1))
        ib(m, i, card(m, "0000:%02x:00.0" % (bus + 3), a, numa))
        gpu(m, "0000:%02x:00.0" % (bus + 4), b, numa)
    return m


def ib_hdr():
    """two HDR cards and four GPUs, all of them at root ports: no switches, Gen4"""
    m = base("hdr01", cpus=32)
    front(m)
    m["modules"].update(nvidia="535.183.01", nvidia_peermem="535.183.01")
    for i in range(2):
        bus = 0x40 + 0x40 * i
        root = bridge(m, "0000:%02x:01.0" % bus, "pci0000:%02x" % bus, i, GEN4)
        ib(m, i, card(m, "0000:%02x:00.0" % (bus + 1), root, i, GEN4, "0x101b"), "200 Gb/sec (4X HDR)", "MT4123", "20.38.1002", "MT_0000000223")
        for k in range(2):
            down = bridge(m, "0000:%02x:%02x.0" % (bus, 2 + k), "pci0000:%02x" % bus, i, GEN4)
            gpu(m, "0000:%02x:00.0" % (bus + 2 + k), down, i, GEN4, "0x20b5")
    return m


def roce8():
    """eight RoCE cards and eight GPUs over four PCIe switches, two sockets"""
    m = base("roce01")
    front(m)
    for s in range(4):
        numa, bus = s // 2, 0x10 + 0x20 * s
        root = bridge(m, "0000:%02x:01.0" % bus, "pci0000:%02x" % bus, numa)
        up = bridge(m, "0000:%02x:00.0" % (bus + 1), root, numa)
        ports = [bridge(m, "0000:%02x:%02x.0" % (bus + 2, p), up, numa) for p in range(4)]
        for k in range(2):
            i = 2 * s + k
            roce(m, i, card(m, "0000:%02x:00.0" % (bus + 3 + k), ports[k], numa), "ens%df0np0" % (i + 1), "10.1.%d.11/24" % i)
            gpu(m, "0000:%02x:00.0" % (bus + 5 + k), ports[2 + k], numa)
    return m


def dual():
    """one card with two functions: HDR InfiniBand and 100 Gb/s Ethernet"""
    m = base("dual01", cpus=32)
    front(m)
    root = bridge(m, "0000:40:01.0", "pci0000:40", 0, GEN4)
    ib(m, 0, card(m, "0000:41:00.0", root, 0, GEN4, "0x101b"), "200 Gb/sec (4X HDR)", "MT4123", "20.38.1002", "MT_0000000223")
    roce(m, 1, card(m, "0000:41:00.1", root, 0, GEN4, "0x101b"), "ens5f1np1", "10.2.0.11/24", "100 Gb/sec (4X EDR)", 4200, "MT4123", "20.38.1002", "MT_0000000223")
    down = bridge(m, "0000:40:02.0", "pci0000:40", 0, GEN4)
    gpu(m, "0000:42:00.0", down, 0, GEN4, "0x20b5")
    return m


def container():
    """a container that was given two RoCE cards and two GPUs as it should be"""
    m = base("pod-7f9c", cpus=32)
    m["container"] = True
    for i in range(2):
        bus = 0x20 + 0x20 * i
        root = bridge(m, "0000:%02x:01.0" % bus, "pci0000:%02x" % bus, i, GEN4)
        up = bridge(m, "0000:%02x:00.0" % (bus + 1), root, i, GEN4)
        roce(m, i, card(m, "0000:%02x:00.0" % (bus + 2), up, i, GEN4, "0x101d"), "net%d" % (i + 1), "10.3.%d.5/24" % i, "100 Gb/sec (4X EDR)", 9000, "MT4125",
             "22.39.2048", "MT_0000000359")
        gpu(m, "0000:%02x:00.0" % (bus + 3), up, i, GEN4, "0x20b5")
    m["net"].append({"name": "eth0", "pci": None, "type": 1, "mtu": 1450, "state": "up", "speed": 10000, "mac": "0a:58:0a:00:00:05", "addresses": ["10.244.1.5/24"]})
    return m


def container_bare():
    """the same without /dev/infiniband, with Docker's 64 MiB of /dev/shm and 64 KiB of locked memory"""
    m = container()
    for name in ("no-dev", "shm", "memlock"):
        BREAKS[name](m)
    return m


def vm():
    """a virtual machine: virtual functions at a flat bus, no NUMA told, bridges without ACS"""
    m = base("vm01", nodes=1, cpus=16)
    m.update(virtual=True, iommu=None, governor=None)
    for i in range(2):
        root = bridge(m, "0000:00:%02x.0" % (4 + i), "pci0000:00", -1, GEN4, "none")
        roce(m, i, card(m, "0000:%02x:00.0" % (1 + i), root, -1, GEN4, "0x101e"), "enp%ds0" % (1 + i), "10.4.%d.7/24" % i, "200 Gb/sec (4X HDR)", 9000,
             "MT4126", "22.39.2048", "MT_0000000359")
        gpu(m, "0000:%02x:00.0" % (0x10 + i), bridge(m, "0000:00:%02x.0" % (8 + i), "pci0000:00", -1, GEN4, "none"), -1, GEN4, "0x20b5")
    m["net"].append({"name": "eth0", "pci": None, "type": 1, "mtu": 1500, "state": "up", "speed": 50000, "mac": "02:00:17:00:00:01", "addresses": ["10.0.0.7/24"]})
    return m


CASES = {"ib-ndr": ib_ndr, "ib-hdr": ib_hdr, "roce8": roce8, "dual": dual, "container": container, "container-bare": container_bare, "vm": vm}


# ---- what can be broken: one thing each ----------------------------------------------------------

def last(m):
    return m["rdma"][-1]["ports"][0]


def down(m):
    last(m).update(state="1: DOWN", phys="2: Polling", rate="40 Gb/sec (4X QDR)")
    for n in m["net"]:
        if n.get("pci") == m["rdma"][-1]["pci"]:
            n.update(state="down", speed=-1)


def half_rate(m):
    p = last(m)
    value = int(p["rate"].split()[0]) // 2
    p["rate"] = "%d Gb/sec (2X %s" % (value, p["rate"].split("(4X ")[1])


def old_kernel(m):
    for d in m["rdma"]:
        d["ports"][0]["rate"] = "10 Gb/sec (4X SDR)"
    m["kernel"] = "4.18.0-80.el8"


def gids(m, change):
    for d in m["rdma"]:
        for p in d["ports"]:
            if p["link"] == "Ethernet":
                p["gids"] = change(p["gids"])


def small_mtu(m):
    for n in m["net"]:
        if n.get("pci") and n["type"] == 1:
            n["mtu"] = 1500


def card_of(m):
    return next(f for f in m["functions"] if f["address"] == m["rdma"][-1]["pci"])


def all_acs(m):
    for b in m["bridges"]:
        b["acs"] = "on"


def far_numa(m):
    for f in m["functions"]:
        f["numa"] = 0


def far_gpus(m):
    """every GPU moves to a root port and a host bridge of its own: no switch joins it with a card"""
    for i, f in enumerate(f for f in m["functions"] if f["class"] == "0x030200"):
        bus = 0xc0 + 2 * i
        f["under"] = bridge(m, "0000:%02x:01.0" % bus, "pci0000:%02x" % bus, f["numa"], f["speed"])
        f["address"] = "0000:%02x:00.0" % (bus + 1)


BREAKS = {
    "port-down": down,
    "no-sm": lambda m: last(m).update(state="2: INIT", sm_lid=0, lid=0xffff),
    "half-rate": half_rate,
    "old-kernel": old_kernel,
    "errors": lambda m: last(m)["counters"].update(symbol_error=65535, link_error_recovery=25, link_downed=3, port_rcv_errors=120),
    "congested": lambda m: last(m)["hw"].update(np_ecn_marked_roce_packets=400000, np_cnp_sent=380000, rp_cnp_handled=90000, out_of_sequence=5000,
                                                packet_seq_err=400, local_ack_timeout_err=7),
    "flaps": lambda m: (last(m)["counters"].update(link_downed=42), m["net"][-1].update(carrier_changes=84)),
    "mtu": small_mtu,
    "no-v2": lambda m: gids(m, lambda g: [x for x in g if x["type"] != "RoCE v2"]),
    "gid-shift": lambda m: gids(m, lambda g: [dict(x, index=x["index"] + 4) if x["index"] > 1 else x for x in g]),
    "no-gids": lambda m: gids(m, lambda g: []),
    "no-peermem": lambda m: m["modules"].pop("nvidia_peermem", None),
    "acs": all_acs,
    "iommu": lambda m: m.update(iommu="DMA", cmdline="ro intel_iommu=on"),
    "pcie-slow": lambda m: card_of(m).update(speed=GEN3),
    "pcie-narrow": lambda m: card_of(m).update(width=8),
    "memlock": lambda m: m.update(memlock="65536"),
    "shm": lambda m: m.update(shm="size=65536k"),
    "no-dev": lambda m: m.update(dev_infiniband=False),
    "numa": far_numa,
    "governor": lambda m: m.update(governor="powersave"),
    "pairing": far_gpus,
    "firmware": lambda m: m["rdma"][-1].update(fw="28.35.2000"),
    "no-rdma": lambda m: m.update(rdma=[], dev_infiniband=False),
}


# ---- files ---------------------------------------------------------------------------------------

class Tree:
    def __init__(self, out):
        self.out = out
        self.made = set()

    def real(self, path):
        full = self.out + path
        above = full.rpartition("/")[0]
        if above not in self.made:
            os.makedirs(above, exist_ok=True)
            self.made.add(above)
        return full

    def put(self, path, text):
        fd = os.open(self.real(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(fd, text if isinstance(text, bytes) else (str(text) + "\n").encode())
        os.close(fd)

    def link(self, path, target):
        """relative, as sysfs has them"""
        os.symlink(os.path.relpath(target, os.path.dirname(path)), self.real(path))


def config_space(acs):
    """4 KiB with one extended capability: ACS (id 0x000d) or a serial number (0x0003)"""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, (1 << 16 | (0x0003 if acs == "none" else 0x000d)))
    if acs != "none":
        struct.pack_into("<HH", space, 0x104, 0x5f, 0x1d if acs == "on" else 0)
    return bytes(space)


def function_space(control):
    """256 bytes with a PCI Express capability at 0x60, whose Device Control has this value"""
    space = bytearray(256)
    space[0x34] = 0x60
    struct.pack_into("<BBHIH", space, 0x60, 0x10, 0, 2, 0, control)
    return bytes(space)


def pci_paths(m):
    under = {b["address"]: b["under"] for b in m["bridges"] + m["functions"]}

    def path(a):
        return "/sys/devices/" + a if a.startswith("pci") else path(under[a]) + "/" + a
    return {a: path(a) for a in under}


def write_pci(t, m):
    where = pci_paths(m)
    groups = {}
    for f in m["bridges"] + m["functions"]:
        d = where[f["address"]]
        is_bridge = "acs" in f and "class" not in f
        t.put(d + "/class", "0x060400" if is_bridge else f["class"])
        t.put(d + "/vendor", "0x1000" if is_bridge else f["vendor"])
        t.put(d + "/device", "0xc030" if is_bridge else f["device"])
        t.put(d + "/numa_node", f["numa"])
        t.put(d + "/local_cpulist", m["nodes"][f["numa"]]["cpus"] if f["numa"] >= 0 else "0-%d" % (m["cpus"] - 1))
        t.put(d + "/config", config_space(f["acs"]) if is_bridge else function_space(f.get("control", 0x2936)))
        if f["speed"]:
            t.put(d + "/current_link_speed", f["speed"])
            t.put(d + "/max_link_speed", f.get("max_speed", f["speed"]))
            t.put(d + "/current_link_width", f["width"])
            t.put(d + "/max_link_width", f.get("max_width", f["width"]))
        t.link("/sys/bus/pci/devices/" + f["address"], d)
        if not is_bridge:
            t.put(d + "/subsystem_vendor", f["vendor"])
            t.put(d + "/subsystem_device", "0x0001")
            t.put(d + "/uevent", "DRIVER=%s\nPCI_SLOT_NAME=%s" % (f["driver"], f["address"]))
            os.makedirs(t.real("/sys/bus/pci/drivers/" + f["driver"] + "/x")[:-2], exist_ok=True)
            t.link(d + "/driver", "/sys/bus/pci/drivers/" + f["driver"])
        if m["iommu"]:
            n = groups.setdefault(f["address"], len(groups))
            t.put("/sys/kernel/iommu_groups/%d/type" % n, m["iommu"])
            t.link(d + "/iommu_group", "/sys/kernel/iommu_groups/%d" % n)
    return where


def write_port(t, d, p):
    d = "%s/ports/%d" % (d, p["number"])
    t.put(d + "/state", p["state"])
    t.put(d + "/phys_state", p["phys"])
    t.put(d + "/rate", p["rate"])
    t.put(d + "/link_layer", p["link"])
    t.put(d + "/lid", "0x%x" % p["lid"])
    t.put(d + "/sm_lid", "0x%x" % p["sm_lid"])
    t.put(d + "/sm_sl", 0)
    t.put(d + "/lid_mask_count", 0)
    t.put(d + "/cap_mask", p["cap_mask"])
    for i in range(8):
        t.put("%s/gids/%d" % (d, i), ":".join(["0000"] * 8))
        t.put("%s/pkeys/%d" % (d, i), p["pkeys"][i] if i < len(p["pkeys"]) else "0x0000")
    for g in p["gids"]:
        t.put("%s/gids/%d" % (d, g["index"]), g["gid"])
        t.put("%s/gid_attrs/types/%d" % (d, g["index"]), g["type"])
        if g["ndev"]:
            t.put("%s/gid_attrs/ndevs/%d" % (d, g["index"]), g["ndev"])
    for kind, folder in (("counters", "counters"), ("hw", "hw_counters")):
        for name, value in p[kind].items():
            t.put("%s/%s/%s" % (d, folder, name), value)


def write_rdma(t, m, where):
    devinfo = []
    for i, r in enumerate(m["rdma"]):
        d = "%s/infiniband/%s" % (where[r["pci"]], r["name"])
        for name, value in (("node_type", "1: CA"), ("node_guid", r["guid"]), ("sys_image_guid", r["guid"]), ("fw_ver", r["fw"]), ("hw_rev", "0"),
                            ("hca_type", r["hca"]), ("board_id", r["board"]), ("node_desc", m["hostname"] + " " + r["name"])):
            t.put(d + "/" + name, value)
        t.link(d + "/device", where[r["pci"]])
        t.link("/sys/class/infiniband/" + r["name"], d)
        devinfo.append("hca_id:\t%s" % r["name"])
        for p in r["ports"]:
            write_port(t, d, p)
            if "mtu" in p:
                devinfo += ["\t\tport:\t%d" % p["number"], "\t\t\tmax_mtu:\t\t4096 (5)", "\t\t\tactive_mtu:\t\t%d (5)" % p["mtu"]]
        v = "%s/infiniband_verbs/uverbs%d" % (where[r["pci"]], i)
        t.put(v + "/ibdev", r["name"])
        t.link("/sys/class/infiniband_verbs/uverbs%d" % i, v)
        if m["dev_infiniband"]:
            t.put("/dev/infiniband/uverbs%d" % i, b"")
            t.put("/dev/infiniband/umad%d" % i, b"")
    if m["dev_infiniband"]:
        t.put("/dev/infiniband/rdma_cm", b"")
    t.put("/commands/ibv_devinfo.txt", "\n".join(devinfo))


def write_net(t, m, where):
    listed = []
    for i, n in enumerate(m["net"]):
        d = (where[n["pci"]] if n.get("pci") else "/sys/devices/virtual") + "/net/" + n["name"]
        for name, value in (("operstate", n["state"]), ("mtu", n["mtu"]), ("address", n["mac"]), ("type", n["type"]), ("ifindex", i + 1),
                            ("speed", n.get("speed", -1)), ("carrier", int(n["state"] != "down")), ("carrier_changes", n.get("carrier_changes", 1)),
                            ("flags", "0x1003"), ("dev_port", n.get("dev_port", 0))):
            t.put(d + "/" + name, value)
        if n.get("pci"):
            t.link(d + "/device", where[n["pci"]])
        t.link("/sys/class/net/" + n["name"], d)
        listed.append({"ifname": n["name"], "mtu": n["mtu"], "addr_info": [
            {"family": "inet", "local": a.split("/")[0], "prefixlen": int(a.split("/")[1])} for a in n.get("addresses", [])]})
    t.put("/commands/ip-addr.json", json.dumps(listed))


def write_system(t, m):
    for i, n in enumerate(m["nodes"]):
        t.put("/sys/devices/system/node/node%d/cpulist" % i, n["cpus"])
        t.put("/sys/devices/system/node/node%d/distance" % i, " ".join("10" if k == i else "21" for k in range(len(m["nodes"]))))
    for c in range(m["cpus"]):
        if m["governor"]:
            t.put("/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor" % c, m["governor"])
        else:
            t.put("/sys/devices/system/cpu/cpu%d/topology/core_id" % c, c)
    for name, version in m["modules"].items():
        t.put("/sys/module/%s/initstate" % name, "live")
        if version:
            t.put("/sys/module/%s/version" % name, version)
    if "nvidia" in m["modules"]:
        t.put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + m["modules"]["nvidia"])
    t.put("/proc/sys/kernel/hostname", m["hostname"])
    t.put("/proc/sys/kernel/osrelease", m["kernel"])
    t.put("/proc/cmdline", m["cmdline"])
    t.put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: %s\nflags\t\t: fpu avx2%s" % (m["cpu"], " hypervisor" if m["virtual"] else ""))
    t.put("/proc/meminfo", "MemTotal:       %d kB" % m["memory_kib"])
    t.put("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev%s 0 0" % ("," + m["shm"] if m["shm"] else ""))
    t.put("/proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units\n"
          "Max locked memory         %-20s %-20s bytes" % (m["memlock"], m["memlock"]))
    if m["container"]:
        t.put("/.dockerenv", b"")


def write(out, m):
    if os.path.exists(out):
        shutil.rmtree(out)
    fill(Tree(out), m)


def fill(t, m):
    where = write_pci(t, m)
    write_net(t, m, where)
    if m["rdma"] or m["dev_infiniband"]:
        write_rdma(t, m, where)
    write_system(t, m)
    for path, text in m.get("files", {}).items():
        t.put(path, text)


def write_record(out, record):
    """listing.txt has a line "./path:content" for each file of /sys/class/infiniband/rxe0; ip-addr.out gives the net device"""
    if os.path.exists(out):
        shutil.rmtree(out)
    t = Tree(out)
    with open(os.path.join(record, "listing.txt")) as f:
        for line in f:
            path, _, text = line.rstrip("\n").partition(":")
            t.put("/sys/class/infiniband/rxe0/" + path[2:], text)
    with open(os.path.join(record, "ip-addr.out")) as f:
        for line in f:
            if not line.startswith(" "):
                index, name, rest = line.split(": ", 2)
                d = "/sys/class/net/" + name
                words = rest.split()
                t.put(d + "/mtu", words[words.index("mtu") + 1])
                t.put(d + "/operstate", words[words.index("state") + 1].lower())
                t.put(d + "/ifindex", index)
                t.put(d + "/type", 772 if name == "lo" else 1)
            elif "link/ether" in line:
                t.put(d + "/address", line.split()[1])


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("words", nargs="*")
    ap.add_argument("--break", dest="broken", action="append", default=[])
    ap.add_argument("--description")
    ap.add_argument("--record")
    ap.add_argument("--print", dest="show", action="store_true")
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    if a.list:
        for name, make in CASES.items():
            print("%-16s %s" % (name, make.__doc__))
        print("--break " + " ".join(BREAKS))
        return 0
    words = list(a.words)
    out = None if a.show else (words.pop(0) if words else ap.error("OUT is needed"))
    if a.record:
        write_record(out, a.record)
        return 0
    if a.description:
        with open(a.description) as f:
            m = json.load(f)
    else:
        if len(words) != 1 or words[0] not in CASES:
            ap.error("CASE is one of " + " ".join(CASES))
        m = CASES[words[0]]()
    for name in a.broken:
        if name not in BREAKS:
            ap.error("--break is one of " + " ".join(BREAKS))
        BREAKS[name](m)
    if a.show:
        json.dump(m, sys.stdout, indent=1)
        print()
    else:
        write(out, m)
    return 0


if __name__ == "__main__":
    sys.exit(main())
