#!/bin/sh
# run.sh [OPTION...]: imece beside PyTorch on this machine (`make bench-peers`). The options go to bench_peers.py.
# IMECE_BUILD is the build directory (default build/).
set -eu
export PYTHONDONTWRITEBYTECODE=1
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=${IMECE_BUILD:-$ROOT/build}
. "$ROOT/tests/peers/venv.sh"
cmake --build "$BUILD" --target imece >/dev/null
exec "$PYTHON" "$ROOT/bench/peers/bench_peers.py" --build "$BUILD" "$@"
