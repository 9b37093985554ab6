#!/usr/bin/env bash
# A short piece of make soak-layout, always the same one; and the table of what is refused against the code.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
check "each reason to refuse has its row" python3 "$IMECE_SOURCE/tests/soak/refusals.py"
expect "layouts at random" 0 ' right .* 0 wrong, 0 failed, 0 hang' -- python3 "$IMECE_SOURCE/tests/soak/soak_layout.py" --imece "$IMECE" --seed 1 --count 10
finish
