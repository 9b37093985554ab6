#!/usr/bin/env python3
"""bench_comm.py [--build DIR] [--mpi openmpi mpich] [--ranks N] [--rounds N] [--ops ...] [--min BYTES] [--max BYTES] [--quick]:
imece's communicators beside MPI's own calls, in alternating turns of one run.

All processes are started once and sleep until they are told to time something; then each side in turn does one operation of
one size some times in a row, and the turns alternate for --rounds rounds. fp32, buffers touched before, huge pages on both sides.

  mpi/raw      the best of MPI's calls for the operation (blocking and non-blocking; raw_mpi.c), median of its turns, over ours
               through the mpi backend, each call queued behind the one before; of the forms, in place and not, the one where ours
               is worse off: at least 0.95 is wanted from 64 KiB up
  threads/raw  our threads backend over the best raw call: at most 1/3 is wanted for an all_reduce of 4 MiB on 2 ranks
  latency      an all_reduce of 8 bytes, threads: below 5 us is wanted when each rank has a core
Prints a table and, last, one JSON line. On a busy machine `best` (the fastest turn of each) says more than the medians.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "sendrecv"]


class Side:
    """Processes that wait for turns, a pipe to each rank, and rank 0's answers."""

    def __init__(self, name, argv, ranks, fifo, most):
        self.name, self.fifos = name, [f"{fifo}.{r}" for r in range(ranks)]
        for path in self.fifos:
            os.mkfifo(path)
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.process = subprocess.Popen([*map(str, argv), fifo, str(most)], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.pipes = [open(path, "w", buffering=1) for path in self.fifos]

    def turn(self, op, nbytes, times):
        """{call: seconds of one}"""
        for pipe in self.pipes:
            pipe.write(f"{op} {nbytes} {times}\n")
        words = self.process.stdout.readline().split()
        if not words:
            sys.exit(f"{self.name} ended (exit code {self.process.wait()})")
        return dict(zip(words[::2], map(float, words[1::2])))

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        self.process.wait(60)


def build(args, work):
    args.fresh or subprocess.run(["cmake", "--build", args.build, "--target", "bench_comm_ours", "imece_plugins"], check=True, stdout=subprocess.DEVNULL)
    for mpi in args.mpi:
        subprocess.run([f"mpicc.{mpi}", "-O2", ROOT / "bench/comm/raw_mpi.c", "-o", work / f"raw_{mpi}"], check=True)


def start(args, work):
    sides = {}
    sides["threads"] = Side("threads", [args.build / "bench_comm_ours", "threads", args.ranks], args.ranks, work / "threads", args.max)
    for mpi in args.mpi:
        run = [f"mpirun.{mpi}", "-n", args.ranks]
        if mpi == "openmpi":
            run += ["--bind-to", "core"] if args.ranks <= len(os.sched_getaffinity(0)) else ["--oversubscribe"]
        sides[f"raw {mpi}"] = Side(f"raw {mpi}", [*run, work / f"raw_{mpi}"], args.ranks, work / f"raw-{mpi}", args.max)
        plugin = args.build / f"imece_{mpi}.so"
        sides[f"mpi {mpi}"] = Side(f"mpi {mpi}", [*run, args.build / "bench_comm_ours", plugin], args.ranks, work / f"mpi-{mpi}", args.max)
    return sides


def measure(sides, op, nbytes, rounds, seconds):
    """{side: {call: [seconds of each round]}}; the number of calls a turn is such that a turn takes about `seconds`."""
    times = {}
    for name, side in sides.items():
        once = max(side.turn(op, nbytes, 2).values())
        times[name] = max(2, min(2000, int(seconds / max(once, 1e-7))))
    found = {name: {} for name in sides}
    for r in range(rounds):
        order = list(sides) if r % 2 == 0 else list(reversed(sides))
        for name in order:
            for call, s in sides[name].turn(op, nbytes, times[name]).items():
                found[name].setdefault(call, []).append(s)
    return found


def compare(raw, ours):
    """The form (in place or not) in which ours is worse off, against the best of MPI's calls of that form."""
    forms = []
    for form in ("", ",in_place"):
        calls = [c for c in raw if c.endswith(",in_place") == bool(form)]
        if not calls or "queued" + form not in ours:
            continue
        call, mine = min(calls, key=lambda c: statistics.median(raw[c])), ours["queued" + form]
        forms.append({"call": call, "raw_us": statistics.median(raw[call]) * 1e6, "ours_us": statistics.median(mine) * 1e6,
                      "ratio": statistics.median(raw[call]) / statistics.median(mine),
                      "best_ratio": min(min(raw[c]) for c in calls) / min(mine)})
    return dict(min(forms, key=lambda f: f["ratio"]), forms=forms, ours_waited_us=statistics.median(ours["waited"]) * 1e6)


def row_of(found, op, nbytes, mpis):
    row = {"op": op, "bytes": nbytes}
    for mpi in mpis:
        row[mpi] = compare(found[f"raw {mpi}"], found[f"mpi {mpi}"])
    threads = found["threads"]
    row["threads_us"], row["threads_waited_us"] = (statistics.median(threads[c]) * 1e6 for c in ("queued", "waited"))
    row["threads_best_us"] = min(threads["queued"]) * 1e6
    return row


def print_row(row, mpis):
    text = f"{row['op']:15}{row['bytes']:10}{row['threads_us']:10.1f}"
    for mpi in mpis:
        m = row[mpi]
        text += f" | {m['raw_us']:9.1f} {m['ours_us']:9.1f} {m['ratio']:6.2f} {m['best_ratio']:6.2f}  {m['call'].replace('MPI_', ''):26}"
    print(text, flush=True)


def verdicts(rows, mpi):
    least = min((r for r in rows if r["bytes"] >= 65536), key=lambda r: r[mpi]["ratio"], default=None)
    out = {}
    if least:
        out["mpi_over_best_raw_least"] = {"ratio": least[mpi]["ratio"], "op": least["op"], "bytes": least["bytes"], "wanted": 0.95}
    for r in rows:
        if r["op"] == "all_reduce" and r["bytes"] == 4 << 20:
            out["threads_over_raw_4MiB"] = {"ratio": r["threads_us"] / r[mpi]["raw_us"], "wanted": 1 / 3}
        if r["op"] == "all_reduce" and r["bytes"] == 8:
            out["threads_8_bytes_us"] = {"us": r["threads_us"], "best_us": r["threads_best_us"], "wanted": 5}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--mpi", nargs="+", choices=["openmpi", "mpich"], default=["openmpi"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.03, help="of one turn")
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS)
    parser.add_argument("--fresh", action="store_true", help="do not build first")
    parser.add_argument("--min", type=int, default=64 << 10)
    parser.add_argument("--max", type=int, default=64 << 20)
    args = parser.parse_args()
    sizes = []
    while args.min << 2 * len(sizes) <= args.max:
        sizes.append(args.min << 2 * len(sizes))
    rows = []
    with tempfile.TemporaryDirectory(prefix="imece-bench-") as tmp:
        work = pathlib.Path(tmp)
        build(args, work)
        sides = start(args, work)
        print(f"{args.ranks} ranks, {len(os.sched_getaffinity(0))} cores, fp32; us a call, medians of {args.rounds} alternating turns\n"
              f"{'operation':15}{'bytes':>10}{'threads':>10}"
              + "".join(f" | {'raw':>9} {'mpi':>9} {'ratio':>6} {'best':>6}  {mpi + chr(39) + 's best call':26}" for mpi in args.mpi), flush=True)
        for op in args.ops:
            for nbytes in ([8] if op == "all_reduce" else []) + sizes:
                rows.append(row_of(measure(sides, op, nbytes, args.rounds, args.seconds), op, nbytes, args.mpi))
                print_row(rows[-1], args.mpi)
        for side in sides.values():
            side.close()
    print(json.dumps({"bench": "comm", "ranks": args.ranks, "cores": len(os.sched_getaffinity(0)), "rounds": args.rounds,
                      "verdicts": verdicts(rows, args.mpi[0]), "rows": rows}))


main()
