#!/usr/bin/env bash
# check-rdma: ranks on two hosts whose bytes go by RDMA, and the ports' counters show it. The hosts are virtual machines (QEMU; neither KVM nor RDMA
# hardware is needed) that boot the newest kernel of /boot, read this machine's files and write into memory and $T. A cable joins them, with a Soft-RoCE
# port at either end: real verbs, so UCX uses the same transport (rc_verbs) as on a card.
#
# Not a target of make yet: the hosts boot and ranks have talked through the ports, but its cases were not yet seen to pass from the first to the last.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

MEMORY=1536 MTU=4200 # MiB of a host; bytes: room for RoCE's largest packet of 4096
vm=()                # the process of each host

cannot() {
    echo "check-rdma: $*" >&2
    exit 1
}

find_kernel() {
    for program in qemu-system-x86_64 busybox cpio gzip modprobe ssh-keygen /usr/sbin/sshd; do
        command -v $program >/dev/null || cannot "no $program here: tools/deps.sh rdma installs it"
    done
    for kernel in $(ls /boot/vmlinuz-* 2>/dev/null | sort -rV); do
        version=${kernel#/boot/vmlinuz-}
        modprobe -S "$version" --show-depends rdma_rxe >/dev/null 2>&1 && return
    done
    cannot "no kernel in /boot with a module rdma_rxe: tools/deps.sh rdma installs one"
}

unpacked() { # MODULE: as the kernel reads it
    case $1 in
    *.xz) xz -dc "$1" ;;
    *.zst) zstd -dcq "$1" ;;
    *) cat "$1" ;;
    esac
}

# What a host starts with: busybox, the modules that it needs to see this machine's files, and what puts them together.
make_boot() {
    local root=$T/boot i=10
    mkdir -p "$root"/{bin,modules,proc,sys,dev,here,memory,host} && cp "$(command -v busybox)" "$root/bin/busybox" || return
    for module in virtio_pci 9pnet_virtio 9p overlay virtio_net; do modprobe -S "$version" --show-depends $module; done 2>/dev/null |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
        unpacked "$module" >"$root/modules/$((i++)).ko" || return
    done
    cat >"$root/init" <<I
#!/bin/busybox sh
PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod \$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro files /here
mount -t tmpfs memory /memory && mkdir /memory/new /memory/work
mount -t overlay -o lowerdir=/here,upperdir=/memory/new,workdir=/memory/work host /host
mkdir -p /host$T && mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=mmap shared /host$T
for at in proc sys dev; do mount -o move /\$at /host/\$at; done
exec switch_root /host /bin/bash $T/live
I
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$T/boot.gz"
}

# A host's first process: names, the port, sshd; then it does what it finds in $T/do-N.
make_life() {
    cat >"$T/live" <<L
export PATH=$T/bin:$PATH HOME=/root LC_ALL=C.UTF-8 NO_COLOR=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
read -r line </proc/cmdline
i=\${line##*imece.host=}
mount -t tmpfs run /run && mkdir -p /dev/shm /dev/pts /run/sshd && mount -t tmpfs shm /dev/shm && mount -t devpts pts /dev/pts
ln -sfn /proc/self/fd /dev/fd
hostname host\$i
printf '127.0.0.1 localhost\n10.78.0.1 host1\n10.78.0.2 host2\n' >/etc/hosts
card=\$(ls /sys/class/net | grep -v '^lo\$')
ip link set lo up
ip link set "\$card" mtu $MTU up
ip addr add 10.78.0.\$i/24 dev "\$card"
for module in ib_uverbs rdma_rxe; do modprobe \$module; done
rdma link add rxe0 type rxe netdev "\$card"
ulimit -l unlimited
/usr/sbin/sshd -e -E $T/sshd-\$i.log -f $T/ssh/sshd.conf
touch $T/do-\$i/up
while :; do
    for order in $T/do-\$i/*.order; do
        [ -e "\$order" ] || continue
        job=\${order%.order}
        mv "\$order" "\$job.now"
        timeout -k 5 $LIMIT bash "\$job.now" >"\$job.said" 2>&1 </dev/null
        echo \$? >"\$job.now" && mv "\$job.now" "\$job.code"
    done
    sleep 0.1
done
L
}

# on HOST COMMAND...: its output and its exit code. $T/bin/on-N does it, as a program.
on() { local at=$1; shift; "$T/bin/on-$at" "$@"; }
make_on() { # HOST PROCESS
    cat >"$T/bin/on-$1" <<O
#!/bin/bash
job=\$(mktemp $T/do-$1/XXXXXX)
{ printf 'cd %q\n' "\$PWD"; printf '%q ' "\$@"; echo; } >"\$job"
mv "\$job" "\$job.order"
until [ -e "\$job.code" ]; do
    kill -0 $2 2>/dev/null || { echo "host$1 is down"; exit 125; }
    sleep 0.1
done
cat "\$job.said"
exit "\$(cat "\$job.code")"
O
    chmod +x "$T/bin/on-$1"
}

boot() { # HOST
    local at=$T/host$1 other=$T/host$((3 - $1))
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max,la57=off -smp 1 -m $MEMORY -no-reboot -nodefaults -display none -serial "file:$at.console" \
        -kernel "/boot/vmlinuz-$version" -initrd "$T/boot.gz" -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check imece.host=$1" \
        -fsdev local,id=files,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=files,mount_tag=files \
        -fsdev "local,id=shared,path=$T,security_model=none" -device virtio-9p-pci,fsdev=shared,mount_tag=shared \
        -netdev "dgram,id=cable,local.type=unix,local.path=$at.cable,remote.type=unix,remote.path=$other.cable" \
        -device "virtio-net-pci,netdev=cable,host_mtu=$MTU,mac=52:54:00:78:00:0$1" -device virtio-rng-pci </dev/null >"$at.qemu" 2>&1 &
    vm[$1]=$!
    disown
    make_on "$1" $!
}

up() {
    find_kernel
    make_ssh || exit 1
    mkdir -p "$T/do-1" "$T/do-2"
    make_boot && make_life || cannot "what the hosts boot could not be made in $T"
    for i in 1 2; do boot $i; done
    since=$SECONDS
    while [ $((SECONDS - since)) -lt "$LIMIT" ]; do
        [ -e "$T/do-1/up" ] && [ -e "$T/do-2/up" ] && on 1 ssh host2 test -d /sys/class/infiniband/rxe0 && ok "two hosts with a verbs port each" && return
        kill -0 "${vm[@]}" 2>/dev/null || break
        sleep 0.1
    done
    echo "check-rdma: what the hosts said:" >&2
    tail -n 15 "$T"/host?.qemu "$T"/host?.console "$T"/sshd-?.log >&2
    cannot "the hosts did not come up; they may take $LIMIT s (LIMIT=N: more)"
}

down() {
    [ ${#vm[@]} -gt 0 ] || return 0
    kill "${vm[@]}" 2>/dev/null
    for _ in $(seq 50); do kill -0 "${vm[@]}" 2>/dev/null || break; sleep 0.1; done
    vm=()
}

packets() { on "$1" cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; } # HOST: what its port has sent

# The same UCX both times, told to use verbs alone or TCP alone. Before 1.18 UCX looks for a packet's address family where only mlx5 writes it, and
# drops all that sets connections up on other ports. Open MPI leaves UCX out by itself where there is no mlx5 card or nothing but TCP.
start() { # TRANSPORT: mpirun's words, a rank on each host
    local net=rxe0:1
    [ "$1" = tcp ] && net=all
    echo mpirun.openmpi --bind-to none --host host1:1,host2:1 --mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any \
        -x UCX_TLS="$1,self" -x UCX_NET_DEVICES=$net -x UCX_UD_VERBS_ETH_DGID_CHECK=n -n 2
}

# through TRANSPORT BYTES LAYOUT...: one rank's losses. By verbs (rc_v) both ports have sent so many bytes at least (a packet has at most 4,096), by TCP
# not one packet; and the run says at its start which it was.
through() {
    local name="$1, ${*:3}" bytes=$2 way=$1 dir before=() sent=() i
    shift 2
    dir=$T/${name//[^a-z0-9]/-}
    for i in 1 2; do before[i]=$(packets $i); done
    trains "$name: the losses of one rank" "$dir" -- "$T/bin/on-1" $(start "$way") "$BUILD/imece" train "${tiny[@]}" "$@" --out "$dir"
    cp "$T/log" "$T/said"
    for i in 1 2; do sent[i]=$(($(packets $i) - before[i])); done
    if [ "$way" = tcp ]; then
        check "$name: the ports sent nothing (${sent[*]} packets)" test "${sent[*]}" = "0 0"
        check "$name: it says so" grep 'do not go through the verbs port rxe0/1' "$T/said"
    else
        check "$name: the ports sent ${sent[*]} packets, for $bytes bytes each" test $((sent[1] * 4096)) -ge "$bytes" -a $((sent[2] * 4096)) -ge "$bytes"
        check "$name: it says so" grep 'between machines through verbs ports (here rxe0/1)' "$T/said"
    fi
}

[ -e "$BUILD/imece_openmpi.so" ] || cannot "$BUILD has no imece_openmpi.so: it was built without Open MPI"
up
# What a rank sends in 4 steps of 2 micro-batches of 2 x 16 tokens: tp the 128 numbers of each token four times in each of 4 blocks; ZeRO 3 half of the
# 804,224 weights twice and of the gradients once, for each micro-batch; pp the 128 numbers of each token.
through rc_v $((4 * 2 * 4 * 4 * 2 * 16 * 128 * 4 / 2)) --tp 2
through rc_v $((4 * 2 * 3 * 804224 / 2 * 4)) --dp 2 --zero 3
through rc_v $((4 * 2 * 2 * 16 * 128 * 4)) --pp 2
through tcp 0 --tp 2
down
finish
