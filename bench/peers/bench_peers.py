#!/usr/bin/env python3
"""bench_peers.py [--build DIR] [--models gpt2 smollm2-135m] [--precision fp32 bf16] [--rounds N] [--steps N] [--compile]
                  [--batch 4] [--seq-len 256] [--threads N]: imece beside PyTorch, in alternating processes of one run.

For each model and precision, each round starts one training process of each side from random weights on the same data:
  tokens/s     B*T over the median of all steps after a process's first one, and the fastest
  peak         the process's largest resident set (the kernel's ru_maxrss)
  cpu s        processor seconds of all its threads a step (start and end included), which other work on the machine
               changes less than it changes tokens/s
  first step   seconds from starting the process until its first step begins; imece's "loaded" is from a checkpoint
               in the page cache, the others from random weights
Prints a table and, last, one JSON line.
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
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/peers"))
from peerlib import log, write_tokens  # noqa: E402


def spawn(argv, watch=None):
    """Runs a process; (stdout, its peak bytes and cpu seconds, seconds from its start to the first line of `watch`)."""
    env = dict(os.environ, BENCH_START=str(time.time()))
    started, seen = time.time(), None
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        p = subprocess.Popen(argv, env=env, stdout=out, stderr=err)
        while True:
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            if watch and seen is None and watch.exists() and b"\n" in watch.read_bytes():
                seen = time.time() - started
            if pid:
                break
            time.sleep(0.005 if watch and seen is None else 0.1)
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if p.returncode:
            sys.exit(f"{' '.join(argv)}\nexit code {p.returncode}\n{err.read().decode()[-2000:]}")
        return out.read().decode(), {"peak": usage.ru_maxrss * 1024, "cpu_s": usage.ru_utime + usage.ru_stime}, seen


def imece(args, model, precision, data, out, steps):
    shutil.rmtree(out, ignore_errors=True)
    argv = [args.build / "imece", "train", "--model", model, "--data", data, "--out", out, "--steps", steps,
            "--seq-len", args.seq_len, "--micro-batch", args.batch, "--global-batch", args.batch, "--order", "sequential",
            "--precision", precision, "--lr", 1e-4, "--schedule", "constant", "--warmup", 0, "--dropout", 0, "--threads", args.threads]
    _, used, first_line = spawn(list(map(str, argv)), out / "metrics.jsonl")
    lines = [m for m in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "step_s" in m]
    seconds = [m["step_s"] for m in lines]
    return {"step_s": seconds, "first_step_begins_s": first_line - seconds[0], "loss": [m["loss"] for m in lines], **used}


def from_checkpoint(args, precision, data, work):
    """Seconds until the first step of a run that begins with the weights of the run before it."""
    root = work / "run/checkpoints"
    return imece(args, root / (root / "latest").read_text().strip(), precision, data, work / "loaded", 1)["first_step_begins_s"]


def torch_side(args, model, precision, data, compiled):
    argv = [sys.executable, ROOT / "bench/peers/torch_train.py", model, data, args.steps, args.batch, args.seq_len, precision,
            args.threads] + (["compile"] if compiled else [])
    out, used, _ = spawn(list(map(str, argv)))
    return dict(json.loads(out.splitlines()[-1]), **used)


def summary(name, model, precision, runs, tokens):
    later = [s for r in runs for s in r["step_s"][1:]]
    return {"side": name, "model": model, "precision": precision, "tokens_per_s": tokens / statistics.median(later),
            "best_tokens_per_s": tokens / min(later), "peak_bytes": max(r["peak"] for r in runs),
            "first_step_begins_s": statistics.median(r["first_step_begins_s"] for r in runs),
            "cpu_s_per_step": statistics.median(r["cpu_s"] / len(r["step_s"]) for r in runs),
            "first_step_s": statistics.median(r["step_s"][0] for r in runs), "rounds": len(runs), "steps": len(runs[0]["step_s"])}


def config_of(name):
    """The model's config as a directory for Transformers: models/NAME.json, or models/NAME/config.json, or a path."""
    for path in (ROOT / "models" / f"{name}.json", ROOT / "models" / name / "config.json", pathlib.Path(name), pathlib.Path(name) / "config.json"):
        if path.is_file():
            return path
    sys.exit(f"{name}: no such model (looked in {ROOT / 'models'})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--models", nargs="+", default=["gpt2", "smollm2-135m"])
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="steps of a process; the first is not counted in tokens/s")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compile", action="store_true", help="also PyTorch compiled (a minute or two of compiling a process)")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: the first step is not counted")
    rows, tokens = [], args.batch * args.seq_len
    with tempfile.TemporaryDirectory(prefix="imece-bench-") as tmp:
        work = pathlib.Path(tmp)
        gen = np.random.default_rng(1)
        ids = gen.zipf(1.3, size=args.steps * tokens + 1) % 49152
        write_tokens(work / "data", [ids])
        for name in args.models:
            config = work / name.replace("/", "_")
            config.mkdir()
            shutil.copy(config_of(name), config / "config.json")
            for precision in args.precision:
                sides = {"imece": lambda: imece(args, name, precision, work / "data", work / "run", args.steps),
                         "torch eager": lambda: torch_side(args, config, precision, work / "data", False)}
                if args.compile:
                    sides["torch compiled"] = lambda: torch_side(args, config, precision, work / "data", True)
                runs = {side: [] for side in sides}
                for r in range(args.rounds):
                    for side, start in sides.items():
                        log(f"{name} {precision}, round {r + 1} of {args.rounds}: {side}")
                        runs[side].append(start())
                rows += [summary(side, name, precision, runs[side], tokens) for side in sides]
                rows[-len(sides)]["first_step_begins_loaded_s"] = from_checkpoint(args, precision, work / "data", work)
    print(f"B {args.batch}, T {args.seq_len}, {args.threads} threads, {args.rounds} rounds of {args.steps} steps")
    print(f"{'model':16} {'type':5} {'side':15} {'tokens/s':>9} {'best':>7} {'peak GB':>8} {'cpu s':>7} {'first step s':>13} {'loaded':>7}")
    for r in rows:
        loaded = f"{r['first_step_begins_loaded_s']:7.2f}" if "first_step_begins_loaded_s" in r else ""
        print(f"{r['model']:16} {r['precision']:5} {r['side']:15} {r['tokens_per_s']:9.1f} {r['best_tokens_per_s']:7.1f} "
              f"{r['peak_bytes'] / 1e9:8.2f} {r['cpu_s_per_step']:7.1f} {r['first_step_begins_s']:13.2f} {loaded:>7}")
    print(json.dumps({"bench": "peers", "batch": args.batch, "seq_len": args.seq_len, "threads": args.threads, "rows": rows}))


main()
