#!/bin/sh
# run.sh [OPTION...]: layouts of imece beside its one rank and beside PyTorch and DeepSpeed (`make bench-layout`). The options go to
# bench_layout.py. IMECE_BUILD is the build directory (default build/).
set -eu
export PYTHONDONTWRITEBYTECODE=1 DS_ACCELERATOR=cpu
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=${IMECE_BUILD:-$ROOT/build}
. "$ROOT/tests/peers/venv.sh"
OVER="$ROOT/.venv-layout"
if ! cmp -s "$ROOT/bench/layout/requirements.txt" "$OVER/.made-from"; then
    echo "bench: installing DeepSpeed into $OVER (once)"
    "$PYTHON" -m venv "$OVER"
    site=$("$OVER/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    "$PYTHON" -c 'import site; print(site.getsitepackages()[0])' >"$site/peers.pth"
    "$OVER/bin/pip" install --quiet --disable-pip-version-check wheel
    "$OVER/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation --no-deps -r "$ROOT/bench/layout/requirements.txt"
    cp "$ROOT/bench/layout/requirements.txt" "$OVER/.made-from"
fi
cmake --build "$BUILD" --target imece >/dev/null
exec "$OVER/bin/python" "$ROOT/bench/layout/bench_layout.py" --build "$BUILD" "$@"
