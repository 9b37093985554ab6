#!/usr/bin/env python3
"""compare.py STATUS.json RECORD: what `imece fabric status --json` says against the recorded outputs of ibstat, ibstatus, `rdma link`,
`rdma dev` and ibv_devinfo in the directory RECORD, field by field. Prints how many fields were compared; exit 1 where one differs."""
import json
import re
import sys

RDMA_STATES = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"]
RDMA_PHYS = ["NOP", "SLEEP", "POLLING", "DISABLED", "ARMED", "LINK_UP", "LINK_ERROR_RECOVER", "PHY_TEST"]
wrong = compared = 0


def same(what, ours, theirs):
    global wrong, compared
    compared += 1
    if ours != theirs:
        wrong += 1
        print("%s: ours %r, theirs %r" % (what, ours, theirs))


def ibstat_rate(port):
    whole = int(port["rate_gbps"])
    return "2.5" if whole == 2 else "%d%s" % (whole, " (FDR10)" if port.get("speed") == "FDR10" else "")


def ibstat(status, text):
    d = p = None
    for line in text.splitlines():
        if line.startswith("CA '"):
            d = next(x for x in status["rdma"] if x["name"] == line[4:-1])
        elif re.match(r"\s*Port \d+:", line):
            p = next(x for x in d["ports"] if x["port"] == int(line.strip()[5:-1]))
        else:
            key, _, value = line.strip().partition(":")
            value = value.strip()
            ours = {
                "CA type": lambda: d.get("hca_type", ""), "Number of ports": lambda: str(len(d["ports"])), "Firmware version": lambda: d.get("fw_ver", ""),
                "Hardware version": lambda: d.get("hw_rev", ""), "Node GUID": lambda: "0x" + d["node_guid"].replace(":", ""),
                "System image GUID": lambda: "0x" + d["sys_image_guid"].replace(":", ""), "State": lambda: p["state_name"],
                "Physical state": lambda: p["phys_state_name"], "Rate": lambda: ibstat_rate(p), "Base lid": lambda: str(p["lid"]), "LMC": lambda: str(p["lmc"]),
                "SM lid": lambda: str(p["sm_lid"]), "Capability mask": lambda: "0x%08x" % p["cap_mask"], "Port GUID": lambda: "0x" + p["port_guid"],
                "Link layer": lambda: p["link_layer"],
            }[key]()
            same("ibstat: " + key, ours, value)


def ibstatus(status, text):
    p = None
    for line in text.splitlines():
        found = re.match(r"Infiniband device '(\S+)' port (\d+)", line)
        if found:
            d = next(x for x in status["rdma"] if x["name"] == found[1])
            p = next(x for x in d["ports"] if x["port"] == int(found[2]))
        elif ":" in line:
            key, _, value = line.strip().partition(":")
            ours = {"default gid": lambda: p["gids"][0]["gid"], "base lid": lambda: hex(p["lid"]), "sm lid": lambda: hex(p["sm_lid"]), "rate": lambda: p["rate"],
                    "link_layer": lambda: p["link_layer"], "state": lambda: p["state"], "phys state": lambda: p["phys_state"]}[key]()
            value = value.strip()
            same("ibstatus: " + key, ours, int(value.split(":")[0]) if isinstance(ours, int) else value)


def rdma_link(status, links):
    for link in links:
        d = next(x for x in status["rdma"] if x["name"] == link["ifname"])
        p = next(x for x in d["ports"] if x["port"] == link["port"])
        same("rdma link: state", RDMA_STATES[p["state"]], link["state"])
        same("rdma link: physical_state", RDMA_PHYS[p["phys_state"]], link["physical_state"])
        same("rdma link: netdev", p.get("netdev"), link.get("netdev"))


def rdma_dev(status, text):
    for line in text.splitlines():
        found = re.match(r"\d+: (\S+): node_type (\S+).* node_guid (\S+) sys_image_guid (\S+)", line)
        d = next(x for x in status["rdma"] if x["name"] == found[1])
        same("rdma dev: node_type", d["node_type"], {"ca": 1, "switch": 2, "router": 3, "rnic": 4}[found[2]])
        same("rdma dev: node_guid", d["node_guid"], found[3])
        same("rdma dev: sys_image_guid", d["sys_image_guid"], found[4])


def devinfo(status, text):
    d = p = None
    gids = 0
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        value = value.strip()
        if key == "hca_id":
            d = next(x for x in status["rdma"] if x["name"] == value)
        elif key == "port":
            p = next(x for x in d["ports"] if x["port"] == int(value))
        elif key == "active_mtu":
            same("ibv_devinfo: active_mtu", p["mtu_active"], int(value.split()[0]))
        elif key.startswith("GID["):
            address, _, kind = value.partition(", ")
            g = next(x for x in p["gids"] if x["index"] == int(key[4:-1]))
            same("ibv_devinfo: GID", g["address"], address.replace("::ffff:", ""))
            same("ibv_devinfo: GID type", g["type"], kind)
            gids += 1
    same("ibv_devinfo: GIDs", sum(len(x["gids"]) for x in d["ports"]), gids)


def statistic(status, text):
    for line in text.splitlines():
        words = line.split()
        name, port = words[1].split("/")
        p = next(x for d in status["rdma"] if d["name"] == name for x in d["ports"] if x["port"] == int(port))
        for key, value in zip(words[2::2], words[3::2]):
            same("rdma statistic: " + key, p["hw_counters"].get(key), int(value))


def main():
    with open(sys.argv[1]) as f:
        status = json.load(f)

    def text(name):
        with open("%s/%s" % (sys.argv[2], name)) as f:
            return f.read()
    ibstat(status, text("ibstat.out"))
    ibstatus(status, text("ibstatus.out"))
    rdma_link(status, json.loads(text("rdma-link-json.out")))
    rdma_dev(status, text("rdma-dev.out"))
    devinfo(status, text("ibv_devinfo-mtu.out"))
    statistic(status, text("rdma-statistic-link.out"))
    print("%d fields compared, %d differ" % (compared, wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
