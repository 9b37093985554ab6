#!/bin/sh
# make demo: trains a tokenizer and a small model on Turkish and English text, shows what it learned, lets it write, and goes on with it on four ranks.
#
#   tools/demo.sh [MINUTES]     environment: IMECE (the program), DEMO (where everything goes), MINUTES (of training; 3),
#                               PAGES and FORTUNES (directories with text of these kinds), STEPS (instead of minutes)
#
# The text is Debian's: manual pages in Turkish (manpages-tr), their markup removed, and fortunes.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
imece=${IMECE:-build/imece}
demo=${DEMO:-build/demo}
minutes=${1:-${MINUTES:-3}}
length="--minutes $minutes" span="$minutes min"
[ -z "${STEPS:-}" ] || length="--steps $STEPS" span="$STEPS steps"
model=llama-bpe-small
vocabulary=4096
pages=${PAGES:-/usr/share/man/tr}
fortunes=${FORTUNES:-/usr/share/games/fortunes}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*"; }
die() { echo "demo: $*" >&2; exit 1; }
field() { sed -n "s/.*\"$2\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$1"; } # one value of a flat JSON object

[ -x "$imece" ] || die "$imece is not there: make builds it"

# An image may leave manual pages out when it installs packages (dpkg's path-exclude): then they come from the package itself.
if ! find "$pages" -type f -name '*.gz' 2>/dev/null | grep -q . || [ ! -d "$fortunes" ]; then
    mkdir -p "$demo/packages"
    (cd "$demo/packages" && rm -rf ./* && apt-get download -q manpages-tr fortunes >/dev/null && for f in *.deb; do dpkg-deb -x "$f" .; done) ||
        die "the text is not installed, and could not be fetched: it is in Debian's packages manpages-tr and fortunes (make demo installs them)"
    pages=$demo/packages/usr/share/man/tr
    fortunes=$demo/packages/usr/share/games/fortunes
fi

# ---- the text: one document a manual page, one a fortune; a line <|end|> ends each --------------------
write_text() {
    find "$pages" -type f -name '*.gz' | LC_ALL=C sort | while read -r page; do
        zcat "$page" | awk -f "$here/man-text.awk"
        echo '<|end|>'
    done
    for file in "$fortunes"/*; do
        case $file in *.dat | */ascii-art | */translate-me) continue ;; esac
        [ -f "$file" ] && [ ! -L "$file" ] || continue
        sed 's/^%$/<|end|>/' "$file"
        echo '<|end|>'
    done
}

# "name  value  bar": 5 columns of bar a bit
row() { awk -v name="$1" -v x="$2" 'BEGIN { n = int(5 * x + 0.5); while (n-- > 0) bar = bar "#"; printf "  %-32s %5.2f  %s\n", name, x, bar }'; }

# ---- the checkpoint goes on twice, for the same few steps: on one rank, and on four that are threads of one process --------

# RUN OPTION...: a copy of the run goes on; what it says is in RUN.log
go_on() {
    copy=$1
    shift
    rm -rf "$copy"
    cp -r "$demo/run" "$copy"
    "$imece" -q train --resume "$copy" --minutes 0 --steps "$end" --micro-batch 2 --schedule constant --lr 1e-3 --eval-batches 1 "$@" >"$copy.log" 2>&1 ||
        { cat "$copy.log" >&2; exit 1; }
    sed -n 's/.*"step": \([0-9]*\),.*"loss": \([0-9.]*\),.*/\1 \2/p' "$copy/metrics.jsonl" | tail -n $more >"$copy.losses"
}

split() {
    more=5 end=$((${checkpoint##*step-} + 5))
    go_on "$demo/one"
    go_on "$demo/four" --tp 2 --pp 2
    printf '             one rank  tp 2 x pp 2  apart\n'
    paste -d' ' "$demo/one.losses" "$demo/four.losses" |
        awk '{ d = $2 - $4; printf "  step %-6d %8.5f     %8.5f  %.0e\n", $1, $2, $4, (d < 0 ? -d : d) / $2 }'
    echo "  what each rank did in the last step, planned above measured: $demo/four/pipeline.svg"
}

say "1. Text"
mkdir -p "$demo"
LC_ALL=C.UTF-8
export LC_ALL
write_text > "$demo/text.txt"
ls -l "$demo/text.txt" | awk -v file="$demo/text.txt" '{ printf "%s: %.1f MB\n", file, $5 / 1e6 }'

say "2. A tokenizer for it, and its tokens"
"$imece" tokenizer train "$demo/text.txt" --separator '<|end|>' --vocab-size $vocabulary --out "$demo/tok" --force
build() { "$imece" data build "$demo/text.txt" --separator '<|end|>' --valid-fraction 0.03 --force "$@"; }
build --tokenizer "$demo/tok" --out "$demo/text"
build --out "$demo/bytes" >/dev/null # the same documents, a byte a token: what counting is measured on

say "3. Training $model for $span (Ctrl-C stops early and saves)"
rm -rf "$demo/run"
precision=fp32
case $("$imece" --version | sed -n 's/.*used on this machine: up to //p') in avx512-bf16 | amx) precision=bf16 ;; esac # faster only there
status=0
# shellcheck disable=SC2086
"$imece" train --model $model --data "$demo/text-train" --valid "$demo/text-valid" --eval-batches 0 --tokenizer "$demo/tok" --out "$demo/run" \
    $length --seq-len 128 --micro-batch 8 --lr 3e-3 --warmup 60 --schedule linear --precision $precision --json > "$demo/summary.json" || status=$?
[ $status = 0 ] || [ $status = 4 ] || exit $status

say "4. What it learned: bits per byte on text it has not seen (lower is better)"
"$imece" data ngram "$demo/bytes" --json > "$demo/ngram.json"
before=$(field "$demo/summary.json" first_bits_per_byte)
after=$(field "$demo/summary.json" last_bits_per_byte)
bigram=$(field "$demo/ngram.json" bigram)
trigram=$(field "$demo/ngram.json" trigram)
row "before training" "$before" # of 4,096 tokens any: log2(4096) bits, over the bytes of one
row "counting pairs (bigram)" "$bigram"
row "counting triples (trigram)" "$trigram"
row "this model, after $span" "$after"

# steps tell nats a token; bytes a token are those of the training text
per=$(awk -v bytes="$(field "$demo/text-train.json" text_bytes)" -v tokens="$(field "$demo/text-train.json" tokens)" 'BEGIN { print bytes / tokens }')
awk -v bigram="$bigram" -v trigram="$trigram" -v per="$per" -v title="$model: $span of Turkish and English" -f "$here/curve.awk" "$demo/run/metrics.jsonl" > "$demo/curve.svg"

say "5. What it writes"
for prompt in "AÇIKLAMA

" "Bu komut" "The "; do
    printf '%s' "$prompt"
    "$imece" -q generate --model "$demo/run" --prompt "$prompt" --max-tokens 80 --temperature 0.7 --top-p 0.95 --seed 3
    printf '\n%s\n' "--------"
done

checkpoint=$(field "$demo/summary.json" checkpoint)
say "6. It goes on from $checkpoint, on one rank and on four"
split

say "7. Where it is, and what to try next"
cat <<EOF
  text            $demo/text.txt
  tokenizer       $demo/tok (Transformers opens it)
  token files     $demo/text-train.bin, .idx; $demo/text-valid.bin, .idx
  run             $demo/run (metrics.jsonl: a line a step)
  checkpoint      $checkpoint (Transformers opens it)
  curve           $demo/curve.svg
  on four ranks   $demo/four (pipeline.svg: the picture of a step)

  $imece generate --model $demo/run --prompt "Linux, "
  $imece train --resume $demo/run --minutes $(awk -v m="$minutes" 'BEGIN { print 2 * m }')
  $imece tokenizer train YOUR.txt --vocab-size $vocabulary --out mine-tok
  $imece data build YOUR.txt --tokenizer mine-tok --out mine
  $imece train --model $model --tokenizer mine-tok --data mine-train --valid mine-valid --minutes 10
EOF
