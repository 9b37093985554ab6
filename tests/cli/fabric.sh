#!/usr/bin/env bash
# imece fabric status: against the records of the real tools, on made machines, on broken ones, and with nothing there.
[ -w /dev/shm ] && export TMPDIR=/dev/shm # thousands of small files
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$IMECE_SOURCE/tests/fabric
make_tree() { python3 "$here/make_tree.py" "$T/t" "$@"; }
status() { "$IMECE" fabric status --root "$T/t" "$@"; }

# ---- records ----
for record in idle down after; do
    make_tree --record "$here/records/$record"
    status --json >"$T/status.json"
    check "status agrees with the tools: $record" python3 "$here/compare.py" "$T/status.json" "$here/records/$record"
done
sed -i 's/"state": 4/"state": 1/; s/"Active"/"Down"/' "$T/status.json"
expect "a field that differs is seen" 1 'ibstat: State: ours .Down., theirs .Active.' -- python3 "$here/compare.py" "$T/status.json" "$here/records/after"

# ---- text ----
make_tree ib-ndr
expect "infiniband" 0 'RDMA devices: 8' 'mlx5_7 .*MT4129 .*firmware 28.39.3004 .*board MT_0000000838' 'port 1  ACTIVE  LinkUp  InfiniBand  400 Gb/sec \(4X NDR\)' \
    'LID 0x9d  LMC 0  SM LID 0x11c' '32 GT/s x16 \(of 32 GT/s x16\) = 63.0 GB/s  NUMA 1  CPUs 32-63' 'RDMA MTU 4096 of 4096 \(ibv_devinfo\)' \
    'GPUs: 8' 'GPU5 .*nearest NIC \(PIX\): mlx5_5$' '^eno1 .*192.0.2.17/24' 'IOMMU: [0-9]+ groups, identity' -- status
make_tree roce8 --break port-down --break errors --break pcie-narrow
expect "what is broken shows" 0 'port 1  DOWN  Polling .*means nothing while the port is not active' 'symbol_error 65535 \(at its greatest value: clear it\)$' \
    'link_downed 3, ' '32 GT/s x8 \(of 32 GT/s x16\)' 'GID 3    RoCE v2     10.1.3.11  ens4f0np0' -- status
make_tree container-bare
expect "a bare container" 0 'container' '/dev/infiniband: absent' 'locked memory 64.0 KiB  /dev/shm 64.0 MiB' -- status
make_tree vm --break no-rdma
expect "no RDMA" 0 'RDMA devices: 0  /sys/class/infiniband: absent' 'virtual machine' -- status
rm -rf "$T/t" && mkdir "$T/t"
expect "nothing is there" 0 'GPUs: .*unknown: absent' 'locked memory unknown: absent' -- status
status --json >"$T/out"
check "unknown is left out" python3 - "$T/out" <<'END'
import json, sys
s = json.load(open(sys.argv[1]))
for key in ("memlock_bytes", "shm_bytes", "numa_nodes", "iommu_groups", "kernel", "host"):
    assert key not in s, key
for key in ("memlock_unknown", "shm_unknown", "rdma_unknown", "gpus_unknown", "modules_unknown", "dev_infiniband_unknown"):
    assert s[key] == "absent", key
END
expect "this machine" 0 'RDMA devices: ' 'Limits and kernel' -- "$IMECE" fabric status
expect "no such root" 1 '/nowhere: cannot be opened as the root directory' -- "$IMECE" fabric status --root /nowhere

# ---- JSON of a broken one ----
make_tree dual --break no-gids
p=$(echo "$T"/t/sys/devices/pci0000:40/*/0000:41:00.1/infiniband/mlx5_1/ports/1)
echo "four" >"$p/state"
rm "$p/rate" && mkdir "$p/rate"
echo "N/A (no PMA)" >"$p/counters/symbol_error"
status --json >"$T/out"
check "garbage is unknown, with the reason" python3 - "$T/out" <<'END'
import json, sys
s = json.load(open(sys.argv[1]))
p = s["rdma"][1]["ports"][0]
assert "state" not in p and p["unknown"]["state"] == "is not a number", p
assert "rate_gbps" not in p and "directory" in p["unknown"]["rate"], p
assert "symbol_error" not in p["counters"] and p["counters"]["link_downed"] == 0, p
assert p["gids"] == [] and s["unreadable_files"] >= 1
END

# ---- rates ----
make_tree dual
p=$(echo "$T"/t/sys/devices/pci0000:40/*/0000:41:00.0/infiniband/mlx5_0/ports/1)
(
    n=0
    while [ ! -e "$T/enough" ]; do
        n=$((n + 1000000))
        echo $((123456789 + n)) >"$p/counters/new" && mv "$p/counters/new" "$p/counters/port_xmit_data"
        echo $((n / 1000000)) >"$p/counters/new" && mv "$p/counters/new" "$p/counters/port_rcv_errors"
        sleep 0.01
    done
) &
expect "rates" 0 '"errors_risen": [1-9][0-9]*' '"worst": "port_rcv_errors"' '"sent_bits_per_second": [1-9]' '"received_bits_per_second": 0,' -- \
    status --watch --json --count 15 --interval 0.1
expect "table of rates" 0 'port +state +link +sent' 'mlx5_0/1 +Active +200 G +[0-9.]+ [kMGT]b/s' 'mlx5_1/1 .* 0 b/s' '\+[0-9]+ port_rcv_errors' -- \
    status --watch --count 5 --interval 0.2
touch "$T/enough"
wait
expect "nothing to watch" 3 'no RDMA port to watch' -- "$IMECE" fabric status --root "$here" --watch
finish
