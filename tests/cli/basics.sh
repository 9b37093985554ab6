# What every command shares: help, version, unknown words, exit codes.
. "$(dirname "$0")/lib.sh"

expect "--help" 0 '^usage: imece' '^  train ' '^  generate ' 'Exit codes: 0 done' -- "$IMECE" --help
expect "no command: usage, exit 2" 2 '^usage: imece' -- "$IMECE"
check "no command: nothing on stdout" test ! -s "$T/out"
expect "--version" 0 '^imece [0-9]+\.[0-9]+\.[0-9]+$' 'jansson [0-9]' 'libyaml [0-9]' 'xxHash [0-9]' 'oneDNN' 'instruction sets' 'used on this machine: up to' 'devices: +cpu' 'communicators:' -- "$IMECE" --version
expect "unknown command, near" 2 ' error 0 cli unknown command "trian"; did you mean imece train\?' -- "$IMECE" trian
expect "help COMMAND" 0 '^usage: imece data build' '--valid-fraction' -- "$IMECE" help data build
expect "help alone" 0 '^usage: imece' -- "$IMECE" help
expect "help of nothing there" 2 'unknown command "trian"; did you mean imece train\?' -- "$IMECE" help trian
expect "unknown command, far" 2 'unknown command "xyzzyxyzzy"; imece --help lists them' -- "$IMECE" xyzzyxyzzy
expect "unknown option before the command" 2 'unknown option --hlep' -- "$IMECE" --hlep
expect "log line: time level rank part message" 2 '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3} error 0 cli ' -- "$IMECE" trian
check "errors go to stderr alone" test ! -s "$T/out"
expect "stdout that takes nothing" 1 'cannot write to standard output' -- sh -c "'$IMECE' --help >/dev/full"

# every command and sub-command: --help works, an unknown option is refused with exit 2
walk() { # words so far
    local words="$*" name
    expect "help: $words" 0 "^usage: imece $words" -- "$IMECE" "$@" --help
    local subs
    subs=$("$IMECE" "$@" --help | sed -n '/^commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p')
    if [ -n "$subs" ]; then
        for name in $subs; do walk "$@" "$name"; done
    else
        expect "unknown option: $words" 2 'unknown option --nonsense-xyz' -- "$IMECE" "$@" --nonsense-xyz
    fi
}
for name in $("$IMECE" --help | sed -n '/^commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'); do walk "$name"; done

# pages made from the same tables
"$IMECE" man >"$T/imece.1"
check "man page names every command" sh -c "for c in \$('$IMECE' --help | sed -n '/^commands:/,/^\$/s/^  \\([a-z][a-z-]*\\) .*/\\1/p'); do grep -q \"^\\.SS \$c\" '$T/imece.1' || exit 1; done"
"$IMECE" completion >"$T/imece.bash"
check "completion is bash" bash -n "$T/imece.bash"
cat >"$T/complete.sh" <<END
. "$T/imece.bash"
complete_words() { COMP_WORDS=("\$@"); COMP_CWORD=\$((\$# - 1)); _imece; echo "\${COMPREPLY[*]}"; }
[ "\$(complete_words imece tra)" = train ] || exit 1
complete_words imece train --sche | grep -qx -- --schedule || exit 2
complete_words imece train --schedule co | grep -q cosine || exit 3
complete_words imece fabric env li | grep -qx lint || exit 4
complete_words imece fabric env lint --format sh | grep -qx shell || exit 5
END
check "completion completes" bash "$T/complete.sh"
finish
