# The commands of README.md and README.tr.md run as printed, except that training takes steps instead of minutes.
. "$(dirname "$0")/lib.sh"
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
mkdir "$T/bin"
ln -s "$IMECE" "$T/bin/imece"
PATH=$T/bin:$PATH

# a sanitized build computes with plain products: a smaller model there
small=
[ -z "$IMECE_SANITIZE" ] || small='s/llama-bytes-small/llama-bytes-tiny/; s/imece train/imece train --seq-len 32 --micro-batch 2/'

# README -> its lines of shell that begin with imece or end in it; what needs a downloaded model is left out
commands() {
    awk '/^```sh/ { on = 1; next } /^```/ { on = 0 } on && /(^|\| )imece / && !/SmolLM2/' "$1" |
        sed -e 's/ *#.*//' -e 's/--minutes 10/--steps 3/' -e 's/--minutes 20/--steps 5/' -e 's/--steps 20/--steps 3/' -e "$small"
}

for readme in README.md README.tr.md; do
    mkdir "$T/$readme"
    cd "$T/$readme" || exit 1
    for text in notes.txt notlar.txt; do seq -f 'Line %g of a text that is long enough.' 1 600 >$text; done
    commands "$IMECE_SOURCE/$readme" >commands
    check "$readme: has commands" test "$(wc -l <commands)" -ge 7
    while read -r line <&3; do
        expect "$readme: $line" 0 -- sh -c "$line"
    done 3<commands
    # the name of a checkpoint is in latest, as the text says
    check "$readme: latest names a checkpoint" sh -c 'for c in */checkpoints; do test -f "$c/$(cat "$c/latest")/model.safetensors" || exit 1; done'
done
finish
