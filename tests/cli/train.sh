#!/usr/bin/env bash
# imece train, eval, checkpoint: the run directory, stopping and going on, refusals.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for i in $(seq 400); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done > "$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
model="$IMECE_SOURCE/models/llama-bytes-tiny.json"
tiny=(--model "$model" --data "$T/d-train" --seq-len 16 --micro-batch 2 --threads 1)

lines() { grep -c '"loss"' "$1/metrics.jsonl"; }

expect train-steps 0 'done +6 steps' 'validation' 'bits per byte' -- "$IMECE" train "${tiny[@]}" --valid "$T/d-valid" --eval-every 3 --eval-batches 2 --steps 6 --out "$T/a"
check train-plan-yaml grep -q '^train:' "$T/a/plan.yaml"
check train-lines test "$(lines "$T/a")" = 6
check train-evals test "$(grep -c '"event": "eval"' "$T/a/metrics.jsonl")" = 3
check train-mfu grep -q '"mfu": [0-9]' "$T/a/metrics.jsonl"
check train-memory grep -q '"mem_predicted_bytes": [1-9]' "$T/a/metrics.jsonl"
check train-log test -s "$T/a/logs/rank-0.log"
check train-latest grep -qx 'step-6' "$T/a/checkpoints/latest"
expect train-list 0 'step-6 .*complete.*latest' -- "$IMECE" checkpoint list "$T/a"
expect train-verify 0 'whole' -- "$IMECE" checkpoint verify "$T/a"
expect eval 0 'bits per byte +[0-9.]+' -- "$IMECE" eval --model "$T/a" --data "$T/d-valid" --seq-len 16 --batches 2
expect eval-json 0 '"bits_per_byte": [0-9]' -- "$IMECE" eval --model "$T/a/checkpoints/step-6" --data "$T/d-valid" --seq-len 16 --batches 2 --json

printf 'x' | dd of="$T/a/checkpoints/step-6/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
expect verify-damaged 3 'BAD: .*model.safetensors.*XXH3' -- "$IMECE" checkpoint verify "$T/a"
expect generate-damaged 1 'model.safetensors.*XXH3' -- "$IMECE" generate --model "$T/a" --prompt x --max-tokens 2
expect eval-damaged 1 'model.safetensors.*XXH3' -- "$IMECE" eval --model "$T/a" --data "$T/d-valid" --seq-len 16 --batches 2
expect list-nothing 1 'no such directory' -- "$IMECE" checkpoint list "$T/nothing"
expect list-usage 2 'which run' -- "$IMECE" checkpoint list

expect train-flat 0 'step [0-9]+: the gradient is exactly 0, so nothing is learned' -- "$IMECE" train "${tiny[@]}" --steps 6 --lr 1e6 --clip 0 --weight-decay 0 --schedule constant --out "$T/flat"
expect train-left-out 0 '^left out +[0-9]+ steps?, not finite' -- "$IMECE" train "${tiny[@]}" --steps 6 --lr 1e6 --clip 0 --weight-decay 1000 --schedule constant --nonfinite skip --out "$T/nans"
expect train-warmup-long 0 'warmup 4 is longer than the run of 3 steps' -- "$IMECE" train "${tiny[@]}" --steps 3 --warmup 4 --out "$T/warm"
expect model-show-run 0 '^.*/warm/checkpoints/step-3/config.json$' -- "$IMECE" model show "$T/warm"
expect train-json 0 '"steps": 3' '"checkpoint": "' -- "$IMECE" train "${tiny[@]}" --steps 3 --out "$T/j" --json
check train-json-alone sh -c 'test $(wc -l < "$1") = 1 && grep -q "^{.*}\$" "$1"' - "$T/out"
expect train-dry-run 0 'memory +weights' -- "$IMECE" train "${tiny[@]}" --steps 3 --out "$T/dry" --dry-run
check train-dry-run-writes-nothing test ! -e "$T/dry"
expect train-trace 0 'done' -- "$IMECE" train "${tiny[@]}" --steps 2 --out "$T/t" --trace
check train-trace-spans grep -q '"name": "matmul".*"instruction": "' "$T/t/trace.json"
expect train-config 0 'done +2 steps' -- "$IMECE" train --config "$T/t/plan.yaml" --out "$T/u"

# options that would have no effect
expect train-decay-idle 2 '--decay is of --schedule wsd' -- "$IMECE" train "${tiny[@]}" --steps 2 --decay 0.3 --out "$T/idle"
expect train-eval-batches-idle 2 '--eval-batches needs --valid' -- "$IMECE" train "${tiny[@]}" --steps 2 --eval-batches 3 --out "$T/idle"

n=400
[ "$IMECE_SANITIZE" = thread ] && n=40 # a hundred times slower there
# stopped by a signal: saved, exit code 4; then the same bits as the run left alone
expect train-alone 0 'done' -- "$IMECE" train "${tiny[@]}" --steps $n --out "$T/alone"
"$IMECE" train "${tiny[@]}" --steps $n --out "$T/s" >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 6000); do [ -s "$T/s/metrics.jsonl" ] && break; kill -0 $pid 2>/dev/null || break; sleep 0.02; done
kill -TERM $pid
wait $pid
code=$?
if [ $code = 4 ] && grep -q -- "--resume $T/s" "$T/err"; then ok train-sigterm; else fail train-sigterm "exit code $code" "$(cat "$T/err")"; fi
check train-sigterm-log grep -q 'stopped after step [0-9]*, which is saved' "$T/s/logs/rank-0.log"
expect train-resume 0 'resumed' -- "$IMECE" train --resume "$T/s"
check train-resume-lines test "$(lines "$T/s")" = $n
for f in model optimizer; do
    check "train-resume-same-$f" cmp "$T/alone/checkpoints/step-$n/$f.safetensors" "$T/s/checkpoints/step-$n/$f.safetensors"
done
# a terminal that closes: saved too, but not under nohup
"$IMECE" train "${tiny[@]}" --steps 100000 --out "$T/hup" >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 6000); do [ -s "$T/hup/metrics.jsonl" ] && break; kill -0 $pid 2>/dev/null || break; sleep 0.02; done
kill -HUP $pid
kill -HUP $pid
wait $pid
code=$?
if [ $code = 4 ] && [ -s "$T/hup/checkpoints/latest" ]; then ok train-sighup; else fail train-sighup "exit code $code" "$(cat "$T/err")"; fi
(
    trap '' HUP
    exec "$IMECE" train "${tiny[@]}" --steps 20 --out "$T/nohup" >"$T/out" 2>"$T/err"
) &
pid=$!
for _ in $(seq 6000); do [ -s "$T/nohup/plan.yaml" ] && break; kill -0 $pid 2>/dev/null || break; sleep 0.02; done
kill -HUP $pid
wait $pid
code=$?
if [ $code = 0 ]; then ok train-nohup; else fail train-nohup "exit code $code" "$(cat "$T/err")"; fi
# two signals: leaves at once, nothing torn
"$IMECE" train "${tiny[@]}" --steps 100000 --save-every 10 --out "$T/twice" >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 6000); do [ -s "$T/twice/checkpoints/latest" ] && break; kill -0 $pid 2>/dev/null || break; sleep 0.02; done
kill -STOP $pid
kill -TERM $pid
kill -INT $pid
kill -CONT $pid
wait $pid
code=$?
if [ $code = 130 ] || [ $code = 143 ]; then ok train-two-signals; else fail train-two-signals "exit code $code" "$(cat "$T/err")"; fi
expect train-two-signals-whole 0 'whole' -- "$IMECE" checkpoint verify "$T/twice"
expect train-resume-finished 0 'done +0 steps' "nothing to do: the run is at step $n, and its length is $n steps" -- "$IMECE" train --resume "$T/s"

# refusals
mkdir "$T/empty"
expect refuse-existing-no-run 1 'exists, and is no run \(no plan.yaml in it\)' -- "$IMECE" train "${tiny[@]}" --steps 1 --out "$T/empty"
expect refuse-existing 1 'exists.*--resume' -- "$IMECE" train "${tiny[@]}" --steps 1 --out "$T/a"
expect refuse-no-model 2 '--model is missing' -- "$IMECE" train --data "$T/d-train" --steps 1
expect refuse-no-end 2 '--steps, --tokens or --minutes' -- "$IMECE" train "${tiny[@]}"
expect refuse-unknown-option 2 'seq-len' -- "$IMECE" train "${tiny[@]}" --seqlen 3 --steps 1
expect refuse-choice 2 'constant' -- "$IMECE" train "${tiny[@]}" --steps 1 --schedule cosin
expect refuse-positions 2 'seq-len|seq_len' -- "$IMECE" train "${tiny[@]}" --seq-len 100000 --steps 1 --out "$T/x"
expect refuse-no-data 1 'nowhere' -- "$IMECE" train --model "$model" --data "$T/nowhere" --steps 1
expect refuse-resume-out 2 '--resume' -- "$IMECE" train --resume "$T/s" --out "$T/y"
expect refuse-resume-no-run 2 'not a run directory' -- "$IMECE" train --resume "$T/text"
expect refuse-other-seed 2 'seed' -- "$IMECE" train --resume "$T/s" --seed 5
printf 'lr: 0.1\nsteps: 2\nlearning: 3\n' > "$T/bad.yaml"
expect refuse-yaml-key 2 'learning' -- "$IMECE" train "${tiny[@]}" --config "$T/bad.yaml"
expect refuse-eval-weights 1 'no weights|weights' -- "$IMECE" eval --model "$model" --data "$T/d-valid"

# a disk that fills up
if mkdir "$T/small" && mount -t tmpfs -o size=24m tmpfs "$T/small" 2>/dev/null; then
    expect disk-full 1 'warn 0 train step [0-9]+ was not saved' 'No space left' -- "$IMECE" -q train "${tiny[@]}" --steps 8 --save-every 2 --keep 0 --out "$T/small/r"
    expect disk-full-previous-whole 0 'whole' -- "$IMECE" checkpoint verify "$T/small/r"
    umount "$T/small"
else
    skip disk-full "mounting a tmpfs needs root"
fi
# what a run is made of cannot be swapped under it, and nothing that can never work begins
expect resume-other-model 2 '--model and --resume together' -- "$IMECE" train --resume "$T/a" --steps 8 --model gpt2
expect resume-other-init 2 '--init and --resume together' -- "$IMECE" train --resume "$T/a" --steps 8 --init random
expect eps-zero 2 'eps' -- "$IMECE" train "${tiny[@]}" --steps 1 --eps 0 --out "$T/eps"
expect many-micro-batches 2 'micro-batches a step, at most [0-9]+' 'micro-batch [0-9]+ or more' -- "$IMECE" train "${tiny[@]}" --steps 1 --global-batch 1000000 --out "$T/many"
expect dry-run-too-large 1 'TiB' 'this machine has' -- "$IMECE" train --model llama3.1-405b --data "$T/d-train" --seq-len 16 --steps 1 -n
check nothing-left test ! -e "$T/eps" -a ! -e "$T/many"
mkfifo "$T/config.json"
expect fifo-config 1 'config.json: not a regular file' -- timeout 20 "$IMECE" model show "$T"
finish
