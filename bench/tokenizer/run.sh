#!/bin/sh
# run.sh [OPTION...]: imece tokenizer beside Hugging Face's library on this machine (`make bench-tokenizer`). The options go to
# bench_tokenizer.py. IMECE_BUILD is the build directory (default build/).
set -eu
export PYTHONDONTWRITEBYTECODE=1
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=${IMECE_BUILD:-$ROOT/build}
. "$ROOT/tests/peers/venv.sh"
exec "$PYTHON" "$ROOT/bench/tokenizer/bench_tokenizer.py" --build "$BUILD" "$@"
