#!/bin/sh
# run.sh [OPTION...]: compares build/imece with Transformers and PyTorch (`make check-peers`). The options go to
# check_peers.py. IMECE_BUILD is the build directory (default build/).
set -eu
export PYTHONDONTWRITEBYTECODE=1
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=${IMECE_BUILD:-$ROOT/build}
. "$ROOT/tests/peers/venv.sh"
cmake --build "$BUILD" --target imece peer_logits >/dev/null
"$PYTHON" "$ROOT/tests/peers/check_tokenizers.py" --build "$BUILD"
"$PYTHON" "$ROOT/tests/peers/check_megatron.py" --build "$BUILD"
exec "$PYTHON" "$ROOT/tests/peers/check_peers.py" --build "$BUILD" "$@"
