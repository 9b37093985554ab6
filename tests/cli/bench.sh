# imece bench: that it measures and says so; no rate is promised here.
. "$(dirname "$0")/lib.sh"

if [ "$IMECE_SANITIZE" = thread ]; then # minutes of plain matrix products, and no rate of such a build says anything
    skip "bench cpu" "the thread sanitizer's build"
    finish
    exit
fi
quick=(bench cpu --rows 64 --seconds 0.001)
expect "bench cpu: one kernel" 0 'memory: copy [0-9.]+, triad' 'matrix products, best: fp32 [0-9.]+, bf16' '^norm rms +fp32 +[0-9.]+' '^norm layer +bf16' -- "$IMECE" "${quick[@]}" --only norm
expect "bench cpu: JSON" 0 '^\{"threads":1,' -- "$IMECE" "${quick[@]}" --threads 1 --json --only fill
check "bench cpu: it is JSON" python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert d["memory"]["triad"] > 0 and d["matmul"]["fp32"] > 0
assert [(k["kernel"], k["dtype"]) for k in d["kernels"]] == [("fill", "fp32"), ("fill", "bf16")]
assert all(k["seconds"] > 0 and k["bound"] in ("memory", "compute") for k in d["kernels"])' "$T/out"
expect "bench cpu: no such kernel" 2 'mathmul: no kernel has that in its name; did you mean matmul' -- "$IMECE" "${quick[@]}" --only mathmul

# every kind of op has a row
for kind in $(sed -n 's/^extern const im_op_kind \(im_op_[a-z_]*\);/\1/p' "$IMECE_SOURCE/src/tensor/ops.h"); do
    check "bench row for $kind" grep -q "&$kind," "$IMECE_SOURCE/src/cli/bench_rows.c"
done
finish
