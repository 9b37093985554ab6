#!/usr/bin/env python3
"""make_net.py SHAPE [--break NAME]: the output that ibnetdiscover would give of a made-up InfiniBand network, on standard output.

SHAPE: single, fat2 (8 leaves, 4 spines, 2 links a pair, 1:1), fat2-over (3:1), fat3 (4-ary: 16 hosts, 20 switches), rails (4 rails, 8 hosts, spines above),
rail-only (the same without spines), dragonfly (9 groups of 4, p 2 h 2), dragonfly+ (5 groups of 2 leaves and 2 spines), mesh, ring.
--break slow, narrow: one host link; trunk: one link of a leaf to a spine gone; spine-narrow: one such link; manager: a host at the first spine.
"""
import argparse
import sys


class Net:
    def __init__(self):
        self.nodes = {}   # id -> (kind, ports, text, device)
        self.links = []   # [id, port, id, port, rate]
        self.used = {}

    def switch(self, name, ports=64):
        key = "S-%016x" % (0x1070fd0300000000 + len(self.nodes))
        self.nodes[key] = ("Switch", ports, name, 0xd2f2)
        return key

    def host(self, name, ports=1):
        key = "H-%016x" % (0xb83fd20300000000 + len(self.nodes))
        self.nodes[key] = ("Ca", ports, name, 0x1021)
        return key

    def link(self, a, b, rate="4xNDR"):
        for x in (a, b):
            self.used[x] = self.used.get(x, 0) + 1
        self.links.append([a, self.used[a], b, self.used[b], rate])

    def write(self, out):
        lids = {key: i + 1 for i, key in enumerate(self.nodes)}
        out.write("#\n# Topology file: generated on Tue Dec  1 12:00:00 2026\n#\n# Initiated from node b83fd20300000000 port b83fd20300000001\n")
        for key, (kind, ports, text, device) in self.nodes.items():
            guid = key[2:].lstrip("0")
            out.write("\nvendid=0x2c9\ndevid=0x%x\nsysimgguid=0x%s\n" % (device, guid))
            if kind == "Switch":
                out.write("switchguid=0x%s(%s)\nSwitch\t%d \"%s\"\t\t# \"%s\" enhanced port 0 lid %d lmc 0\n" % (guid, guid, ports, key, text, lids[key]))
            else:
                out.write("caguid=0x%s\nCa\t%d \"%s\"\t\t# \"%s\"\n" % (guid, ports, key, text))
            for a, pa, b, pb, rate in self.links:
                if key not in (a, b):
                    continue
                (p, other, q) = (pa, b, pb) if key == a else (pb, a, pa)
                behind = "(%s)" % other[2:].lstrip("0") if other[0] == "H" else ""
                name = self.nodes[other][2]
                if kind == "Switch":
                    out.write("[%d]\t\"%s\"[%d]%s \t\t# \"%s\" lid %d %s\n" % (p, other, q, behind, name, lids[other], rate))
                else:
                    out.write("[%d](%s) \t\"%s\"[%d]\t\t# lid %d lmc 0 \"%s\" lid %d %s\n" % (p, guid, other, q, lids[key], name, lids[other], rate))


def hosts(n, at, count, first, card="mlx5_0"):
    for i in range(count):
        n.link(n.host("node%03d %s" % (first + i, card)), at)


def single():
    n = Net()
    hosts(n, n.switch("sw0"), 6, 0)
    return n


def fat2(each=8, trunk=2):
    n = Net()
    leaves = [n.switch("leaf%d" % i) for i in range(8)]
    spines = [n.switch("spine%d" % i) for i in range(4)]
    for i, leaf in enumerate(leaves):
        hosts(n, leaf, each, i * each)
        for spine in spines:
            for _ in range(trunk):
                n.link(leaf, spine)
    return n


def fat3(k=4):
    n = Net()
    cores = [n.switch("core%d" % i, k) for i in range(k * k // 4)]
    for pod in range(k):
        edge = [n.switch("pod%d-edge%d" % (pod, i), k) for i in range(k // 2)]
        agg = [n.switch("pod%d-agg%d" % (pod, i), k) for i in range(k // 2)]
        for i, e in enumerate(edge):
            hosts(n, e, k // 2, (pod * k // 2 + i) * k // 2)
            for a in agg:
                n.link(e, a)
        for i, a in enumerate(agg):
            for j in range(k // 2):
                n.link(a, cores[i * k // 2 + j])
    return n


def rails(spines=2):
    n = Net()
    leaves = [n.switch("rail%d" % i) for i in range(4)]
    for h in range(8):
        for r, leaf in enumerate(leaves):
            n.link(n.host("gpu%02d mlx5_%d" % (h, r)), leaf)
    for s in range(spines):
        spine = n.switch("spine%d" % s)
        for leaf in leaves:
            for _ in range(4):
                n.link(leaf, spine)
    return n


def dragonfly(p=2, a=4, h=2):
    n = Net()
    groups = a * h + 1
    at = [[n.switch("g%d-r%d" % (g, r)) for r in range(a)] for g in range(groups)]
    count = 0
    for g in range(groups):
        for r in range(a):
            hosts(n, at[g][r], p, count)
            count += p
            for q in range(r + 1, a):
                n.link(at[g][r], at[g][q])
    free = {g: [s for s in at[g] for _ in range(h)] for g in range(groups)}
    for g in range(groups):
        for o in range(g + 1, groups):
            n.link(free[g].pop(), free[o].pop(0))
    return n


def dragonfly_plus(groups=5, leaves=2, spines=2):
    n = Net()
    tops = []
    for g in range(groups):
        low = [n.switch("g%d-leaf%d" % (g, i)) for i in range(leaves)]
        top = [n.switch("g%d-spine%d" % (g, i)) for i in range(spines)]
        tops.append(top)
        for i, leaf in enumerate(low):
            hosts(n, leaf, 4, (g * leaves + i) * 4)
            for s in top:
                n.link(leaf, s)
    for g in range(groups):
        for o in range(g + 1, groups):
            n.link(tops[g][o % spines], tops[o][g % spines])
    return n


def around(joined):
    n = Net()
    sw = [n.switch("sw%d" % i) for i in range(6)]
    for i, s in enumerate(sw):
        hosts(n, s, 2, 2 * i)
    for i in range(6):
        for k in range(i + 1, 6):
            if joined(i, k):
                n.link(sw[i], sw[k])
    return n


SHAPES = {
    "single": single, "fat2": fat2, "fat2-over": lambda: fat2(12, 1), "fat3": fat3, "rails": rails, "rail-only": lambda: rails(0), "dragonfly": dragonfly,
    "dragonfly+": dragonfly_plus, "mesh": lambda: around(lambda i, k: True), "ring": lambda: around(lambda i, k: k - i in (1, 5)),
}


def host_link(n):
    return next(x for x in n.links[3:] if x[0][0] == "H")


def trunk_link(n):
    return next(x for x in n.links if x[0][0] == "S" and x[2][0] == "S")


def manager(n):
    spine = next(k for k, v in n.nodes.items() if v[2].startswith("spine"))
    n.link(n.host("ufm01 HCA-1"), spine)


BREAKS = {
    "slow": lambda n: host_link(n).__setitem__(4, "4xHDR"),
    "narrow": lambda n: host_link(n).__setitem__(4, "2xNDR"),
    "trunk": lambda n: n.links.remove(trunk_link(n)),
    "spine-narrow": lambda n: trunk_link(n).__setitem__(4, "2xNDR"),
    "manager": manager,
}


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("shape", choices=SHAPES)
    ap.add_argument("--break", dest="broken", action="append", default=[], choices=BREAKS)
    a = ap.parse_args()
    n = SHAPES[a.shape]()
    for name in a.broken:
        BREAKS[name](n)
    n.write(sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
