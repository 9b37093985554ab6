#!/usr/bin/env bash
# check-slurm: ranks started by srun, through PMIx for Open MPI and PMI-2 for MPICH; on a cluster of one node and on one of two, which are this
# machine: a slurmctld, a slurmd a node and a munged of their own, with everything that they keep in one directory.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

daemons=() nodes=0
port=$((20000 + $$ % 2000 * 10))

configure() {
    cat <<C
ClusterName=imece
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmctldPidFile=$S/slurmctld.pid
SlurmctldLogFile=$S/slurmctld.log
StateSaveLocation=$S/state
SlurmUser=root
SlurmdUser=root
SlurmdSpoolDir=$S/spool-%n
SlurmdPidFile=$S/slurmd-%n.pid
SlurmdLogFile=$S/slurmd-%n.log
SlurmdParameters=config_overrides
SrunPortRange=$((port + 20000))-$((port + 20200))
AuthType=auth/munge
AuthInfo=socket=$S/munge.socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=pmix
TmpFS=$S/tmp
ReturnToService=2
NodeName=n[0-$((nodes - 1))] NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=$1 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES
C
}

# up NODES CPUS: of each node
up() {
    nodes=$1
    S=$T/cluster-$nodes
    port=$((port + 5))
    mkdir -p "$S/state" "$S/tmp"
    configure "$2" >"$S/slurm.conf"
    export SLURM_CONF=$S/slurm.conf
    (umask 077 && head -c 256 /dev/urandom >"$S/munge.key")
    munged --force --foreground --key-file="$S/munge.key" --socket="$S/munge.socket" --pid-file="$S/munged.pid" --log-file="$S/munged.log" \
        --seed-file="$S/munged.seed" >"$S/munged.out" 2>&1 &
    daemons+=($!)
    for _ in $(seq 100); do [ -S "$S/munge.socket" ] && break; sleep 0.1; done
    slurmctld -D -c -f "$SLURM_CONF" >"$S/slurmctld.out" 2>&1 &
    daemons+=($!)
    for ((i = 0; i < nodes; i++)); do # files of PMIx and memory that ranks share have names that are one node's
        mkdir -p "$S/spool-n$i" "$S/tmp-n$i"
        unshare --mount sh -c "mount --make-rprivate / && mount --bind '$S/tmp-n$i' '$S/tmp' && mount -t tmpfs shm /dev/shm &&
            exec slurmd -D -c -f '$SLURM_CONF' -N n$i" \
            >"$S/slurmd-n$i.out" 2>&1 &
        daemons+=($!)
    done
    for _ in $(seq 600); do [ "$(sinfo -h -t idle -o %D 2>/dev/null | head -1)" = "$nodes" ] && return; sleep 0.1; done
    echo "check-slurm: $nodes nodes did not come up" >&2
    tail -n 8 "$S"/*.log "$S"/*.out >&2
    exit 1
}

down() {
    [ ${#daemons[@]} -gt 0 ] || return 0
    timeout 20 scancel --full --user root >/dev/null 2>&1
    kill "${daemons[@]}" 2>/dev/null
    for _ in $(seq 50); do kill -0 "${daemons[@]}" 2>/dev/null || break; sleep 0.1; done
    kill -9 "${daemons[@]}" 2>/dev/null
    wait "${daemons[@]}" 2>/dev/null
    daemons=()
}

# on NODES RANKS: srun's words; more ranks than cores are allowed here
on() { echo srun --nodes "$1" --ntasks "$2" --overcommit --kill-on-bad-exit=1 --label; }
imece=$BUILD/imece

try() { # NODES
    for mpi in openmpi mpich; do
        [ -e "$BUILD/imece_$mpi.so" ] || continue
        how=pmix
        [ $mpi = mpich ] && how=pmi2
        passes "$mpi, $1 node, communicator, 2 ranks" 2 -- $(on "$1" 2) --mpi=$how "$BUILD/test_comm_mpi" --rank "$BUILD/imece_$mpi.so" "near ops" "$T"
        for ranks in 2 4; do
            passes "$mpi, $1 node, layouts of $ranks ranks" $ranks -- $(on "$1" $ranks) --mpi=$how "$BUILD/test_layout_mpi" --rank "$BUILD/imece_$mpi.so"
        done
        trains "$mpi, $1 node, imece train" "$T/$mpi-$1" -- $(on "$1" 4) --mpi=$how "$imece" train "${tiny[@]}" --tp 2 --dp 2 --zero 3 --out "$T/$mpi-$1"
        trains "$mpi, $1 node, imece train --pp 2" "$T/$mpi-$1-pp" -- $(on "$1" 2) --mpi=$how "$imece" train "${tiny[@]}" --pp 2 --out "$T/$mpi-$1-pp"
    done
}

up 1 "$(nproc)"
try 1
# scancel asks: the step is finished and saved, and the job says how to go on
srun --ntasks 2 --overcommit --mpi=pmix "$imece" train "${tiny[@]}" --steps 1000000 --dp 2 --out "$T/stopped" >"$T/log" 2>&1 &
job=$!
for _ in $(seq 600); do [ -s "$T/stopped/metrics.jsonl" ] && break; sleep 0.1; done
scancel --signal=TERM "$(squeue -h -o %A | head -1)"
wait $job
code=$?
cp "$T/log" "$T/stopped.log"
check "scancel --signal=TERM: exit code 4" test $code = 4
check "scancel --signal=TERM: saved" grep -q 'go on with: imece train --resume' "$T/stopped.log"
check "whole" "$imece" checkpoint verify "$T/stopped"
check "srun without MPI's start-up is told once" sh -c "! srun --ntasks 2 --overcommit --mpi=none $imece train --model x >'$T/none.log' 2>&1 &&
    [ \$(grep -c 'srun --mpi=pmix' '$T/none.log') = 1 ]"
down

up 2 1
try 2
down
finish
