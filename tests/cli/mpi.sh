#!/usr/bin/env bash
# imece train under MPI's launchers: a process is a rank. The same bits as ranks that are threads; what is refused; a rank that dies.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for i in $(seq 400); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done > "$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
tiny=(--model "$IMECE_SOURCE/models/llama-bytes-tiny.json" --data "$T/d-train" --seq-len 16 --micro-batch 2 --global-batch 4 --threads 1)

losses() { grep -o '"loss": [0-9.]*, "grad_norm": [0-9.]*' "$1/metrics.jsonl"; }

expect threads-2 0 'done +4 steps' -- "$IMECE" train "${tiny[@]}" --steps 4 --dp 2 --zero 2 --out "$T/threads-2"
expect threads-4 0 'done +4 steps' -- "$IMECE" train "${tiny[@]}" --steps 4 --tp 2 --sequence-parallel --dp 2 --zero 3 --out "$T/threads-4"

loss=$("$IMECE" eval --model "$T/threads-2" --data "$T/d-train" --seq-len 16 --batch 2 --batches 5 --threads 1 --json | sed 's/.*"loss": \([0-9.]*\),.*/\1/')
text_of() { tr -d '\r\n'; } # a launcher's standard output may be a terminal: then a line ends
write=("$IMECE" generate --threads 1 --model "$T/threads-2" --max-tokens 12 --temperature 0)
"${write[@]}" --prompt "line " >"$T/greedy" 2>"$T/err" || fail greedy "$(cat "$T/err")"

for mpi in openmpi mpich; do
    if [ ! -e "$IMECE_BUILD/imece_$mpi.so" ]; then
        skip "$mpi" "no plug-in in this build"
        continue
    fi
    start=("mpirun.$mpi")
    [ $mpi = openmpi ] && start+=(--allow-run-as-root --oversubscribe --bind-to none)
    on() { timeout -k 5 120 "${start[@]}" -n "$@"; }

    expect $mpi-2 0 'done +4 steps' 'each a process' -- on 2 "$IMECE" train "${tiny[@]}" --steps 4 --dp 2 --zero 2 --out "$T/$mpi-2"
    check $mpi-2-once test "$(grep -c '^done ' "$T/out")" = 1
    check $mpi-2-same-bits test "$(losses "$T/$mpi-2")" = "$(losses "$T/threads-2")"
    expect $mpi-4 0 'done +4 steps' -- on 4 "$IMECE" train "${tiny[@]}" --steps 4 --tp 2 --sequence-parallel --dp 2 --zero 3 --out "$T/$mpi-4"
    check $mpi-4-same-bits test "$(losses "$T/$mpi-4")" = "$(losses "$T/threads-4")"
    expect $mpi-verify 0 'whole' -- "$IMECE" checkpoint verify "$T/$mpi-4"
    expect $mpi-resume 0 'done +2 steps' -- on 2 "$IMECE" train --resume "$T/$mpi-4" --tp 2 --dp 1 --zero 0 --steps 6
    expect $mpi-verify-command 2 'imece verify starts its ranks itself.*2 processes' -- on 2 "$IMECE" verify --model "$IMECE_SOURCE/models/llama-bytes-tiny.json" --layouts tp2
    check $mpi-verify-command-once test "$(cat "$T/out" "$T/err" | grep -c 'starts its ranks itself')" = 1
    expect $mpi-dry-run 0 'memory +rank' -- on 2 "$IMECE" train "${tiny[@]}" --steps 4 --dp 2 --out "$T/dry" --dry-run

    on 3 "$IMECE" train "${tiny[@]}" --steps 4 --dp 2 --out "$T/none" >"$T/out" 2>&1
    check $mpi-too-many-fails test $? != 0
    check $mpi-too-many-once test "$(grep -c '= 2 ranks, but the job has 3 processes' "$T/out")" = 1
    by_rank "$IMECE" train "${tiny[@]}" --steps 4 --dp 2 --seed 1 --out "$T/none" : "$IMECE" train "${tiny[@]}" --steps 4 --dp 2 --seed 2 --out "$T/none"
    timeout -k 5 120 "${start[@]}" "${job[@]}" >"$T/out" 2>&1
    check $mpi-other-plan-fails test $? != 0
    check $mpi-other-plan-told grep -q 'rank 1 planned another run than rank 0; different: seed' "$T/out"
    check $mpi-refusals-write-nothing test ! -e "$T/none"

    # evaluation and generation: as on one rank, told once
    expect $mpi-eval 0 '"tokens": 160' -- on 2 "$IMECE" eval --model "$T/threads-2" --data "$T/d-train" --seq-len 16 --batch 2 --batches 5 --threads 1 --tp 2 --json
    check $mpi-eval-once test "$(wc -l <"$T/out")" = 1
    check $mpi-eval-loss awk -v a="$loss" -v b="$(sed 's/.*"loss": \([0-9.]*\),.*/\1/' "$T/out")" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-5 * a && -d < 1e-5 * a) }'
    for layout in "2 --tp 2" "2 --pp 2" "4 --tp 2 --pp 2"; do
        # shellcheck disable=SC2086
        expect "$mpi-generate $layout" 0 'stopped by length' 'memory of rank 1, ' -- on ${layout%% *} "${write[@]}" --prompt "line " ${layout#* }
        check "$mpi-generate $layout: the text of one rank, once" test "$(text_of <"$T/out")" = "$(text_of <"$T/greedy")"
    done
    printf 'line ' | on 2 "${write[@]}" --tp 2 - >"$T/out" 2>"$T/err"
    check $mpi-stdin test "$(text_of <"$T/out")" = "$(text_of <"$T/greedy")"
    on 2 "${write[@]}" --prompt a --tp 2 --ids 1 >"$T/out" 2>&1
    check $mpi-generate-refused-fails test $? != 0
    check $mpi-generate-refused-once test "$(grep -c -e '--prompt and --ids: one of them' "$T/out")" = 1
    on 3 "${write[@]}" --prompt a --tp 2 >"$T/out" 2>&1
    check $mpi-generate-too-many-fails test $? != 0
    check $mpi-generate-too-many-once test "$(grep -c '= 2 ranks, but the job has 3 processes' "$T/out")" = 1

    # a rank that is killed: the job ends with an error, and soon
    on 2 "$IMECE" train "${tiny[@]}" --steps 1000000 --dp 2 --out "$T/$mpi-killed" >"$T/out" 2>&1 &
    job=$!
    for _ in $(seq 300); do
        [ -s "$T/$mpi-killed/metrics.jsonl" ] && break
        sleep 0.1
    done
    victim=$(pgrep -f -- "train .*--out $T/$mpi-killed" | while read -r p; do [ "$(readlink "/proc/$p/exe")" = "$(readlink -f "$IMECE")" ] && echo "$p"; done | tail -1)
    [ -n "$victim" ] && kill -9 "$victim"
    began=$SECONDS
    wait $job
    code=$?
    # MPICH's mpirun 4.2.1 returns 0 at times when a process ends without MPI_Finalize, with any program
    [ $mpi = mpich ] && [ $code = 0 ] && code=1
    check $mpi-killed-fails test $code != 0
    check $mpi-killed-soon test $((SECONDS - began)) -lt 30
done

# started by another launcher
expect torchrun 2 'mpirun -n 4 imece train' -- env RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=1 "$IMECE" train "${tiny[@]}" --steps 1
expect_not torchrun-once 2 'mpirun' -- env RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=1 "$IMECE" train "${tiny[@]}" --steps 1
expect torchrun-hosts 2 'mpirun -n 4 --map-by ppr:2:node' -- env RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 "$IMECE" train "${tiny[@]}" --steps 1
expect plain-srun 2 'srun --mpi=pmix' -- env SLURM_STEP_NUM_TASKS=4 "$IMECE" train "${tiny[@]}" --steps 1
finish
