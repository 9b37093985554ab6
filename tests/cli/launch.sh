#!/usr/bin/env bash
# Starting ranks: what is refused before anything is allocated, with one message from rank 0 and an end to the job; and imece train --hosts.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for i in $(seq 400); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done > "$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
llama=$IMECE_SOURCE/models/llama-bytes-tiny.json
sed 's/"num_key_value_heads": 2/"num_key_value_heads": 4/' "$llama" > "$T/other.json"
plain=(--data "$T/d-train" --seq-len 16 --micro-batch 2 --global-batch 4 --threads 1 --steps 2)
tiny=(--model "$llama" "${plain[@]}")

# a run's plan.yaml, and two sets of weights
for seed in 1 2; do "$IMECE" train "${tiny[@]}" --steps 1 --seed $seed --out "$T/run-$seed" >"$T/out" 2>&1 || fail "run-$seed" "$(cat "$T/out")"; done
expect plan-of-another-model 2 'plan.yaml is a plan for another model: llama of 804224 parameters' 'other.json is llama' -- \
    "$IMECE" train --config "$T/run-1/plan.yaml" --model "$T/other.json" --out "$T/none"
expect plan-of-this-model 0 'done' -- "$IMECE" train --config "$T/run-1/plan.yaml" --model "$llama" --out "$T/again"
expect nearest-layouts 2 'tp 3 is neither' 'layouts of 3 ranks: dp 3, pp 3' -- "$IMECE" train "${tiny[@]}" --tp 3 --out "$T/none"
expect nearest-ranks 2 'no layout of 7 ranks is possible; layouts of 6 ranks: ' -- "$IMECE" train "${tiny[@]}" --dp 7 --out "$T/none"
expect nearest-one-run 2 'at most 1 chunks; layouts of 8 ranks: tp 2 x pp 4, tp 4 x pp 2; with chunks 1' -- \
    "$IMECE" train "${tiny[@]}" --global-batch 1 --tp 2 --pp 4 --pipeline interleaved --chunks 3 --out "$T/none"
expect_not no-layout-without-one 2 '; $' -- "$IMECE" train "${tiny[@]}" --stages 5 --out "$T/none"
expect_not no-layout-for-another-reason 2 'layouts of' -- "$IMECE" train "${tiny[@]}" --dp 2 --dropout 2 --out "$T/none"

# the same program, but another build of it
mkdir "$T/b"
id=$("$IMECE" --version | sed -n 's/^build: *//p')
LC_ALL=C sed "s/$id/0123456789abcdef/g" "$IMECE" > "$T/b/imece"
chmod +x "$T/b/imece"
for plugin in "$IMECE_BUILD"/imece_*.so; do [ -e "$plugin" ] && ln -s "$plugin" "$T/b/"; done
# and alone, without plug-ins
mkdir "$T/alone"
ln "$IMECE" "$T/alone/imece" 2>/dev/null || cp "$IMECE" "$T/alone/imece"

# refused NAME REGEX -- MPIRUN'S ARGUMENTS: the job fails by itself, soon, told once and by rank 0, and nothing is written
refused() {
    local name=$mpi-$1 regex=$2 said
    shift 3
    local job=("$@")
    case " $* " in *" : "*) by_rank "$@" ;; esac
    timeout -k 5 60 "${start[@]}" "${job[@]}" >"$T/out" 2>"$T/err" </dev/null
    code=$?
    said=$(grep -Ec '^[0-9-]+T[0-9:.]+ (error|warn) ' "$T/err")
    if [ $code = 0 ] || [ $code = 124 ] || [ $code = 137 ]; then
        fail "$name" "exit code $code"
        show err
    elif [ "$said" != 1 ] || ! grep -Eq "^[0-9T:.-]+ error 0 train .*$regex" "$T/err"; then
        fail "$name" "$said messages, or none from rank 0 with /$regex/"
        show err
    elif [ -e "$T/none" ]; then
        fail "$name" "something was written"
        rm -rf "$T/none"
    else
        ok "$name"
    fi
}

one=("$IMECE" train "${tiny[@]}" --dp 2 --out "$T/none")
for mpi in openmpi mpich; do
    if [ ! -e "$IMECE_BUILD/imece_$mpi.so" ]; then
        skip "$mpi" "no plug-in in this build"
        continue
    fi
    start=("mpirun.$mpi")
    [ $mpi = openmpi ] && start+=(--allow-run-as-root --oversubscribe --bind-to none)

    refused unknown-option 'unknown option --bogus' -- -n 3 "${one[@]}" --bogus
    refused too-few '= 4 ranks, but the job has 2 processes: start 4 .*layouts of 2 ranks: tp 2, dp 2' -- -n 2 "${one[@]}" --dp 1 --tp 4
    refused wrong-on-one 'rank 1 failed: nothing says when to stop' -- "${one[@]}" : "${one[@]}" --steps 0
    refused other-build 'rank 1 is another build of imece than rank 0' -- "${one[@]}" : "$T/b/imece" "${one[@]:1}"
    refused no-threads 'rank 0: this MPI does not give the thread level MPI_THREAD_SERIALIZED' -- \
        -n 2 env LD_PRELOAD="$IMECE_BUILD/few_threads_$mpi.so" "${one[@]}"
    refused no-threads-on-one 'rank 1: this MPI does not give' -- -n 2 env LD_PRELOAD="$IMECE_BUILD/few_threads_$mpi.so" FEW_THREADS_ON=1 "${one[@]}"
    refused never-comes 'MPI did not start in 2 s: a process of the job ended' -- "${one[@]}" --deadline 2 : true
    [ $mpi = mpich ] && continue # from here on nothing differs between MPIs
    refused too-many '= 2 ranks, but the job has 3 processes.*layouts of 3 ranks: dp 3' -- -n 3 "${one[@]}"
    refused heads 'tp 3 is neither up to the 2 kv heads.*layouts of 3 ranks: dp 3' -- -n 3 "${one[@]}" --dp 1 --tp 3
    refused other-options 'rank 1 planned another run than rank 0; different: seed, lr' -- "${one[@]}" : "${one[@]}" --lr 1 --seed 2
    refused other-data 'rank 1 planned another run than rank 0; different: data\.' -- "${one[@]}" : "${one[@]}" --data "$T/d-valid"
    refused other-model 'rank 1 planned another run than rank 0; different: model\.' -- "${one[@]}" : "${one[@]}" --model "$T/other.json"
    weights=("$IMECE" train "${plain[@]}" --dp 2 --out "$T/none" --model)
    refused other-weights 'rank 1 planned another run than rank 0; different: model\.' -- "${weights[@]}" "$T/run-1" : "${weights[@]}" "$T/run-2"
    refused no-data-on-one 'rank 1 failed: .*nowhere.idx: no such file' -- "${one[@]}" : "${one[@]}" --data nowhere
    # a rank that sees no checkpoint where rank 0 sees one, or an older one
    rm -rf "$T/run-1-late"
    cp -r "$T/run-1" "$T/run-1-late"
    rm -rf "$T/run-1-late/checkpoints"/*
    seen=("$IMECE" train --dp 2 --steps 3 --resume)
    refused checkpoint-not-seen 'rank 1 planned another run than rank 0; different: .*the checkpoint to go on from.*sees the same files' -- \
        "${seen[@]}" "$T/run-1" : "${seen[@]}" "$T/run-1-late"
    check $mpi-checkpoint-not-seen-stays test "$(cat "$T/run-1/checkpoints/latest")" = step-1
    refused hosts-in-a-job '--hosts starts the processes itself' -- -n 2 "${one[@]}" --hosts nofile
    [ -e /usr/local/lib/imece/imece_openmpi.so ] ||
        refused no-plugin 'Open MPI started this process, but imece was built without it' -- -n 2 "$T/alone/imece" "${one[@]:1}"
    by_rank "${one[@]}" : false
    expect openmpi-dies-at-start 1 -- timeout -k 5 60 "${start[@]}" "${job[@]}"
    check openmpi-dies-at-start-writes-nothing test ! -e "$T/none"
    expect openmpi-one 0 'done +2 steps' -- timeout -k 5 60 "${start[@]}" -n 1 "$IMECE" train "${tiny[@]}" --out "$T/one"
done

# --hosts: the line is told, and it runs
hosts() { printf "$1" > "$T/hosts"; }
if [ -e "$IMECE_BUILD/imece_openmpi.so" ] || [ -e "$IMECE_BUILD/imece_mpich.so" ]; then
    hosts '# this machine\n\nlocalhost  slots=2 # all of it\r\n'
    expect hosts 0 "^mpirun.* -n 2 .*host.* localhost:2 .*imece train .*--out '$T/with blank'$" 'done +2 steps' -- \
        timeout -k 5 60 "$IMECE" train "${tiny[@]}" --dp 2 --hosts "$T/hosts" --out "$T/with blank"
    check hosts-line-without-itself test "$(grep -c -- --hosts "$T/err")" = 0
    expect hosts-dry-run 0 'memory +rank' -- timeout -k 5 60 "$IMECE" train "${tiny[@]}" --dp 2 --hosts="$T/hosts" --out "$T/none" --dry-run
    expect hosts-slots 2 '= 4 ranks, but .*hosts has 2 slots' -- "$IMECE" train "${tiny[@]}" --dp 4 --hosts "$T/hosts" --out "$T/none"
    hosts 'no-such-host.invalid\n'
    expect hosts-unreachable 1 'no-such-host.invalid cannot be reached: .ssh no-such-host.invalid true. must work' -- \
        timeout -k 5 60 "$IMECE" train "${tiny[@]}" --hosts "$T/hosts" --out "$T/none"
    expect hosts-no-mpirun 1 'no mpirun in PATH' -- env PATH="$T" "$IMECE" train "${tiny[@]}" --hosts "$T/hosts" --out "$T/none"
fi
for line in 'a slots=0' 'a slots=5000' 'a slots=2x' 'a slot=2' 'a b' 'a,b' 'a:' ':2' '-a' 'fe80::1'; do
    hosts "b\n$line\n"
    expect "hosts-refuses '$line'" 1 "hosts: line 2: \"$line\" is none of HOST, HOST slots=N or HOST:N" -- \
        "$IMECE" train "${tiny[@]}" --hosts "$T/hosts" --out "$T/none"
done
hosts '# nobody\n'
expect hosts-empty 1 'hosts names no host' -- "$IMECE" train "${tiny[@]}" --hosts "$T/hosts" --out "$T/none"
expect hosts-missing 1 'nofile: cannot open' -- "$IMECE" train "${tiny[@]}" --hosts "$T/nofile" --out "$T/none"
check refusals-write-nothing test ! -e "$T/none"
finish
