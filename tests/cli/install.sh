# make install: what lies where, what the shared library shows, and that C and C++ programs find it.
. "$(dirname "$0")/lib.sh"
if [ -n "$IMECE_SANITIZE" ]; then
    skip "installed library" "a sanitized build makes no shared library"
    finish
fi
P="$T/prefix"
check "cmake --install" cmake --install "$IMECE_BUILD" --prefix "$P" || finish
for file in bin/imece include/imece.h share/imece/models/gpt2.json share/man/man1/imece.1 share/bash-completion/completions/imece \
    share/doc/imece/README.md share/doc/imece/docs/api.md share/doc/imece/docs/examples/mlp.md share/doc/imece/examples/mlp.c \
    share/doc/imece/examples/example.h share/doc/imece/examples/zero_table1.csv; do
    check "installed: $file" test -s "$P/$file"
done
lib=$(dirname "$(find "$P" -name libimece.a)")
check "installed: libimece.a, libimece.so, imece.pc" test -s "$lib/libimece.a" -a -s "$lib/libimece.so" -a -s "$lib/pkgconfig/imece.pc"
nm -D --defined-only "$lib/libimece.so" >"$T/symbols"
check "the shared library shows im_ names" grep -q ' T im_' "$T/symbols"
check "and no others" sh -c "! grep -vE ' im_' '$T/symbols'"
expect "the installed program runs" 0 '^imece [0-9]' -- "$P/bin/imece" --version

# the man page renders, the completion is bash and completes commands
if command -v man >/dev/null; then
    expect "the man page renders" 0 'imece' 'train' -- sh -c "man -l '$P/share/man/man1/imece.1' | cat"
fi
cat >"$T/complete.sh" <<'END'
. "$1"
COMP_WORDS=(imece tra) COMP_CWORD=1 COMP_LINE='imece tra' COMP_POINT=9
eval "$(complete -p imece | sed -n 's/.*-F \([^ ]*\).*/\1/p')" imece tra imece
printf '%s\n' "${COMPREPLY[@]}"
END
expect "bash completes a command" 0 '^train *$' -- bash "$T/complete.sh" "$P/share/bash-completion/completions/imece"

# every name that the header declares is in the library
export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib"
flags=$(pkg-config --cflags --libs imece)
sed -e 's,/\*.*\*/,,' "$P/include/imece.h" | grep -oE '^[a-z].*\b(im_[a-z0-9_]+)\(' | grep -v '^typedef' | grep -oE 'im_[a-z0-9_]+\($' | tr -d '(' | sort -u >"$T/declared"
check "the header declares some" test "$(wc -l <"$T/declared")" -gt 60
awk '{ print $3 }' "$T/symbols" | sort -u >"$T/defined"
check "what it declares is there" sh -c "comm -23 '$T/declared' '$T/defined' >'$T/absent'; cat '$T/absent'; ! test -s '$T/absent'"

cat >"$T/plus.cc" <<'END'
#include <imece.h>
#include <cstdio>
#include <vector>
static im_status sum(im_rank *rank, void *arg)
{
    const int64_t shape[] = {3};
    std::vector<float> values(3, 1.0f);
    im_tensor *t = nullptr;
    im_status status = im_tensor_create(rank, IM_F32, 1, shape, &t);
    if (!status)
        status = im_tensor_write(t, values.data());
    if (!status)
        status = im_group_all_reduce(im_rank_world(rank), t, t, IM_SUM);
    if (!status)
        status = im_tensor_read(t, values.data());
    if (!status && im_rank_number(rank) == 0)
        *static_cast<float *>(arg) = values[2];
    return status;
}
int main()
{
    im_context *ctx = nullptr;
    im_ranks_config config = im_ranks_config();
    float got = 0;
    config.ranks = 3;
    if (im_context_create(&ctx) != IM_OK || im_ranks_run(ctx, &config, sum, &got) != IM_OK)
        return 1;
    im_context_destroy(ctx);
    std::printf("sum %g\n", got);
    return got == 3 ? 0 : 1;
}
END
for cxx in c++ clang++; do
    command -v $cxx >/dev/null || continue
    # shellcheck disable=SC2086
    check "a C++ program includes imece.h ($cxx)" $cxx -std=c++11 -Wall -Wextra -Wpedantic -Werror "$T/plus.cc" -o "$T/plus" $flags || continue
    expect "and runs ($cxx)" 0 '^sum 3$' -- "$T/plus"
done
finish
