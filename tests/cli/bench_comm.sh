# imece bench comm: every operation, right results, on one rank and on more ranks than most machines have cores.
. "$(dirname "$0")/lib.sh"

expect "bench comm: two ranks" 0 '^2 ranks \(threads\)' '^all_reduce +8 ' '^sendrecv +2048 ' -- "$IMECE" bench comm --ranks 2 --max 2Ki --min 8
expect "bench comm: five ranks, JSON" 0 '"backend":"threads","ranks":5' -- "$IMECE" bench comm --ranks 5 --min 4 --max 64Ki --json
check "bench comm: it is JSON, and right" python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
ops = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "sendrecv"]
assert [r["op"] for r in d["rows"]] == [o for o in ops for _ in range(8)], d
assert all(r["right"] and r["us"] > 0 and r["algbw"] > 0 and r["ranks"] == 5 for r in d["rows"])
r = d["rows"][7]
assert r["bytes"] == 65536 and abs(r["busbw"] / r["algbw"] - 8 / 5) < 1e-3' "$T/out"
expect "bench comm: one operation" 0 '^broadcast +16 ' -- "$IMECE" bench comm --op broadcast --min 16 --max 16
expect_not "bench comm: and no other" 0 '^all_reduce' -- "$IMECE" bench comm --op broadcast --min 16 --max 16
expect "bench comm: self" 0 '^1 ranks \(self\)' -- "$IMECE" bench comm --backend self --ranks 1 --max 1Ki
expect "bench comm: self has one rank" 2 'one rank, not 2' -- "$IMECE" bench comm --backend self --ranks 2
expect "bench comm: sizes" 2 'multiples of 4' -- "$IMECE" bench comm --min 6
finish
