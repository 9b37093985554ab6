# make install: what lies where, what the shared library shows, and programs built against it.
. "$(dirname "$0")/lib.sh"
if [ -n "$IMECE_SANITIZE" ]; then
    skip "installed library" "a sanitized build makes no shared library"
    finish
fi
P="$T/prefix"
check "cmake --install" cmake --install "$IMECE_BUILD" --prefix "$P" || finish
for file in bin/imece include/imece.h share/imece/models/gpt2.json share/man/man1/imece.1 share/bash-completion/completions/imece; do
    check "installed: $file" test -s "$P/$file"
done
lib=$(dirname "$(find "$P" -name libimece.a)")
check "installed: libimece.a, libimece.so, imece.pc" test -s "$lib/libimece.a" -a -s "$lib/libimece.so" -a -s "$lib/pkgconfig/imece.pc"
nm -D --defined-only "$lib/libimece.so" >"$T/symbols"
check "the shared library shows im_ names" grep -q ' T im_' "$T/symbols"
check "and no others" sh -c "! grep -vE ' im_' '$T/symbols'"

expect "the installed program runs" 0 '^imece [0-9]' -- "$P/bin/imece" --version
if [ -d "$IMECE_SOURCE/examples" ]; then
    export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib"
    flags=$(pkg-config --cflags --libs imece)
    for source in "$IMECE_SOURCE"/examples/*.c; do
        [ -e "$source" ] || continue
        name=$(basename "$source" .c)
        # shellcheck disable=SC2086
        check "example $name builds against the installed library" ${CC:-cc} -std=gnu17 -Wall -Wextra -Werror "$source" -o "$T/$name" $flags || continue
        check "example $name is short" test "$(wc -l <"$source")" -le 60
        printf 'the quick brown fox jumps over the lazy dog\n%.0s' $(seq 400) >"$T/text.txt"
        expect "example $name runs" 0 'validation: [0-9.]+ bits per byte over [1-9]' -- sh -c "cd '$T' && './$name' text.txt '$T/$name-run' 8"
    done
fi
finish
