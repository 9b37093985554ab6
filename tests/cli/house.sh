# The house check itself: each bad sample must be found, and clean code must pass.
. "$(dirname "$0")/lib.sh"
house="$IMECE_SOURCE/tools/check-house.py"

fresh() { # an orderly little tree
    rm -rf "$T/tree"
    mkdir -p "$T/tree/src/base" "$T/tree/src/tensor/cpu" "$T/tree/src/model" "$T/tree/src/plan" "$T/tree/src/cli" "$T/tree/include"
    echo 'int im_x(void);' >"$T/tree/src/base/base.h"
    echo '#include "base/base.h"' >"$T/tree/src/model/model.h"
    echo '#include "model/model.h"' >"$T/tree/src/plan/plan.h"
    printf '#include "plan/plan.h"\n#include <stdio.h>\n#include <stdlib.h>\nint main(void) { static int n; printf("%%d", n); exit(0); }\n' >"$T/tree/src/cli/main.c"
}

bad() { # NAME REGEX FILE SOURCE
    fresh
    printf '%b' "$4" >"$T/tree/$3"
    expect "finds: $1" 1 "$2" -- python3 "$house" --root "$T/tree"
}

good() { # NAME FILE SOURCE
    fresh
    printf '%b' "$3" >"$T/tree/$2"
    expect "allows: $1" 0 'in order' -- python3 "$house" --root "$T/tree"
}

fresh
expect "an orderly tree passes" 0 'in order' -- python3 "$house" --root "$T/tree"
bad "include upward" 'base/a.c:1: .*points upward' src/base/a.c '#include "plan/plan.h"\n'
bad "include sideways" 'model/a.c:2: .*points sideways' src/model/a.c '\n#include "plan/plan.h"\n'
bad "include without a folder" 'write the path from src/' src/base/a.c '#include "base.h"\n'
bad "include of nothing" 'no such file' src/base/a.c '#include "base/none.h"\n'
bad "dnnl.h outside its folder" 'dnnl.h> shows outside src/tensor/cpu' src/tensor/a.c '#include <dnnl.h>\n'
bad "jansson.h in the model" 'jansson.h> shows outside src/base' src/model/a.c '#include<jansson.h>\n'
bad "an unknown library" 'not known here' src/base/a.c '#include <curl/curl.h>\n'
bad "exit" 'a.c:2: exit\(\) below' src/base/a.c 'void im_f(void) {\n    exit(1);\n}\n'
bad "getenv" 'getenv\(\) below' src/base/a.c 'void im_f(void) { getenv ("X"); }\n'
bad "abort" 'abort\(\) below' src/base/a.c 'void im_f(void) { abort(); }\n'
bad "printf" 'printf\(\) below' src/base/a.c 'void im_f(void) { printf("x"); }\n'
bad "fprintf to stderr" 'stderr below' src/base/a.c 'void im_f(void) { fprintf(stderr, "x"); }\n'
bad "a global" 'a.c:1: a variable that keeps' src/base/a.c 'static int counter;\n'
bad "a global table of pointers" 'a variable that keeps' src/base/a.c 'static const char *names[] = {"a"};\n'
bad "a static local" 'a.c:2: a variable that keeps' src/base/a.c 'int im_f(void) {\n    static char buf[10];\n    return buf[0];\n}\n'
bad "a thread-local" 'a variable that keeps' src/base/a.c '_Thread_local int x;\n'
bad "a folder without a floor" 'has no floor' src/base/../a.c 'int im_f(void);\n'
good "snprintf, fprintf to a file, exit as a word" src/base/a.c '/* exit(1); printf */\nint im_f(FILE *f) { char b[9]; snprintf(b, 9, "exit(1)"); return fprintf(f, "stdout") + x->exit(3); }\n'
good "constant tables and static functions" src/base/a.c 'static const char *const names[] = {"a"};\nstatic const int n[2] = {1, 2};\nstatic int f(void);\nstatic inline int g(void) { return 1; }\nstatic const struct { int a; } t[] = {{1}};\n'

# compiled objects
object() { # NAME REGEX CODE WANT
    fresh
    mkdir -p "$T/tree/build/CMakeFiles/im_base.dir/src/base"
    printf '#include <stdio.h>\n#include <stdlib.h>\n' >"$T/tree/src/base/o.c"
    printf '%b' "$3" >>"$T/tree/src/base/o.c"
    ${CC:-cc} -fPIC -O2 -c "$T/tree/src/base/o.c" -o "$T/tree/build/CMakeFiles/im_base.dir/src/base/o.c.o" || return
    expect "object: $1" "$4" "$2" -- python3 "$house" --root "$T/tree" --build "$T/tree/build"
}
object "a global made by a macro" 'counter .* keeps its value' '#define G(x) int im_##x\nG(counter) = 3;\nint im_f(void) { return ++im_counter; }\n' 1
object "printf behind a macro" 'uses (printf|puts|putchar)' '#define SAY pri##ntf\nvoid im_f(void) { SAY("%%d", 3); }\n' 1
object "a name without im_" 'exports helper' 'int helper(void) { return 1; }\n' 1
object "tables of pointers are constant" 'in order' 'static const char *const im_names[] = {"a", "b"};\nconst char *im_f(int i) { return im_names[i]; }\n' 0

expect "this tree is in order" 0 'in order' -- python3 "$house" --root "$IMECE_SOURCE" --quiet
finish
