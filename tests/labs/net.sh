#!/usr/bin/env bash
# check-net: ranks on two hosts, over TCP. A host has a core, namespaces (network, name, processes, shared memory) and an sshd of its own; the two are
# joined by a cable (a veth pair): plain, shaped to 1 Gb/s, and one that loses 1 % of what arrives.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

spaces=imece$$ outer=() # a process a host, outside it
address() { echo "10.78.0.$1"; }
on() { local at=$1; shift; "$T/bin/on-$at" "$@"; } # HOST COMMAND...

up() {
    make_ssh || exit 1
    printf '127.0.0.1 localhost\n10.78.0.1 host1\n10.78.0.2 host2\n' >"$T/hosts"
    for i in 1 2; do ip netns add "$spaces-$i" || exit 1; done
    ip link add cable netns "$spaces-1" type veth peer name cable netns "$spaces-2" || exit 1
    for i in 1 2; do
        ip -n "$spaces-$i" link set lo up
        ip -n "$spaces-$i" addr add "$(address $i)/24" dev cable
        ip -n "$spaces-$i" link set cable up
        core=$(((i - 1) % $(nproc)))
        ip netns exec "$spaces-$i" taskset -c $core unshare --mount --uts --ipc --pid --fork --mount-proc --kill-child sh -c \
            "mount -t tmpfs shm /dev/shm && hostname host$i && mount --bind '$T/hosts' /etc/hosts && exec /usr/sbin/sshd -D -e -f '$T/ssh/sshd.conf'" \
            >"$T/sshd-$i.log" 2>&1 &
        outer[i]=$!
        disown
    done
    for i in 1 2; do # the first process there: what is entered
        for _ in $(seq 100); do inner=$(pgrep -P "${outer[$i]}" | head -1) && [ -n "$inner" ] && break; sleep 0.1; done
        printf '#!/bin/sh\nexec taskset -c %d nsenter --target %d --net --mount --uts --ipc --pid -- env PATH="%s" "$@"\n' $(((i - 1) % $(nproc))) "$inner" "$T/bin:$PATH" >"$T/bin/on-$i"
        chmod +x "$T/bin/on-$i"
    done
    for _ in $(seq 100); do on 1 ssh host2 true 2>/dev/null && on 2 ssh host1 true 2>/dev/null && return; sleep 0.1; done
    echo "check-net: the hosts do not reach each other" >&2
    on 1 ssh host2 true
    tail "$T"/sshd-*.log >&2
    exit 1
}

down() {
    for i in "${!outer[@]}"; do
        ip netns pids "$spaces-$i" 2>/dev/null | xargs -r kill -9 2>/dev/null # what this run started there, and nothing else
        ip netns del "$spaces-$i" 2>/dev/null
    done
    outer=()
}

plain() { :; }
shaped() { for i in 1 2; do tc -n "$spaces-$i" qdisc add dev cable root tbf rate 1gbit burst 256kb latency 50ms || exit 1; done; }
unshaped() { for i in 1 2; do tc -n "$spaces-$i" qdisc del dev cable root; done; }
lossy() {
    for i in 1 2; do
        ip netns exec "$spaces-$i" nft -f - <<N || exit 1
table inet loss {
    chain in {
        type filter hook input priority 0;
        iif != lo meta l4proto tcp numgen random mod 100 < 1 drop
    }
}
N
    done
}

sent() { on 1 cat /sys/class/net/cable/statistics/tx_bytes; }
imece=$BUILD/imece

# MPICH before 4.2 hangs at the end of jobs over TCP, in MPI_Finalize: a rank that has closed its connections answers no other that closes its own
mpis=openmpi
if [ -e "$BUILD/imece_mpich.so" ]; then
    version=$(mpichversion | sed -n 's/^MPICH Version:[[:space:]]*//p')
    case $version in
    3.* | 4.[01].* | 4.[01]) echo "left out: MPICH $version, which hangs in MPI_Finalize between hosts" ;;
    *) mpis="openmpi mpich" ;;
    esac
fi

# try KIND LAYOUT...: what goes over the link is counted by the link
try() {
    local kind=$1 before after
    shift
    for mpi in $mpis; do
        [ -e "$BUILD/imece_$mpi.so" ] || continue
        start=("$T/bin/on-1" "mpirun.$mpi")
        [ $mpi = openmpi ] && start+=(--bind-to none --map-by node --host host1:4,host2:4) || start+=(-hosts host1:1,host2:1)
        passes "$mpi, $kind, communicator, 2 ranks" 2 -- "${start[@]}" -n 2 "$BUILD/test_comm_mpi" --rank "$BUILD/imece_$mpi.so" "near ops" "$T"
        for ranks in 2 4; do
            passes "$mpi, $kind, layouts of $ranks ranks" $ranks -- "${start[@]}" -n $ranks "$BUILD/test_layout_mpi" --rank "$BUILD/imece_$mpi.so"
        done
        before=$(sent)
        trains "$mpi, $kind, imece train" "$T/$mpi-$kind" -- "${start[@]}" -n 2 "$imece" train "${tiny[@]}" --dp 2 --out "$T/$mpi-$kind"
        after=$(sent)
        # 804,224 gradients of 4 bytes a step, half of them reduced and half of them gathered
        check "$mpi, $kind, the gradients went over the link ($((after - before)) bytes)" test $((after - before)) -gt $((4 * 804224 * 4))
        trains "$mpi, $kind, imece train --pp 2" "$T/$mpi-$kind-pp" -- "${start[@]}" -n 2 "$imece" train "${tiny[@]}" --pp 2 --out "$T/$mpi-$kind-pp"
    done
}

up
try plain
printf 'host1 slots=1\nhost2 slots=1 # the other end of the cable\n' >"$T/machines"
trains "imece train --hosts, over ssh" "$T/by-hosts" -- "$T/bin/on-1" "$imece" train "${tiny[@]}" --dp 2 --hosts "$T/machines" --out "$T/by-hosts"
printf 'host1\nhost3\n' >"$T/machines"
check "imece train --hosts, a host that is not there" sh -c \
    "! '$T/bin/on-1' timeout 60 $imece train ${tiny[*]} --dp 2 --hosts '$T/machines' --out '$T/none' >'$T/none.log' 2>&1 &&
    grep -q 'host3 cannot be reached' '$T/none.log'"
shaped
try 1gbit
unshaped
lossy
try loss
down
finish
