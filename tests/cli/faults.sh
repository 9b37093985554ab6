#!/usr/bin/env bash
# Ranks that die, stall, differ; signals: threads, and processes of both MPIs. Each run ends, says who it was, and goes on in another layout.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export GOMP_SPINCOUNT=3000

for i in $(seq 400); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done > "$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
tiny=(--model "$IMECE_SOURCE/models/llama-bytes-tiny.json" --data "$T/d-train" --seq-len 16 --micro-batch 2 --global-batch 4 --threads 1 --save-every 2)
four=(--tp 2 --dp 2 --zero 1)

# A run that is at work: until it has saved.
await() {
    for _ in $(seq 1200); do
        [ -e "$1/checkpoints/latest" ] && return
        sleep 0.05
    done
}

# A run that stands in a step.
await_step() {
    for _ in $(seq 600); do
        "$IMECE" ranks "$1" 2>/dev/null | grep -q "step $2, .*for [0-9.]* s" && [ -z "$("$IMECE" ranks "$1" | grep -v "step $2, ")" ] && return
        sleep 0.1
    done
}

# pid RUN RANK
pid() { "$IMECE" ranks "$1" --json | grep -o "\"rank\": $2, \"known\": true, \"fault\": \"[a-z]*\", \"pid\": [0-9]*" | grep -o '[0-9]*$'; }

# ended NAME RUN PID SECONDS CODE: the job PID ends within SECONDS, with CODE ("fails": any but 0; "any")
ended() {
    local began=$SECONDS
    wait "$3"
    code=$?
    if [ $((SECONDS - began)) -gt "$4" ]; then fail "$1" "it took $((SECONDS - began)) s" "$(tail -5 "$T/job")"; return 1; fi
    if { [ "$5" = fails ] && [ $code = 0 ]; } || { [ "$5" != fails ] && [ "$5" != any ] && [ $code != "$5" ]; }; then fail "$1" "exit code $code, not $5" "$(tail -20 "$T/job")"; return 1; fi
    ok "$1"
}

said() { # NAME REGEX: somewhere in the last job's words
    if grep -Eq -- "$2" "$T/job"; then ok "$1"; else fail "$1" "no /$2/ in:" "$(tail -30 "$T/job")"; fi
}

goes_on() { # NAME RUN: the newest checkpoint is whole, and goes on elsewhere
    expect "$1-whole" 0 'whole' -- "$IMECE" checkpoint verify "$2"
    local newest
    newest=$(sed 's/step-//' "$2/checkpoints/latest")
    expect "$1-goes-on" 0 'done ' -- "$IMECE" train --resume "$2" --tp 1 --dp 3 --zero 3 --steps $((newest + 2))
}

# ---- threads ----
"$IMECE" train "${tiny[@]}" "${four[@]}" --steps 1000000 --out "$T/live" >"$T/job" 2>&1 &
job=$!
await "$T/live"
expect live 0 'rank .*step [0-9]+' -- "$IMECE" ranks "$T/live"
expect live-last 0 'rank 3 +[0-9]+ +all_reduce of .*operation [0-9]+ of group \[.*\] \(step [0-9]+, ' -- "$IMECE" ranks "$T/live" --last 20
expect live-json 0 '"live": true' '"instruction": "' -- "$IMECE" ranks "$T/live" --json --last 2
kill -KILL $job
wait $job 2>/dev/null
expect killed 3 'process [0-9]+ on .* is over' 'all 4 ranks are gone .rank 0: process [0-9]+ on .*: ended without a word' -- "$IMECE" ranks "$T/live"
goes_on killed "$T/live"
expect no-rings 1 'no rings' -- "$IMECE" ranks "$T"
expect no-run 2 'which run' -- "$IMECE" ranks
expect rings-off 0 'done' -- "$IMECE" train "${tiny[@]}" --dp 2 --no-rings --steps 2 --out "$T/off"
check rings-off-none test ! -e "$T/off/rings"
expect threads-fail 1 'rank 2: died on purpose' 'rank 2 failed: it was in step 3, ' 'rank 2: step 3, .*; failed by itself' -- \
    "$IMECE" train "${tiny[@]}" "${four[@]}" --steps 9 --out "$T/f" --fault die,step=3,what=REDUCE,at=1,rank=2
expect threads-fail-later 3 'rank 2 failed: it was in step 3, .*: died on purpose' -- "$IMECE" ranks "$T/f"
expect fault-refused 2 'unknown key "when"' -- "$IMECE" train "${tiny[@]}" --dp 2 --steps 1 --out "$T/none" --fault die,when=1

# a rank that does not come back: the first signal changes nothing, the second leaves at once
"$IMECE" train "${tiny[@]}" --dp 2 --steps 1000000 --out "$T/stuck" --fault delay,step=3,what=REDUCE,at=1,seconds=1000 >"$T/job" 2>&1 &
job=$!
await_step "$T/stuck" 3
kill -TERM $job
sleep 0.5
kill -TERM $job
ended second-signal "$T/stuck" $job 60 143

# ---- processes ----
for mpi in openmpi mpich; do
    if [ ! -e "$IMECE_BUILD/imece_$mpi.so" ]; then
        skip "$mpi" "no plug-in in this build"
        continue
    fi
    start=("mpirun.$mpi")
    [ $mpi = openmpi ] && start+=(--allow-run-as-root --oversubscribe --bind-to none)
    on() { timeout -k 5 200 "${start[@]}" -n "$@"; }
    [ $mpi = openmpi ] && killed=fails || killed=any # MPICH's mpirun 4.2.1 returns 0 at times when a process is killed, with any program

    # as long as this machine needs to start a job, several times: nobody is late for that alone
    began=$SECONDS
    expect $mpi-starts 0 'memory ' -- on 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 1 --out "$T/none" --dry-run
    deadline=$((4 + 4 * (SECONDS - began)))

    # kill -9 of a process in the middle of a step
    on 4 "$IMECE" train "${tiny[@]}" "${four[@]}" --steps 1000000 --out "$T/$mpi-kill" --fault kill,step=6,what=BACKWARD,at=3,rank=1 >"$T/job" 2>&1 &
    ended $mpi-kill "$T/$mpi-kill" $! 120 $killed
    [ $mpi = openmpi ] && said $mpi-kill-told 'rank 1 is gone.*process [0-9]+' # mpirun.mpich kills the others in the same moment
    # later, from the files: who was at fault, if some rank had the time to see it before it was killed too; if not, where each was
    run "$IMECE" ranks "$T/$mpi-kill"
    if [ $mpi = mpich ] && grep -q 'all 4 ranks are gone' "$T/out"; then
        expect $mpi-kill-later 3 'rank 1: step 6, .*process [0-9]+ on .* is over' -- "$IMECE" ranks "$T/$mpi-kill"
    else
        expect $mpi-kill-later 3 'rank 1 is gone .process [0-9]+ on .*: it was in step 6, ' -- "$IMECE" ranks "$T/$mpi-kill"
    fi
    goes_on $mpi-kill "$T/$mpi-kill"

    # a process that is stopped: with one MPI rank 0 itself, who else speaks; with the other another one
    [ $mpi = openmpi ] && rank=0 || rank=1
    run="$T/$mpi-stop"
    on 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 1000000 --out "$run" --deadline $deadline >"$T/job" 2>&1 &
    job=$!
    await "$run"
    victim=$(pid "$run" $rank)
    kill -STOP "$victim"
    ended $mpi-stop "$run" $job $((deadline + 90)) fails
    said $mpi-stop-told "rank $rank (did not come|stands still).*process $victim on [^ ]* is stopped|rank $rank stands still .process $victim on .*: stopped"
    kill -KILL "$victim" 2>/dev/null # the launcher did it
    for _ in $(seq 100); do kill -0 "$victim" 2>/dev/null || break; sleep 0.1; done
    expect $mpi-stop-later 3 "rank $rank (did not come|stands still)" -- "$IMECE" ranks "$run"
    goes_on $mpi-stop "$run"

    # a signal to one process, and to the launcher: all ranks finish the step, save, and end together
    run="$T/$mpi-term"
    on 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 1000000 --out "$run" >"$T/job" 2>&1 &
    job=$!
    await "$run"
    kill -TERM "$(pid "$run" 1)"
    ended $mpi-term "$run" $job 90 4
    said $mpi-term-told 'stopped after step [0-9]+, which is saved'
    goes_on $mpi-term "$run"
    run="$T/$mpi-usr1"
    "${start[@]}" -n 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 1000000 --out "$run" >"$T/job" 2>&1 &
    job=$!
    await "$run"
    kill -USR1 $job
    [ $mpi = openmpi ] && want=4 || want=any # MPICH's mpirun, when it is signalled itself, gives 0 at times, with any program
    ended $mpi-usr1 "$run" $job 90 $want
    said $mpi-usr1-told 'stopped after step [0-9]+, which is saved'
    run="$T/$mpi-int"
    patient=("${start[@]}")
    [ $mpi = openmpi ] && patient+=(--mca odls_base_sigkill_timeout 10)
    "${patient[@]}" -n 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 1000000 --out "$run" >"$T/job" 2>&1 &
    job=$!
    await "$run"
    kill -TERM $job
    ended $mpi-launcher-term "$run" $job 90 any # Open MPI's mpirun gives 1 whatever the ranks give
    cat "$run/logs/rank-0.log" >>"$T/job" # once it is told to end, Open MPI 5's mpirun hands on nothing that ranks say
    said $mpi-launcher-term-told 'stopped after step [0-9]+, which is saved'
    expect $mpi-launcher-term-whole 0 'whole' -- "$IMECE" checkpoint verify "$run"

    # what differs, what only one rank sees, what dies at the start
    expect $mpi-mismatch 1 'differs among its ranks' 'rank 1 called' -- on 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 9 --out "$T/$mpi-mismatch" --fault mismatch,step=3,what=REDUCE,at=1
    run on 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 9 --out "$T/$mpi-nan" --fault nan,step=3,what=COUNT,at=1
    cat "$T/out" "$T/err" >"$T/job"
    check $mpi-nan test $code != 0
    said $mpi-nan-told 'step 3: rank 1 of 2 got a loss or gradient that is not finite'
    run on 2 "$IMECE" train "${tiny[@]}" --dp 2 --steps 9 --out "$T/$mpi-start" --fault kill,at=1
    check $mpi-start test $code != 0 -o $killed = any
    by_rank "$IMECE" train "${tiny[@]}" --dp 2 --steps 9 --out "$T/$mpi-start" : "$IMECE" train --no-such-option
    run timeout -k 5 200 "${start[@]}" "${job[@]}"
    check $mpi-start-other test $code != 0
done
finish
