#!/usr/bin/env python3
"""bench_layout.py [--build DIR] [--rounds N] [--steps N] [--sides ...] [--no-peers] [--batch 4] [--seq-len 128] [--model gpt2]:
layouts of imece on 2 ranks of one thread beside its one rank of two, and beside PyTorch and DeepSpeed on 2 ranks, in one run.

Each round starts one process (or job) of each side in turn, fp32, the same data, random weights, and takes its steps after the first.
  step s      median of all rounds; best: the fastest
  x one rank  the median over that of imece's one rank: at most 1.15 is wanted of imece's layouts
  cpu s       processor seconds of all its threads a step, which other work on the machine changes less than it changes the wall clock
  floor s     what the arithmetic and the memory traffic that nobody can avoid take at the rates that `imece bench cpu` measures first:
              matrix products by shape, and bytes: weights read twice, gradients written and read for the norm, AdamW (7 x 4 bytes a
              parameter), the sums over ranks; what each rank holds whole counts for each rank
Then, unless --no-start: eight ranks of SmolLM2-135M's shape from a checkpoint in the page cache until their first step begins.
Prints a table and, last, one JSON line.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/peers"))
from peerlib import log, write_tokens  # noqa: E402

OURS = {"one rank": [], "tp 2": ["--tp", 2], "dp 2": ["--dp", 2], "zero 1": ["--dp", 2, "--zero", 1], "zero 2": ["--dp", 2, "--zero", 2],
        "zero 3": ["--dp", 2, "--zero", 3]}
PEERS = {"PyTorch DDP": "ddp", "PyTorch FSDP2": "fsdp2", "DeepSpeed ZeRO-1": "zero1", "DeepSpeed ZeRO-3": "zero3"}
TICK = os.sysconf("SC_CLK_TCK")


# ---- one run ------------------------------------------------------------------------------

def cpu_seconds(pids):
    total = 0
    for pid in pids:
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / TICK


def watch(processes, lines_of, steps, errors):
    """Until `steps` lines are there: {seconds and loss of each step, cpu seconds a step after the first}."""
    started, first_cpu, pids = time.time(), None, [p.pid for p in processes]
    while True:
        lines, cpu, now = lines_of(), cpu_seconds(pids), time.time()
        if lines and first_cpu is None:
            first_cpu = cpu
        if len(lines) >= steps:
            break
        for p in processes:
            if p.poll() not in (None, 0):
                sys.exit(f"{p.args}\nexit code {p.returncode}\n{errors.read_text()[-3000:]}")
        if now - started > 600:
            sys.exit(f"{processes[0].args}: no {steps} steps in 600 s\n{errors.read_text()[-3000:]}")
        time.sleep(0.01)
    return {"step_s": [m["step_s"] for m in lines[:steps]], "loss": [m["loss"] for m in lines[:steps]], "cpu_s": (cpu - first_cpu) / (steps - 1)}


def json_lines(path):
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [m for m in map(json.loads, whole.splitlines()) if "step_s" in m]


def end(processes):
    for p in processes:
        p.send_signal(signal.SIGKILL)  # what it would write at its end is of no use
        p.wait()


def ours(args, work, side):
    run, errors = work / "run", work / "errors"
    shutil.rmtree(run, ignore_errors=True)
    micro = args.batch if side in ("one rank", "tp 2") else (args.batch + 1) // 2
    argv = [args.build / "imece", "train", "--model", args.model, "--data", work / "data", "--out", run, "--steps", 10**6, "--seq-len", args.seq_len,
            "--global-batch", args.batch, "--micro-batch", micro, "--order", "sequential", "--lr", 1e-4, "--schedule", "constant", "--warmup", 0,
            "--dropout", 0, "--threads", 2 if side == "one rank" else 1, *OURS[side]]
    with errors.open("w") as err:
        p = subprocess.Popen(list(map(str, argv)), stdout=subprocess.DEVNULL, stderr=err)
        try:
            return watch([p], lambda: json_lines(run / "metrics.jsonl"), args.steps, errors)
        finally:
            end([p])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def peer(args, work, side):
    lines, errors, port = work / "lines", work / "errors", free_port()
    lines.unlink(missing_ok=True)
    processes = []
    with errors.open("w") as err:
        for rank in range(2):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo")
            argv = [sys.executable, ROOT / "bench/layout/torch_layout.py", PEERS[side], work / "model", work / "data", args.steps, args.batch,
                    args.seq_len, lines]
            processes.append(subprocess.Popen(list(map(str, argv)), env=env, stdout=err, stderr=err))
        try:
            return watch(processes, lambda: json_lines(lines), args.steps, errors)
        finally:
            end(processes)


# ---- the floor ------------------------------------------------------------------------------

def rates(args):
    out = subprocess.run([args.build / "imece", "bench", "cpu", "--json", "--no-plain", "--threads", "2", "--rows", str(args.batch * args.seq_len)],
                         check=True, capture_output=True, text=True).stdout
    found = json.loads(out.splitlines()[-1])
    products = {(p["shape"], p["direction"]): p["fp32"] for p in found["products"]}
    return products, max(found["memory"].values()), found


def floors(args, config):
    """{side: seconds}; GPT-2's shapes, whose products `imece bench cpu` times."""
    L, D, V, T = config["n_layer"], config["n_embd"], config["vocab_size"], config["n_positions"]
    F, rows = config.get("n_inner") or 4 * D, args.batch * args.seq_len
    products, memory, raw = rates(args)
    shapes = {"qkv": (D, 3 * D, L), "attention out": (D, D, L), "up": (D, F, L), "down": (F, D, L), "head": (D, V, 1)}
    arithmetic = sum(2 * rows * k * n * times / products[name, way] for name, (k, n, times) in shapes.items() for way in ("forward", "dX", "dW"))
    N = V * D + T * D + L * (4 * D * D + 2 * D * F + 9 * D + F) + 2 * D
    whole = {"weights": 2 * 4 * N, "gradients": 2 * 4 * N, "optimizer": 7 * 4 * N}  # read twice; written, read for the norm; AdamW
    both = sum(whole.values())
    reduce = 2 * 2 * 4 * N  # both ranks' gradients read, both written
    bytes_of = {"one rank": both, "tp 2": both, "dp 2": 2 * both + reduce,
                "zero 1": 2 * (whole["weights"] + 4 * N) + 4 * N + whole["optimizer"] + 3 * 4 * N + 2 * 2 * 4 * N,
                "zero 2": 2 * (whole["weights"] + 4 * N) + 4 * N + whole["optimizer"] + 3 * 4 * N + 2 * 2 * 4 * N,
                "zero 3": 2 * (whole["weights"] + 4 * N) + 4 * N + whole["optimizer"] + 3 * 4 * N + 2 * 2 * 2 * 4 * N}
    table = {side: arithmetic + b / memory for side, b in bytes_of.items()}
    return table, {"arithmetic_s": arithmetic, "memory_bytes_per_s": memory, "bytes": bytes_of, "parameters": N, "machine": raw["isa"]}


# ---- the start ---------------------------------------------------------------------------------

def train_once(args, work, model, flags):
    """Seconds until the first step began, as the run's closing summary says."""
    shutil.rmtree(work / "run", ignore_errors=True)
    argv = [args.build / "imece", "train", "--model", model, "--data", work / "data", "--out", work / "run", "--steps", 1, "--seq-len", 32,
            "--micro-batch", 1, *flags]
    told = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    seconds = re.search(r"the first began after ([0-9.]+)s", told.stdout + told.stderr)
    if told.returncode or not seconds:
        sys.exit(f"{argv}\nexit code {told.returncode}\n{told.stderr[-2000:]}")
    return float(seconds.group(1))


def start_of_eight(args, work):
    """Until the first step of 8 ranks begins, from a checkpoint of SmolLM2-135M's shape that was just written."""
    train_once(args, work, "smollm2-135m", [])
    (work / "run/checkpoints/step-1").rename(work / "checkpoint")
    times = {}
    for side, flags in {"tp 2 x dp 4": ["--tp", 2, "--dp", 4], "dp 8, zero 3": ["--dp", 8, "--zero", 3]}.items():
        runs = [train_once(args, work, work / "checkpoint", flags) for _ in range(3)]
        times[side] = {"median": statistics.median(runs), "best": min(runs)}
    return times


# ---- all of it ------------------------------------------------------------------------------------

def summary(side, runs, args, floor):
    later = [s for r in runs for s in r["step_s"][1:]]
    return {"side": side, "step_s": statistics.median(later), "best_step_s": min(later), "tokens_per_s": args.batch * args.seq_len / statistics.median(later),
            "cpu_s": statistics.median(r["cpu_s"] for r in runs), "floor_s": floor.get(side),
            "loss": runs[0]["loss"], "rounds": len(runs), "steps": len(later)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--model", default="gpt2", help="a named shape of GPT-2's family")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="of a process; the first is not counted")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--sides", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-start", action="store_true")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: the first step is not counted")
    sides = [s for s in args.sides if s in OURS or not args.no_peers]
    config = json.loads((ROOT / f"models/{args.model}.json").read_text())
    log("rates of this machine")
    floor, parts = floors(args, config)
    runs = {s: [] for s in sides}
    with tempfile.TemporaryDirectory(prefix="imece-bench-") as tmp:
        work = pathlib.Path(tmp)
        (work / "model").mkdir()
        (work / "model/config.json").write_text(json.dumps(config))
        write_tokens(work / "data", [np.random.default_rng(1).zipf(1.3, size=args.steps * args.batch * args.seq_len * 4 + 1) % 49152])
        for r in range(max(args.rounds, args.peer_rounds)):
            for side in sides:
                if r < (args.rounds if side in OURS else args.peer_rounds):
                    log(f"round {r + 1}: {side}")
                    runs[side].append(ours(args, work, side) if side in OURS else peer(args, work, side))
        table(args, runs, floor, parts, sides, work)


def table(args, runs, floor, parts, sides, work):
    rows = [summary(s, runs[s], args, floor) for s in sides]
    one = next((r["step_s"] for r in rows if r["side"] == "one rank"), None)
    print(f"{args.model}, {args.batch} x {args.seq_len} tokens a step, fp32; one rank of 2 threads, others 2 ranks of 1 thread; {args.steps - 1} steps of "
          f"{args.rounds} rounds (peers: {args.peer_rounds})")
    print(f"{'side':17} {'step s':>7} {'best':>7} {'x one rank':>11} {'tokens/s':>9} {'cpu s':>7} {'floor s':>8}")
    for r in rows:
        ratio = f"{r['step_s'] / one:11.3f}" if one else f"{'':11}"
        low = f"{r['floor_s']:8.3f}" if r["floor_s"] else f"{'':8}"
        print(f"{r['side']:17} {r['step_s']:7.3f} {r['best_step_s']:7.3f} {ratio} {r['tokens_per_s']:9.1f} {r['cpu_s']:7.2f} {low}")
    start = {} if args.no_start else start_of_eight(args, work)
    for side, t in start.items():
        print(f"8 ranks of smollm2-135m, {side}, from a cached checkpoint: the first step begins after {t['median']:.2f} s (best {t['best']:.2f}; wanted 1.5)")
    print(json.dumps({"bench": "layout", "model": args.model, "batch": args.batch, "seq_len": args.seq_len, "rows": rows, "floor": parts,
                      "start_8_ranks_s": start, "wanted": {"x_one_rank": 1.15, "start_8_ranks_s": 1.5}}))


main()
