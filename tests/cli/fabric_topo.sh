#!/usr/bin/env bash
# imece fabric topo: distances and pairing of made machines, NCCL's XML, the shapes of networks and what differs from its twins.
[ -w /dev/shm ] && export TMPDIR=/dev/shm # thousands of small files
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$IMECE_SOURCE/tests/fabric
topo() { "$IMECE" fabric topo "$@"; }
tree() { python3 "$here/make_tree.py" "$T/t" "$@"; }
net() { python3 "$here/make_net.py" "$@" >"$T/net"; }

# ---- machines ----
tree roce8
expect "four switches" 0 '8 GPUs, 8 NICs, 2 NUMA nodes' '^GPU0 +X +PIX +NODE +NODE +SYS +SYS +SYS +SYS +PIX +PIX +NODE +NODE +SYS' '^GPU7 .* 1  32-63$' \
    '^GPU0 +mlx5_0 +PIX$' '^GPU5 +mlx5_5 +PIX$' 'Rails: 8' '^ +7  mlx5_7 +400 Gb/s  RoCE  PCIe 63.0 GB/s  GPU7$' -- topo --root "$T/t"
tree roce8 --break pairing
expect "GPUs far from their cards" 0 '^GPU0 +mlx5_0 +NODE$' '^GPU4 +mlx5_4 +NODE$' -- topo --root "$T/t"
tree ib-hdr
expect "no switches" 0 '^mlx5_0 +PHB +PHB +SYS +SYS +X +SYS ' '^GPU0 +X +PHB +SYS +SYS +PHB +SYS ' 'Rails: 2' '^ +1  mlx5_1 +200 Gb/s  InfiniBand  PCIe 31.5 GB/s  GPU2  GPU3$' -- \
    topo --root "$T/t"
tree ib-hdr --break pcie-slow --break numa
expect "a slow slot" 0 'PCIe 15.8 GB/s: less than the network' -- topo --root "$T/t"
tree dual
expect "two kinds of port" 0 '^mlx5_0 +PHB +X +PIX' 'Rails: 1' 'not a rail: mlx5_1 \(Ethernet beside InfiniBand\)' -- topo --root "$T/t"
tree ib-ndr --break port-down
expect "a port is down" 0 'Rails: 7' 'not a rail: mlx5_7 \(no active port\)' '^GPU7 +mlx5_[0-6] +(NODE|SYS)' -- topo --root "$T/t"
tree vm
expect "NUMA is not told" 0 '^GPU0 +X +PHB +PHB +PHB' -- topo --root "$T/t"
expect "this machine" 0 'GPUs, .* NICs' -- topo

# ---- NCCL's XML ----
expect "XML" 0 '2 GPUs, 3 NICs, 2 NUMA nodes' '^GPU0 +X +NV18 +PIX +SYS +SYS +0  0-15$' '^GPU1 +mlx5_1 +PIX$' 'mlx5_1 +400 Gb/s  PCIe 31.5 GB/s: less than the network  GPU1' \
    'not a rail: eth0' -- topo --nccl-xml "$here/nccl/two-gpus.xml"
topo --nccl-xml "$here/nccl/two-gpus.xml" --json >"$T/out"
check "XML: JSON" python3 - "$T/out" <<'END'
import json, sys
m = json.load(open(sys.argv[1]))["machine"]
assert m["distance"]["GPU0"]["GPU1"] == "NV" and m["distance"]["GPU1"]["mlx5_0"] == "SYS" and m["distance"]["GPU1"]["mlx5_1"] == "PIX", m
assert [p["nic"] for p in m["pairing"]] == ["mlx5_0", "mlx5_1"] and m["rails"] == ["mlx5_0", "mlx5_1"] and list(m["not_rails"]) == ["eth0"]
assert m["nvlink_known"] and m["items"][0]["nvlinks"] == 18
END
head -c 700 "$here/nccl/two-gpus.xml" >"$T/cut.xml"
expect "XML that is cut" 1 'cut.xml: line [0-9]+: ' -- topo --nccl-xml "$T/cut.xml"
echo '<topology/>' >"$T/other.xml"
expect "another XML" 1 'other.xml: line 1: the first element is <topology>, not <system>' -- topo --nccl-xml "$T/other.xml"
expect "two machines" 2 'give one of them' -- topo --nccl-xml "$T/other.xml" --root "$T/t"

# ---- networks ----
shape() { # SHAPE CODE REGEX...
    local name=$1 code=$2
    shift 2
    expect "network: $name" "$code" "$@" -- topo --ibnetdiscover "$T/net"
}
net single && shape single 0 '1 switches, 6 hosts with 6 adapters, 6 links' 'topology: one switch'
net fat2 && shape fat2 0 'topology: fat-tree: 2 levels' 'level 1  8 switches  64 links down \(25.6 Tb/s\)  64 up \(25.6 Tb/s\)  over-subscribed 1 : 1'
net fat2-over && shape fat2-over 0 'over-subscribed 3 : 1'
net fat3 && shape fat3 0 '20 switches, 16 hosts' 'topology: fat-tree: 3 levels' 'level 3  4 switches'
net rails && shape rails 0 '8 hosts with 32 adapters' 'topology: fat-tree' 'rails: 4'
net rail-only && shape rail-only 0 'topology: several networks: 4 networks .*rail-only' 'rails: 4'
net dragonfly && shape dragonfly 0 'topology: dragonfly: 9 groups of 4 switches'
net dragonfly+ && shape dragonfly+ 0 'topology: dragonfly\+: 5 groups of 4'
net mesh && shape mesh 0 'topology: full mesh: 6 switches'
net ring && shape ring 0 'topology: other'
net fat2 --break slow && shape "a slow link" 3 'link leaf0 \[4\] to node003 mlx5_0 \[1\] is slower: 4xHDR, 63 of 63 twins 4xNDR'
net fat2 --break narrow && shape "a narrow link" 3 'node003 mlx5_0 \[1\] is narrower: 2xNDR'
net fat2 --break spine-narrow && shape "a narrow trunk" 3 'link leaf0 \[9\] to spine0 \[1\] is narrower'
net fat2 --break trunk && shape "a link is missing" 3 'switch leaf0 has 7 up links, 7 of 7 twins have 8' 'over-subscribed 1 to 1.14 : 1'
net fat2 --break manager && shape "a host at a spine" 0 'topology: fat-tree: 2 levels' 'level 2  4 switches  65 links down'
net dragonfly --break narrow && shape "a narrow link in a dragonfly" 3 'is narrower: 2xNDR, 71 of 71 twins'
net fat2
topo --ibnetdiscover "$T/net" --json >"$T/out"
check "network: JSON" python3 - "$T/out" <<'END'
import json, sys
n, = json.load(open(sys.argv[1]))["networks"]
assert n["topology"] == "fat-tree" and n["hosts"] == 64 and n["levels"][0]["oversubscription_max"] == 1 and n["findings"] == [], n
assert sorted(s["level"] for s in n["switches"]) == [1] * 8 + [2] * 4 and "oversubscription_max" not in n["levels"][1]
END
sed -i '300s/.*/[7]\t"S-1070"/' "$T/net"
expect "no ibnetdiscover" 1 'net: line 300: no other end' -- topo --ibnetdiscover "$T/net"
expect "a file of something else" 1 'no output of ibnetdiscover' -- topo --ibnetdiscover "$here/make_net.py"

# ---- Slurm ----
cat >"$T/topology.conf" <<'END'
# two leaves
SwitchName=l0 Nodes=tux[00-03,08]
switchname=l1 nodes=tux[04-07],fat1 LinkSpeed=9
SwitchName=top Switches=l[0-1]   # both
END
expect "slurm" 0 '3 switches, 10 hosts' 'topology: tree: 2 levels' 'level 1  2 switches  10 links down  2 up$' -- topo --slurm "$T/topology.conf"
echo 'SwitchName=l2 Nodes=tux[03-04] Switches=lost' >>"$T/topology.conf"
expect "slurm: twice and lost" 3 'node tux03 is at several switches \(line 5\)' 'switch lost is named below another and has no line' -- topo --slurm "$T/topology.conf"
echo 'SwitchName=l9 Nodes=n[0-999999999]' >"$T/topology.conf"
expect "slurm: too many" 1 'topology.conf: .*more than 262144' -- topo --slurm "$T/topology.conf"
echo 'SwitchName=l9 Nodes=n[3-1]' >"$T/topology.conf"
expect "slurm: no list" 1 'line 1: "3-1" is no list of numbers' -- topo --slurm "$T/topology.conf"
finish
