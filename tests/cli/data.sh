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

if [ "$(id -u)" = 0 ] && mkdir small && mount -t tmpfs -o size=64k tmpfs small 2>/dev/null; then
    expect "build: disk full" 1 'No space left on device' -- sh -c "seq 1 60000 | '$IMECE' data build - --out small/x"
    check "disk full: nothing stays" sh -c '! ls small/x* 2>/dev/null'
    umount small
else
    skip "build: disk full" "needs root and mount"
fi
finish
