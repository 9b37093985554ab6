# imece fabric env: lint of files, scripts, processes and environments; suggest; explain.
. "$(dirname "$0")/lib.sh"
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
cd "$T" || exit 1
for v in $(env | sed -n 's/^\(\(NCCL\|UCX\|OMPI_MCA\|FI\|TORCH_NCCL\)_[A-Z0-9_a-z]*\)=.*/\1/p'); do unset "$v"; done
mkdir empty
lint() { "$IMECE" fabric env lint "$@"; }

check "the table of NCCL's history is what its script makes" python3 "$IMECE_SOURCE/tools/nccl-history/make-table.py" --check "$IMECE_SOURCE/src/fabric/env_nccl_history.c"

# ---- files, and who wins
mkdir -p bundle/etc bundle/root
printf 'NCCL_DEBUG=INFO\nexport NCCL_IB_TC=106\nNCCL_ALGO=Tree\n' >bundle/etc/nccl.conf
printf 'NCCL_ALGO=Ring\n' >bundle/root/.nccl.conf
expect "a bundle's own files" 3 'bundle/etc/nccl.conf:2' 'conf-name' '-> NCCL_IB_TC=106' 'bundle/etc/nccl.conf:3  NCCL_ALGO=Tree' 'not used: bundle/root/.nccl.conf:1 sets it to Ring' -- \
    lint --root bundle
expect "a file that is named is not read twice" 3 '2 variables set' -- lint --root bundle bundle/etc/nccl.conf
NCCL_ALGO=PAT expect "the environment with --" 3 'the environment  NCCL_ALGO=PAT' -- lint --root bundle --
NCCL_ALGO=PAT expect_not "no environment of this machine for a bundle" 3 'NCCL_ALGO=PAT' -- lint --root bundle
cat >job.sh <<'END'
#!/bin/bash
#SBATCH --nodes=2
export NCCL_IB_TIMEOUT=0x16 NCCL_BUFFSIZE=4M
export NCCL_IB_DISBALE=1
mpirun -x NCCL_DEBUG=WARN ./a
END
expect "a script" 3 'job.sh:3  NCCL_IB_TIMEOUT=0x16  \(read as 22\)' 'reads 4 and ignores "M"' 'did you mean' 'NCCL_IB_DISABLE' 'job.sh:5  NCCL_DEBUG=WARN' -- lint --root empty job.sh
expect_not "level leaves out what is less" 3 'note:' -- lint --root empty --level fail job.sh
expect "versions" 3 'NCCL 2.18' 'came in 2.21' -- sh -c "echo 'export NCCL_IB_ADDR_FAMILY=AF_INET6' | '$IMECE' fabric env lint --root empty --nccl 2.18.3 -"
expect "nothing wrong" 0 'NCCL_NET=IB' '0 fail, 0 warn' -- sh -c "echo 'export NCCL_NET=IB' | '$IMECE' fabric env lint --only -"
expect "a guard where there is no RDMA" 3 'initialisation fails' -- sh -c "echo 'export NCCL_NET=IB' | '$IMECE' fabric env lint --root empty -"
expect "a version beyond the tables" 3 'NCCL 2.44' 'the tables know 2.7 to 2.30' -- lint --root bundle --nccl 2.44
expect "nothing set" 0 'No variable' -- lint --root empty
NCCL_P2P_DISABLE=2 expect "this environment" 3 'only 1 switches it off' -- lint --only
NCCL_IB_RETRY_CNT=12 sleep 60 &
pid=$!
expect "a process" 3 "/proc/$pid/environ  NCCL_IB_RETRY_CNT=12" 'three bits' -- lint --only $pid
kill $pid
wait $pid 2>/dev/null
expect "json" 3 -- lint --root empty --json job.sh
check "json is JSON, with place, value as read and verdict" python3 - "$T/out" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
v = {x["name"]: x for x in d["variables"]}
assert v["NCCL_BUFFSIZE"]["reads"] == "4" and v["NCCL_BUFFSIZE"]["verdict"] == "fail" and v["NCCL_BUFFSIZE"]["line"] == 3, v
assert v["NCCL_IB_DISBALE"]["findings"][0]["id"] == "name-misspelt", v
assert not d["nccl_known"]
END

# ---- refused
expect "no such file" 1 'nowhere.sh: cannot open' -- lint --root empty nowhere.sh
expect "no such process" 1 'no process 999999999' './999999999' -- lint 999999999
expect "no such root" 1 'nowhere' -- lint --root nowhere
expect "no such version" 2 '--nccl 9: no version of NCCL 2' -- lint --nccl 9
expect "cluster and root" 2 'not with --root' -- "$IMECE" fabric env suggest --cluster h100 --root empty
expect "link without cluster" 2 '--link goes with --cluster' -- "$IMECE" fabric env suggest --link roce

# ---- suggest, explain
expect "no RDMA: nothing to set" 0 'nothing: the defaults are right' 'NCCL goes over TCP' -- "$IMECE" fabric env suggest --root empty
expect "a cluster on InfiniBand" 0 'NCCL_NET=IB' 'OMPI_MCA_pml=ucx' 'NCCL_CROSS_NIC=0' 'qos_sl2vl' -- "$IMECE" fabric env suggest --cluster "$IMECE_SOURCE/clusters/h100.yaml" --link ib
expect "the same as nccl.conf" 0 '^NCCL_NET=IB$' '^NCCL_IB_TIMEOUT=20$' -- "$IMECE" fabric env suggest --cluster "$IMECE_SOURCE/clusters/h100.yaml" --link roce --nccl 2.12 --form conf
cp "$T/out" suggested.conf
expect "what is suggested passes lint" 0 '0 fail, 0 warn' -- lint --only --nccl 2.12 suggested.conf
expect "explain" 0 '-1 from 2.21 on, 0 before 2.21' 'without effect on InfiniBand' -- "$IMECE" fabric env explain NCCL_IB_GID_INDEX
expect "explain a name that is near" 1 'did you mean NCCL_IB_HCA' -- "$IMECE" fabric env explain NCCL_IB_HCAS
expect "explain nothing" 2 'which variable' -- "$IMECE" fabric env explain

# ---- machines made by tests/fabric/make_tree.py: the values that guides repeat
make_tree() { rm -rf t && python3 "$IMECE_SOURCE/tests/fabric/make_tree.py" t "$@"; }
cat >guide.conf <<'END'
NCCL_DEBUG=WARN
NCCL_SOCKET_IFNAME=eth0
NCCL_IB_HCA=mlx5
NCCL_IB_GID_INDEX=3
NCCL_IB_TIMEOUT=22
NCCL_IB_QPS_PER_CONNECTION=4
NCCL_IB_TC=41
NCCL_NET_GDR_LEVEL=2
NCCL_IB_SL=0
NCCL_IB_SPLIT_DATA_ON_QPS=0
END
# verdicts FILE NAME VERDICT ID...: of the JSON in FILE
cat >verdicts.py <<'END'
import json, sys
v = {x["name"]: x for x in json.load(open(sys.argv[1]))["variables"]}
for want in sys.argv[2:]:
    name, verdict, *ids = want.split(":")
    x = v["NCCL_" + name]
    have = [f["id"] for f in x["findings"]]
    if x["verdict"] != verdict or not set(ids) <= set(have):
        sys.exit("%s is %s %s, not %s %s" % (name, x["verdict"], have, verdict, ids))
END
guide() { # name, options, verdicts
    local name=$1 options=$2
    shift 2
    # shellcheck disable=SC2086
    run lint --root t --json $options guide.conf
    check "$name" python3 verdicts.py "$T/out" "$@"
}
make_tree ib-ndr
guide "InfiniBand" "" SOCKET_IFNAME:fail:interface-absent IB_HCA:note:hca-all IB_GID_INDEX:note:no-effect-on-infiniband IB_TIMEOUT:note:timeout IB_QPS_PER_CONNECTION:warn:qps-infiniband \
    IB_TC:note:no-effect-on-infiniband NET_GDR_LEVEL:note:gdr-default:level-number DEBUG:note:debug-quiet IB_SL:note IB_SPLIT_DATA_ON_QPS:note:default
make_tree roce8
guide "RoCE" "" IB_GID_INDEX:warn:gid-pinned IB_QPS_PER_CONNECTION:note:qps IB_TC:warn:tc-ecn:tc-fabric-unknown NET_GDR_LEVEL:note:gdr-default IB_HCA:note:hca-all
guide "RoCE, NCCL 2.20" "--nccl 2.20.5" IB_GID_INDEX:ok:gid-right IB_TIMEOUT:note:timeout IB_SPLIT_DATA_ON_QPS:note:default
mkdir -p t/commands
printf 'Priority trust state: dscp\nPFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   1   0   0   0   0\n' >t/commands/mlnx_qos-ens1f0np0.txt
guide "RoCE whose PFC is known" "" IB_TC:fail:tc-unprotected
expect "a class is suggested when PFC is known" 0 'NCCL_IB_TC=106' 'PFC is on priority 3' 'cma_roce_tos -d mlx5_0 -t 106' -- "$IMECE" fabric env suggest --root t
make_tree roce8 --break no-v2
guide "RoCE without v2" "--nccl 2.20.5" IB_GID_INDEX:fail:gid-wrong
make_tree roce8 --break gid-shift
guide "RoCE, the v2 GID elsewhere" "--nccl 2.20.5" IB_GID_INDEX:fail:gid-wrong
expect "its index is suggested for NCCL before 2.21" 0 '^export NCCL_IB_GID_INDEX=7' -- "$IMECE" fabric env suggest --root t --nccl 2.20.5 --form shell
expect_not "and none after" 0 'NCCL_IB_GID_INDEX' -- "$IMECE" fabric env suggest --root t --nccl 2.21 --form shell
make_tree ib-hdr
guide "GPUs at the CPU" "" NET_GDR_LEVEL:warn:gdr-too-near
make_tree dual
guide "both links" "" IB_HCA:fail:hca-mixed-links
expect "both links: one is suggested" 0 "^export NCCL_IB_HCA='=mlx5_0'" '^export UCX_NET_DEVICES=mlx5_0:1' -- "$IMECE" fabric env suggest --root t --form shell
make_tree container-bare
expect "RDMA that cannot be opened" 3 'no-verbs-device' 'seen in t/dev/infiniband' -- lint --root t guide.conf
make_tree ib-ndr --break no-rdma
guide "no RDMA there" "" IB_HCA:warn:hca-none-here
make_tree --record "$IMECE_SOURCE/tests/fabric/records/idle"
guide "Soft-RoCE as recorded" "--nccl 2.20.5" IB_GID_INDEX:fail:gid-wrong IB_HCA:fail:hca-nothing-left
mkdir -p t/usr/lib/x86_64-linux-gnu t/usr/local/lib/python3.11/site-packages/nvidia_nccl_cu12-2.26.2.dist-info
expect "NCCL of a Python package" 3 'NCCL 2.26 \(/usr/local/lib/python3.11/site-packages/nvidia_nccl_cu12-2.26.2.dist-info\)' -- lint --root t guide.conf
touch t/usr/lib/x86_64-linux-gnu/libnccl.so.2.20.5
expect "the system's NCCL" 3 'NCCL 2.20 \(/usr/lib/x86_64-linux-gnu/libnccl.so.2.20.5\)' -- lint --root t guide.conf
finish
