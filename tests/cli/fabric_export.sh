#!/usr/bin/env bash
# imece fabric export: what it says of made machines, files written whole, NCCL's files; promtool's word on it.
[ -w /dev/shm ] && export TMPDIR=/dev/shm # thousands of small files
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$IMECE_SOURCE/tests/fabric
make_tree() { python3 "$here/make_tree.py" "$T/t" "$@"; }
export_tree() { "$IMECE" fabric export --root "$T/t" --sample 0 "$@"; }
# promtool's lint of $T/out, as NAME
lint() {
    if command -v promtool >/dev/null; then
        check "promtool: $1" promtool check metrics <"$T/out"
    else
        skip "promtool: $1" "no promtool here"
    fi
}

# ---- what it says ----
make_tree roce8 --break port-down --break errors --break pcie-narrow
expect "a broken machine" 0 '^node_infiniband_state_id\{device="mlx5_0",port="1"\} 4$' '^node_infiniband_state_id\{device="mlx5_7",port="1"\} 1$' \
    '^node_infiniband_rate_bytes_per_second\{device="mlx5_0",port="1"\} 50000000000$' '^node_infiniband_info\{.*firmware_version="28.39.3004"' \
    '^imece_fabric_pegged\{.*counter="symbol_error"\} 1$' '^imece_fabric_pcie_width_lanes\{.*kind="nic"\} 8$' \
    '^imece_fabric_errors_total\{.*counter="link_downed",class="link"\} 3$' '^imece_fabric_gids\{device="mlx5_0",port="1",type="roce_v2"\} 2$' \
    '^imece_fabric_gid_info\{.*address="10.1.0.11",type="RoCE v2",netdev="ens1f0np0"\} 1$' -- export_tree --once
check "verdicts" grep -q '^imece_fabric_check_verdict{check="port-down",verdict="fail"} 1$' "$T/out"
check "a port that is down has no rate" test -z "$(grep 'node_infiniband_rate_bytes_per_second{device="mlx5_7"' "$T/out")"
lint "a broken machine"
export_tree --once --beside-node-exporter >"$T/out"
check "beside node_exporter: none of its names" test -z "$(grep node_infiniband "$T/out")" -a -s "$T/out"
lint "beside node_exporter"
make_tree vm --break no-rdma
expect_not "no RDMA: nothing about ports" 0 'node_infiniband|imece_fabric_rdma_devices' -- export_tree --once
make_tree --record "$here/records/idle"
expect "a real device" 0 '^node_infiniband_state_id\{device="rxe0",port="1"\} 4$' '^imece_fabric_events_total\{.*counter="sent_pkts",group="hw_counters"\} [0-9]+$' -- export_tree --once
lint "a real device"

make_tree ib-ndr
expect "a healthy one's verdicts" 0 '^imece_fabric_check_verdict\{check="port-down",verdict="ok"\} 1$' '^imece_fabric_check_verdict\{check="port-down",verdict="fail"\} 0$' \
    '^imece_fabric_check_verdict\{check="expect",verdict="ok"\} 1$' -- export_tree --once --expect 400
expect_not "a check that nobody asked for has no verdict" 0 'check="expect"' -- export_tree --once
expect "a rate that is not what was expected" 0 '^imece_fabric_check_verdict\{check="expect",verdict="fail"\} 1$' '^imece_fabric_check_findings\{check="expect",verdict="fail"\} [1-9]' -- \
    export_tree --once --expect 800
make_tree --record "$here/records/idle"

# ---- where it goes ----
expect "into a file" 0 -- export_tree --textfile "$T/fabric.prom"
check "and not on the terminal" test ! -s "$T/out"
export_tree --once >"$T/once"
check "whole" cmp "$T/once" "$T/fabric.prom"
rm -f "$T/fabric.prom"
"$IMECE" fabric export --root "$T/t" --sample 0 --textfile "$T/fabric.prom" --interval 0.1 &
writer=$!
for _ in $(seq 300); do [ -e "$T/fabric.prom" ] && break; sleep 0.1; done
first=$(stat -c %i.%y "$T/fabric.prom")
for _ in $(seq 300); do [ "$(stat -c %i.%y "$T/fabric.prom")" != "$first" ] && break; sleep 0.1; done
check "again and again" test "$(stat -c %i.%y "$T/fabric.prom")" != "$first"
kill -TERM $writer
wait $writer
check "a signal ends it in order" test $? = 0
check "nothing half-written stays" test ! -e "$T/fabric.prom.tmp"
expect "a directory that is not there" 1 '/nowhere/f.prom' -- export_tree --textfile /nowhere/f.prom
expect "a name that node_exporter does not read" 2 'end in .prom' -- export_tree --textfile "$T/fabric.txt"
expect "nowhere to put it" 2 'one of --once' -- export_tree
expect "no such root" 1 '/nowhere: cannot be opened' -- "$IMECE" fabric export --once --root /nowhere

# ---- over HTTP ----
listen() { # ARGUMENTS: sets $server and $url, or $url is empty
    "$IMECE" fabric export --root "$T/t" --listen 127.0.0.1:0 "$@" >"$T/listening" 2>"$T/listen-err" &
    server=$!
    url=
    for _ in $(seq 300); do
        url=$(sed -n 's/^listening on //p' "$T/listening")
        [ -n "$url" ] && return
        kill -0 $server 2>/dev/null || return
        sleep 0.1
    done
}
# METHOD PATH: what the server answers, in $T/out: code and type on the first line, then the body
ask() {
    python3 - "$url" "$@" >"$T/out" <<'PY'
import http.client, sys, urllib.parse
at = urllib.parse.urlsplit(sys.argv[1])
c = http.client.HTTPConnection(at.netloc, timeout=60)
c.request(sys.argv[2], sys.argv[3])
r = c.getresponse()
print(r.status, r.getheader("Content-Type"), r.getheader("Location"))
sys.stdout.write(r.read().decode())
PY
}
listen
if grep -q 'made without libmicrohttpd\|is not here' "$T/listen-err"; then
    skip "http" "no libmicrohttpd"
    http=
else
    http=yes
    ask GET /metrics
    check "a scrape" grep -q '^200 text/plain; version=0.0.4' "$T/out"
    sed -i 1d "$T/out"
    check "the same metrics as printed" diff <(grep -v -e saturation "$T/out") <(grep -v -e saturation "$T/once")
    ask HEAD /metrics
    check "HEAD" test "$(wc -l <"$T/out")" = 1 -a "$(cut -c 1-3 "$T/out")" = 200
    ask GET /
    check "/ leads there" grep -q '^302 .* /metrics$' "$T/out"
    ask GET /../etc/passwd
    check "nothing else" grep -q '^404 ' "$T/out"
    ask POST /metrics
    check "no other method" grep -q '^405 ' "$T/out"
    expect "an address in use" 1 'cannot listen.*in use' -- export_tree --listen "$(expr "$url" : 'http://\(.*\)/metrics')"
    mv "$T/t" "$T/away"
    ask GET /metrics
    check "a tree that went away is an answer too" grep -q '^500 ' "$T/out"
    mv "$T/away" "$T/t"
    ask GET /metrics
    check "and back" grep -q '^200 ' "$T/out"
    kill -TERM $server
    wait $server
    check "a signal ends the server in order" test $? = 0
fi
expect "no address" 2 '0.0.0.0:9410 for every interface' -- export_tree --listen :9410

# ---- NCCL ----
mkdir "$T/nccl"
labels='version="v2.28.9",slurm_job_id="17",node="node07",gpu="0",comm_name="dp",n_nodes="2",nranks="16"'
cat >"$T/nccl/nccl_inspector_metrics_GPU-1.prom" <<PROM
nccl_bus_bandwidth_gbs{$labels,collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"} 180.5
nccl_collective_exec_time_microseconds{$labels,collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"} 46250
PROM
printf 'nccl_bus_bandwidth_gbs{gpu="2" 1\n' >"$T/nccl/broken.prom"
printf 'nccl_bus_bandwidth_gbs{gpu="3"} 1\n' >"$T/nccl/ended.prom"
touch -d '1 hour ago' "$T/nccl/ended.prom"
mkdir "$T/nccl/dir.prom"
expect "NCCL's files" 0 '^nccl_collective_exec_seconds\{.*collective="AllReduce".*\} 0.04625$' '^nccl_bus_bandwidth_bytes_per_second\{.*\} 180500000000$' \
    'imece_fabric_nccl_files\{state="bad"\} 2' 'imece_fabric_nccl_files\{state="old"\} 1' 'imece_fabric_nccl_files\{state="read"\} 1' \
    'broken.prom: line 1: labels are parted' -- export_tree --once --nccl "$T/nccl"
check "neither broken nor ended ones" test -z "$(grep -e 'gpu="2"' -e 'gpu="3"' "$T/out")"
lint "NCCL's files"
expect "none is too old" 0 'gpu="3"' -- export_tree --once --nccl "$T/nccl" --nccl-age 0
expect "no such directory" 1 '/nowhere: cannot be opened as the directory' -- export_tree --once --nccl /nowhere

# ---- a run ----
mkdir "$T/run"
expect_not "a run without a step" 0 'imece_train' -- export_tree --once --run "$T/run"
printf '{"step": 1, "loss": 3.5, "step_s": 0.5, "tokens_per_s": 1000, "mfu": 0.25}\n{"step": 2, "lo' >"$T/run/metrics.jsonl"
expect "a run" 0 '^imece_train_step_seconds 0.5$' '^imece_train_model_flops_utilization_ratio 0.25$' -- export_tree --once --run "$T/run"
lint "a run"
expect "no such run" 1 '/nowhere: no such run' -- export_tree --once --run /nowhere

# ---- dashboards: what promtool says, and the real Prometheus ----
dash=$IMECE_SOURCE/dashboards
if command -v promtool >/dev/null; then
    check "promtool: rules" promtool check rules "$dash/fabric-rules.yml"
    check "promtool: alerts fire and only where they should" promtool test rules "$dash/fabric-rules-test.yml"
    python3 "$here/prometheus.py" rules "$dash/fabric.json" >"$T/panels.yml"
    check "promtool: the dashboard's expressions" promtool check rules "$T/panels.yml"
else
    skip "promtool: dashboards" "no promtool here"
fi
if ! command -v prometheus >/dev/null || [ -z "$http" ]; then
    skip "promtool: a real Prometheus" "no Prometheus, or nothing to listen with"
else
    make_tree roce8
    listen --nccl "$T/nccl" --run "$T/run" --nccl-age 0
    mkdir "$T/prometheus"
    port=$(readlink -f "$T/t/sys/class/infiniband/mlx5_0")/ports/1
    ( # packets arrive, one of a hundred marked
        n=0
        while [ ! -e "$T/enough" ]; do
            n=$((n + 1000))
            echo $((2234567 + n)) >"$port/new" && mv "$port/new" "$port/counters/port_rcv_packets"
            echo $((n / 100)) >"$port/new" && mv "$port/new" "$port/hw_counters/np_ecn_marked_roce_packets"
            sleep 0.2
        done
    ) &
    traffic=$!
    check "a real Prometheus scrapes it, and every expression gives samples" \
        python3 "$here/prometheus.py" scrape "$dash/fabric.json" "$dash/fabric-rules.yml" "$url" "$T/prometheus"
    touch "$T/enough"
    wait $traffic
    kill -TERM $server
    wait $server
fi
finish
