# imece data: build, info, show, ngram.
. "$(dirname "$0")/lib.sh"
cd "$T" || exit 1
case $IMECE in /*) ;; *) IMECE=$OLDPWD/$IMECE ;; esac

mkdir -p tree/b tree/.git
printf 'birinci\n' >tree/a.txt
printf 'ikinci\n' >tree/b/c.txt
printf 'gizli\n' >tree/.git/x
printf '%%\n' >tree/z.txt
seq -f 'line %g' 1 2000 >lines.txt

expect "build: a directory in the order of names, hidden names left out" 0 '^d-train: 20 tokens in 3 documents$' -- "$IMECE" data build tree --out d --valid-fraction 0
expect "show: the text of a document" 0 '^ikinci$' -- "$IMECE" data show d-train --document 1
expect "show: ids" 0 '^98 105 114 105 110 99 105 10 256$' -- "$IMECE" data show d-train --ids
expect "show: no such document" 2 'd-train.idx: no document 3; there are 3' -- "$IMECE" data show d-train --document 3
expect "build: no validation file without validation" 0 -- test ! -e d-valid.idx
expect "build: lines, validation by document" 0 '^l-train: .* in 1[0-9]* documents' '^l-valid: .* documents' -- "$IMECE" data build lines.txt --split lines --out l
expect "info: both files of a name" 0 'l-train' 'l-valid' 'id type +uint16' 'ids +[0-9]+ to 256' -- "$IMECE" data info l
expect "info --json" 0 '"documents": [0-9]+, "dtype": "uint16"' -- "$IMECE" data info l-train --json
expect "build: exists" 1 'l-train.idx exists: .*--force' -- "$IMECE" data build lines.txt --out l
expect "build --force, standard input, one document divided by position" 0 'last 5 % of the input' -- sh -c "'$IMECE' data build - --out l --force <lines.txt"
expect "build --force without validation removes the old validation file" 0 -- sh -c "'$IMECE' data build lines.txt --out l --force --valid-fraction 0 && test ! -e l-valid.idx"
expect "build: separator" 0 '^s-train: .* in 4 documents' -- sh -c "printf 'a\n%%\nb\n%%\n%%\nc\n50%%\n%%\nd' | '$IMECE' data build - --separator % --out s --valid-fraction 0"
expect "build: the parent of the name is made" 0 -- "$IMECE" data build lines.txt --out new/dir/l
expect "build: no temporary files stay" 0 -- sh -c '! ls ./*.tmp new/dir/*.tmp 2>/dev/null'
expect "ngram: trigrams know these lines better than bigrams, bigrams than letters" 0 '"trigram": [01]\.' -- "$IMECE" data ngram new/dir/l --json

expect "build --ids" 0 '^i-train: 6 tokens in 2 documents' -- sh -c "printf '1 2 128000\n5\n' | '$IMECE' data build - --ids --eod 2 --out i --valid-fraction 0"
expect "show: ids of another tokenizer" 0 '^1 2 128000 2$' -- "$IMECE" data show i-train
expect "build --ids: text" 1 'a.txt: line 1: byte 0x62' -- "$IMECE" data build tree/a.txt --ids --out x
expect "build: nothing given" 2 'no text given' -- "$IMECE" data build --out x
expect "build: no --out" 2 '--out NAME is needed' -- "$IMECE" data build lines.txt
expect "build: absent input" 1 'absent.txt: No such file' -- "$IMECE" data build absent.txt --out x
expect "build: empty input" 1 'no text was given' -- "$IMECE" data build /dev/null --out x
expect "build: empty directory" 2 'no files in this directory' -- sh -c "mkdir -p none && '$IMECE' data build none --out x"
expect "build: valid-every 1" 2 'valid-every 1: 2 or more' -- "$IMECE" data build lines.txt --out x --valid-every 1
expect "build: valid-fraction 1" 2 'valid-fraction' -- "$IMECE" data build lines.txt --out x --valid-fraction 1
check "a refused build leaves nothing" sh -c '! ls x* 2>/dev/null'
expect "info: text instead of token files" 1 'imece data build lines.txt --out NAME' -- "$IMECE" data info lines.txt
expect "info: absent" 1 'nowhere.idx: no such file' -- "$IMECE" data info nowhere

"$IMECE" data build lines.txt --split lines --out bad >/dev/null
printf '\377' | dd of=bad-train.idx bs=1 seek=37 conv=notrunc 2>/dev/null
expect "info: a damaged length, with its byte" 1 'bad-train.idx: byte 34: sequence 0 has the length -' -- "$IMECE" data info bad-train
"$IMECE" data build lines.txt --split lines --out bad --force >/dev/null
truncate -s -1 bad-train.bin
expect "info: half an id" 1 'bad-train.bin: [0-9]+ bytes are not a whole number of uint16 ids' -- "$IMECE" data info bad-train
truncate -s -1 bad-train.bin
expect "info: ids missing" 1 'bad-train.bin' -- "$IMECE" data info bad-train
printf 'MMIDIDX' >bad-train.idx
expect "info: cut index" 1 'bad-train.idx: 7 bytes' -- "$IMECE" data info bad-train

# lines of JSON, packed files, workers
seq -f '{"text": "satir %g", "n": 1}' 1 3000 >j.jsonl
gzip -k j.jsonl
expect "jsonl" 0 '^j-train: .* in 3000 documents' -- "$IMECE" data build j.jsonl --out j --valid-fraction 0
expect "jsonl.gz, with several workers: the same files" 0 -- sh -c "'$IMECE' data build j.jsonl.gz --out jz --valid-fraction 0 --workers 3 && cmp j-train.bin jz-train.bin && cmp j-train.idx jz-train.idx"
if command -v zstd >/dev/null; then
    zstd -q j.jsonl
    expect "jsonl.zst in a pipe" 0 -- sh -c "cat j.jsonl.zst | '$IMECE' data build - --format jsonl --out jz --valid-fraction 0 --force && cmp j-train.bin jz-train.bin"
    head -c 2000 j.jsonl.zst >cut.jsonl.zst
    expect "a .zst that ends early" 1 'cut.jsonl.zst: ends early, at byte 2000' -- "$IMECE" data build cut.jsonl.zst --out cut
else
    skip "jsonl.zst" "needs the program zstd"
fi
head -c 3000 j.jsonl.gz >cut.jsonl.gz
expect "a .gz that ends early" 1 'cut.jsonl.gz: ends early, at byte 3000' -- "$IMECE" data build cut.jsonl.gz --out cut
check "files that end early leave nothing" sh -c '! ls cut-* 2>/dev/null'
printf '{"text": "a"}\nnot JSON\n{"body": "b"}\n{"text": "c"}\n' >bad.jsonl
expect "a line that is not JSON: file and line" 1 'bad.jsonl: line 2, column 3: not JSON' -- "$IMECE" data build bad.jsonl --out b --valid-fraction 0
expect "--skip-bad counts" 0 '^b-train: 4 tokens in 2 documents$' '2 lines were left out, the first: bad.jsonl: line 2, column' -- "$IMECE" data build bad.jsonl --out b --valid-fraction 0 --skip-bad
expect "--field" 1 'bad.jsonl: line 1: no key "body"' -- "$IMECE" data build bad.jsonl --field body --out x
expect "--eod is a token, not a word" 2 'eod "end"' -- "$IMECE" data build j.jsonl --eod end --out x
expect "--eod for bytes" 2 'bytes end with 256' -- "$IMECE" data build j.jsonl --eod 7 --out x
expect "--eod none" 0 '^e-train: .* tokens in 3000 documents' -- "$IMECE" data build j.jsonl --eod none --out e --valid-fraction 0
expect "options of a tokenizer without one" 2 '--template is about a tokenizer' -- "$IMECE" data build j.jsonl --template --out x
expect "--ids and --format" 2 '--ids reads ids that are there already' -- "$IMECE" data build j.jsonl --ids --format jsonl --out x

# interrupted: SIGINT ends it, --resume goes on; the same files as a build that was left alone
"$IMECE" data build lines.txt tree j.jsonl --split lines --out whole >/dev/null
mkfifo gate
(cat lines.txt; sleep 60) >gate & feeder=$!
"$IMECE" data build gate --split lines --out pipe >/dev/null 2>pipe.err & builder=$!
while [ ! -s pipe-train.bin.tmp ] && [ -e /proc/$builder ]; do [ -e pipe-train.bin.tmp ] && break; sleep 0.05; done
kill -INT $builder
wait $builder
[ $? = 4 ] && grep -q 'stopped by a signal: no token file was written' pipe.err && ok "SIGINT while a pipe gives nothing: exit 4, nothing written" || fail "SIGINT while a pipe gives nothing" "$(cat pipe.err)"
kill $feeder 2>/dev/null
check "and no token file" sh -c '! ls pipe-train.idx 2>/dev/null'
expect "--resume without an interrupted build begins at the start" 0 'there is no interrupted build' -- "$IMECE" data build lines.txt --out fresh --resume
expect "standard input cannot be resumed" 2 'standard input cannot be gone on with' -- sh -c "'$IMECE' data build - --out x --resume <lines.txt"

# conversations
printf '%s\n' '{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}' '{"prompt": "a", "completion": "b"}' >c.jsonl
expect "chat: plain for bytes, with a mask" 0 '^c-train: .* in 2 documents, the loss of 5 counts' -- "$IMECE" data build c.jsonl --chat auto --out c --valid-fraction 0
expect "show --counted: what the assistant says" 0 '^ 4$' -- sh -c "'$IMECE' data show c-train --counted; echo"
expect "info: the mask" 0 'mask +the loss of 5 tokens counts' 'tokenizer +bytes, 257 ids' -- "$IMECE" data info c-train
expect "chat: a format that bytes do not have" 2 'needs the token <\|im_start\|>' -- "$IMECE" data build c.jsonl --chat chatml --out x

# split, merge, import
expect "split" 0 '^sp-train: ' '^sp-valid: .* documents' -- "$IMECE" data split j-train --valid-every 10 --out sp
expect "merge" 0 '^m: .* in 3000 documents' -- "$IMECE" data merge sp-train sp-valid --out m
expect "merge: files of two kinds" 2 'has a mask and' -- "$IMECE" data merge j-train c-train --out x
expect "merge into itself" 2 'is one of the files' -- "$IMECE" data merge m sp-train --out m --force
printf '\001\000\002\000\003\000' >raw.bin
expect "import: what it is must be said" 1 'neither a .npy file nor a shard of llm.c' -- "$IMECE" data import raw.bin --out r
expect "import raw" 0 '^r: 3 tokens in 2 documents' -- "$IMECE" data import raw.bin --format raw --dtype uint16 --ends 2 --out r
expect "import: --dtype without raw" 2 '--dtype is of --format raw' -- "$IMECE" data import raw.bin --dtype uint16 --out x
python3 - <<'P'
import struct
ids = [50256, 7, 8, 50256, 9]
open("shard.bin", "wb").write(struct.pack("<256i", *([20240520, 1, len(ids)] + [0] * 253)) + struct.pack("<5H", *ids))
P
expect "import a shard of llm.c" 0 '^ll: 5 tokens in 2 documents' -- "$IMECE" data import shard.bin --begins 50256 --out ll

if [ "$(id -u)" = 0 ] && mkdir small && mount -t tmpfs -o size=64k tmpfs small 2>/dev/null; then
    expect "build: disk full" 1 'No space left on device' -- sh -c "seq 1 60000 | '$IMECE' data build - --out small/x"
    check "disk full: nothing stays" sh -c '! ls small/x* 2>/dev/null'
    umount small
else
    skip "build: disk full" "needs root and mount"
fi
finish
