#!/usr/bin/env bash
# The pages about splitting: every command in them runs, in order, and prints what the page says it prints.
#
# Of a command's output a page may leave lines out. Not compared is what differs between machines: times, rates, memory that was measured or that
# there is, scratch of the kernels, pictures, and digits of a loss behind the fifth.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ "$IMECE_SANITIZE" = thread ]; then # half an hour of plain products; tests/layout runs the same layouts there
    skip pages "their models are too large for the thread sanitizer"
    finish
    exit $?
fi
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
mkdir "$T/bin"
ln -s "$IMECE" "$T/bin/imece"
PATH=$T/bin:$PATH
export GOMP_SPINCOUNT=3000
docs=$IMECE_SOURCE/docs

# standard input -> the lines, and parts of lines, that every machine prints alike
same() {
    sed -E -e '/^ *rank +[0-9]+ +[0-9FBWHU=.]*$/d; /^(planned,|priced|speed|machine|done|pipeline) |predicted and touched|^memory +predicted|^"(bubble|step_s)"/d' \
        -e 's/ \+ (scratch|carry|programs) [0-9.]+ [KMG]iB//g; s/ = [0-9.]+ [KMG]iB.*//' \
        -e 's/([0-9]\.[0-9]{4})[0-9]+/\1/g; s/(bubble planned [0-9.]+ %), measured [0-9.]+ %/\1/; s/^(loss .*[0-9]\.[0-9]{3})[0-9]( -> [0-9]\.[0-9]{3})[0-9]$/\1\2/' \
        -e 's/^([a-z0-9+]+) +[0-9]+ .* (same|rounding)( .*|)$/\1 same/; /^ *\.*$/d; s/^ +//'
}

# PAGE DIRECTORY: the commands of its blocks as N.cmd, what stands below each as N.say
split_page() {
    awk -v to="$2" '/^```/ { on = !on; at = 0; next }
        on && /^\$ / { at = ++n; print substr($0, 3) >(to "/" n ".cmd"); printf "" >(to "/" n ".say"); next }
        on && at { print >(to "/" at ".say") }' "$1"
}

# EXPECTED ACTUAL: each line of the first is in the second, in that order; bytes of memory within two per cent
in_order() {
    awk 'function like(a, b,  x, y, n, k, d) {
            if (a == b || a !~ /^memory / || (n = split(a, x, " ")) != split(b, y, " ")) return a == b
            for (k = 1; k <= n; k++) {
                d = x[k] - y[k]
                if (x[k] != y[k] && (x[k] !~ /^[0-9]+[.]?[0-9]*$/ || d > 0.02 * x[k] || -d > 0.02 * x[k])) return 0
            }
            return 1
        }
        BEGIN { i = n = 0 } FILENAME == ARGV[1] { line[n++] = $0; next } i < n && like(line[i], $0) { i++ }
        END { if (i < n) { print "not said: " line[i]; exit 1 } }' "$1" "$2"
}

# PAGE LINES: runs it; at least so many lines are compared
page() {
    local name=$1 least=$2 i=1 compared=0 cmd
    rm -rf "${T:?}/blocks" "${T:?}/$name"
    mkdir -p "$T/blocks" "$T/$name"
    split_page "$docs/$1" "$T/blocks"
    cd "$T/$name" || exit 1
    seq -f 'Line %g of a text that is not very surprising, and long enough.' 1 600 >notes.txt
    cp "$IMECE_SOURCE/examples/100-blocks.json" .
    while [ -f "$T/blocks/$i.cmd" ]; do
        cmd=$(cat "$T/blocks/$i.cmd")
        bash -c "$cmd" >"$T/out" 2>&1 </dev/null
        code=$?
        same <"$T/blocks/$i.say" >"$T/want"
        same <"$T/out" >"$T/got"
        compared=$((compared + $(wc -l <"$T/want")))
        if [ $code != 0 ]; then
            fail "$name: $cmd" "exit code $code"
            show out
        elif in_order "$T/want" "$T/got" >"$T/err"; then
            ok "$name: $cmd"
        else
            fail "$name: $cmd" "$(cat "$T/err")"
            show got
        fi
        i=$((i + 1))
    done
    check "$name: $compared lines compared, at least $least" test "$compared" -ge "$least"
    grep -o '([^()]*\.svg)' "$docs/$name" | tr -d '()' | while read -r svg; do
        [ -f "$docs/$(dirname "$name")/$svg" ] || echo "$svg"
    done >"$T/missing"
    check "$name: its pictures are there" test ! -s "$T/missing"
}

# RUN: the bytes that each rank touched of weights, gradients, optimizer and activations are within two per cent and two pages of those predicted
as_predicted() {
    grep '"event": "memory"' "$1/metrics.jsonl" | sed 's/.*"predicted": {\(.*\)}, "measured": {\(.*\)}}/\1 | \2/' | sed 's/kv cache/kv/g' | tr -d '",:' | awk '
        { for (half = i = 1; i < NF; i += 2) { if ($i == "|") { half = 2; i++ } of[half, $i] = $(i + 1) }
          for (c = split("weights gradients optimizer activations", name, " "); c; c--) {
              p = of[1, name[c]]; d = of[2, name[c]] - p; n++
              if (!(p > 0) || d > 0.02 * p + 8192 || -d > 0.02 * p + 8192) { print name[c], p, d; bad = 1 } } }
        END { exit bad || n < 4 }'
}

# A B: as many losses, each within 1e-5
near() {
    paste <(grep -o '"loss": [0-9.]*' "$1/metrics.jsonl") <(grep -o '"loss": [0-9.]*' "$2/metrics.jsonl") | tr -d '"a-z:' |
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || !(d <= 1e-5 * $1)) { print "line " NR ": " $0; bad = 1 } } END { exit bad || !NR }'
}

# RUN -> bytes of activations that its rank 0 touched
activations() { grep '"event": "memory", "rank": 0,' "$1/metrics.jsonl" | sed 's/.*"activations": \([0-9]*\).*/\1/'; }

page examples/gpipe.md 9
check "gpipe: the losses are one rank's" near one gpipe
page examples/1f1b.md 9
for run in gpipe 1f1b; do check "$run: memory is as predicted" as_predicted $run; done
check "1f1b keeps less than three fifths of GPipe's activations" test $((5 * $(activations 1f1b))) -lt $((3 * $(activations gpipe)))
page examples/100-blocks.md 12
check "100 blocks: the losses are one rank's" near one ten
page examples/hybrid.md 12
check "hybrid: memory is as predicted" as_predicted hybrid
page parallelism.md 20
sed -n '/^```/,/^```/p' "$docs/parallelism.md" >"$T/en"
sed -n '/^```/,/^```/p' "$docs/parallelism.tr.md" >"$T/tr"
check "parallelism: commands and figures are the same in both languages" cmp "$T/en" "$T/tr"
finish
