#!/usr/bin/env python3
"""check_trace.py TRACE --ranks N [--steps N] [--instruction WORD ...]: is a trace.json sound? Prints what it has; exit code 1 with the first fault.

JSON; every slice has a name, a time and a length that is not negative; slices of a row lie beside or within each other; every arrow has one beginning, in
a SEND, and one end, in a RECV of another rank, not before it; every SEND and RECV has its arrow; every rank has the same steps, and its slices that
belong to an instruction lie within the step that they name; each WORD begins an instruction on some rank.
"""
import argparse
import collections
import json
import sys


def need(good, text):
    if not good:
        print("check_trace.py: " + text)
        sys.exit(1)


def end_of(e):
    return e["ts"] + e["dur"]


def rows_nest(rows):
    for row, slices in rows.items():
        open_slices = []
        for e in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            while open_slices and open_slices[-1]["end"] <= e["ts"]:
                open_slices.pop()
            need(not open_slices or e["end"] <= open_slices[-1]["end"], "row %s: %s and %s overlap" % (row, open_slices and open_slices[-1], e))
            open_slices.append(e)


def slice_at(slices, ns, word):
    """The slice of an instruction that begins with `word` at this time."""
    inside = [e for e in slices if e["start"] <= ns <= e["end"] and e["args"].get("instruction", "").startswith(word)]
    need(inside, "an arrow at %d ns lies in no %s" % (ns, word))
    return inside[-1]


def ns_of(us):
    return round(us * 1000)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("trace")
    p.add_argument("--ranks", type=int, required=True)
    p.add_argument("--steps", type=int)
    p.add_argument("--instruction", action="append", default=[])
    a = p.parse_args()
    with open(a.trace) as f:
        events = json.load(f)["traceEvents"]
    rows, steps, arrows = collections.defaultdict(list), collections.defaultdict(dict), collections.defaultdict(dict)
    for e in events:
        need(e["ph"] in "MXsf", "an event of the unknown kind %s" % e["ph"])
        if e["ph"] == "X":
            need(e["name"] and e["dur"] >= 0 and e["ts"] >= 0, "a slice without a name, or with a length below 0: %s" % e)
            e["start"], e["end"] = ns_of(e["ts"]), ns_of(e["ts"]) + ns_of(e["dur"])
            e["ts"], e["dur"] = e["start"], e["end"] - e["start"]
            rows[e["pid"], e["tid"]].append(e)
            if e["name"] == "step":
                steps[e["pid"]][e["args"]["step"]] = e
        elif e["ph"] in "sf":
            need(e["ph"] not in arrows[e["id"]], "arrow %s has two ends of kind %s" % (e["id"], e["ph"]))
            arrows[e["id"]][e["ph"]] = e
    need(len({tid for _, tid in rows}) == len(rows) and all(tid > max(pid for pid, _ in rows) for _, tid in rows),
         "rows of one number, or of a process's: viewers put them together")
    need(sorted({pid for pid, _ in rows}) == list(range(a.ranks)), "ranks %s, not %d" % (sorted({pid for pid, _ in rows}), a.ranks))
    rows_nest(rows)

    for number, ends in arrows.items():
        need(len(ends) == 2, "arrow %s has one end only: %s" % (number, ends))
        ends = [slice_at(rows[ends[k]["pid"], ends[k]["tid"]], ns_of(ends[k]["ts"]), word) for k, word in (("s", "SEND"), ("f", "RECV"))]
        need(ends[0]["pid"] != ends[1]["pid"], "arrow %s ends where it begins" % number)
        need(ends[0]["start"] <= ends[1]["end"], "arrow %s ends before it begins" % number)
        need(ends[0]["args"]["step"] == ends[1]["args"]["step"], "arrow %s goes from one step to another" % number)
    told = [e for row in rows.values() for e in row if "instruction" in e["args"]]
    messages = sum(e["args"]["instruction"].split()[0] in ("SEND", "RECV") for e in told)
    need(messages == 2 * len(arrows), "%d slices of messages, %d arrows" % (messages, len(arrows)))

    need(a.steps is None or len(steps[0]) == a.steps, "%d steps, not %s" % (len(steps[0]), a.steps))
    for rank in range(a.ranks):
        need(steps[rank].keys() == steps[0].keys(), "rank %d has steps %s, rank 0 %s" % (rank, sorted(steps[rank]), sorted(steps[0])))
    for e in told:
        step = steps[e["pid"]].get(e["args"]["step"])
        need(step and step["start"] <= e["start"] and e["end"] <= step["end"], "%s lies outside its step" % e)
    for word in a.instruction:
        need(any(e["args"]["instruction"].startswith(word) for e in told), "no instruction begins with %s" % word)
    print("%d slices, %d arrows, %d steps" % (sum(map(len, rows.values())), len(arrows), len(steps[0])))


if __name__ == "__main__":
    main()
