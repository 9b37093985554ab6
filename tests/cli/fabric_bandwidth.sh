#!/usr/bin/env bash
# imece fabric check --bandwidth: programs that print perftest's tables take its place; three hosts of two rails, one cable is bad.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$IMECE_SOURCE/tests/fabric
export PYTHONDONTWRITEBYTECODE=1
unset $(compgen -e | grep -E '^(NCCL|UCX|OMPI|FI)_') 2>/dev/null

mkdir "$T/bin"
cat >"$T/bin/ib_write_bw" <<END
#!/bin/bash
# a server waits for its client; a client prints what the link of the two gives: node3's mlx5_1 loses half, and damages packets
tool=\$(basename "\$0") dev= peer= port=
while [ \$# -gt 0 ]; do
    case \$1 in
        -d) dev=\$2; shift ;;
        -p) port=\$2; shift ;;
        -i | -x | -s | -n | -D) shift ;;
        -*) ;;
        *) peer=\$1 ;;
    esac
    shift
done
if [ -z "\$peer" ]; then
    : >"$T/listen-\$port"
    while [ -e "$T/listen-\$port" ]; do sleep 0.02; done
    exit 0
fi
[ -e "$T/listen-\$port" ] || { echo "Couldn't connect to \$peer:\$port" >&2; exit 1; }
rm "$T/listen-\$port"
speed=198.31
case \$dev\$FAKE_HOST\$peer in mlx5_1*node3*) speed=97.20
    c=$T/node3/sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_errors
    echo \$((\$(cat \$c) + 1)) >\$c ;;
esac
echo " Mtu             : 4096[B]"
if [ \$tool = ib_write_bw ]; then
    printf ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 1048576    5000             0.00               %s             0.023\n' \$speed
else
    printf ' #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%% percentile[usec]   99.9%% percentile[usec]\n'
    printf ' 2       1000          1.80         3.10      1.92          1.95         0.05      2.20         3.05\n'
fi
END
chmod +x "$T/bin/ib_write_bw"
ln -s ib_write_bw "$T/bin/ib_read_lat"
cat >"$T/rsh" <<END
#!/bin/sh
export FAKE_HOST=\$1; shift
case \$1 in
    imece) shift 4; exec "$IMECE" fabric bundle - --root "$T/\$FAKE_HOST" "\$@" ;;
    *) exec "\$@" ;;
esac
END
chmod +x "$T/rsh"
for i in 1 2 3; do
    python3 "$here/make_tree.py" "$T/node$i" ib-hdr
    echo "node$i" >"$T/node$i/proc/sys/kernel/hostname"
done
printf 'node1\nnode2\nnode3\n' >"$T/hosts"
head -2 "$T/hosts" >"$T/two"
export PATH=$T/bin:$PATH
expect "the slow cable is named" 3 'node3: mlx5_1 of node3 is slow with 4 of 4 matches: its cable' 'node1 -> node3: 97.2 Gb/s of 198.7 that this link must give .49 %' \
    'type: mlxlink -d mlx5_1 -m -c    # on node3' 'port_rcv_errors rose by [0-9]+ under load' 'node3 mlx5_1/1' -- \
    "$IMECE" fabric check --bandwidth --hosts "$T/hosts" --via "$T/rsh {host}" --interval 0
check "and nothing else is slow" sh -c "! grep -q 'node1 -> node2' $T/out && ! grep -q 'mlx5_0 of' $T/out"
"$IMECE" fabric check --bandwidth --hosts "$T/two" --via "$T/rsh {host}" --interval 0 --json >"$T/json"
check "two fast hosts: ok, with the median" python3 - "$T/json" <<'END'
import json, sys
part = json.load(open(sys.argv[1]))["parts"][-1]
assert part["name"] == "bandwidth" and [c["verdict"] for c in part["checks"]] == ["ok"] * 3, part
assert "2 rails, 4 matches" in part["checks"][0]["note"] and "1.92 us over 2 pairs" in part["checks"][1]["note"], part
END
printf '#!/bin/sh\necho " Unable to find the Infiniband/RoCE device" >&2; exit 1\n' >"$T/bin/ib_write_bw"
expect "perftest that fails" 3 'nothing was measured: Unable to find the Infiniband/RoCE device' -- \
    "$IMECE" fabric check --bandwidth --hosts "$T/two" --via "$T/rsh {host}" --interval 0
expect "bandwidth with whom" 2 'needs --peer HOST or --hosts FILE' -- "$IMECE" fabric check --bandwidth
finish
