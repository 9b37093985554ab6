#!/usr/bin/env python3
"""bench_overlap.py [--build DIR] [--rate 1gbit] [--rounds N] [--steps N]: dp 2 between two hosts with a slow link: does communication go on while
there is computing?

The hosts are two network namespaces with a link of their own, shaped by tbf on both sides; each has one core. Open MPI over TCP. As root.
  compute    the step when the ranks share memory, where communication costs next to nothing; its trace says when each bucket's gradient is there
  link       bytes a second of an all_reduce of 16 MiB over the link, with nothing else going on
  expected   the step that follows: the buckets go over the link one after the other, each when its gradient is there and the one before is through;
             then what comes after the last one (clipping, update). That is max(compute, communication) and what cannot overlap
  step       the step over the link, median; at most 1.10 times the expected is wanted
  without    computing and communication one after the other
Two cases: few tokens (the link bounds the step) and many (the computing does). Prints a table and, last, one JSON line.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
          "num_key_value_heads": 12, "intermediate_size": 2048, "vocab_size": 4096, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32"}
CASES = {"few tokens": 128, "many tokens": 1024}  # of a rank and step, T 128


# ---- two hosts --------------------------------------------------------------------------------

class Lab:
    """Network namespaces im1, im2 with 10.78.0.1, 10.78.0.2; `on(host, argv)` is argv there."""

    def __init__(self, rate, work):
        self.names = [f"imece{os.getpid()}-{i}" for i in (1, 2)]
        self.rate, self.rsh = rate, work / "rsh"

    def ip(self, *argv):
        subprocess.run(["ip", *argv], check=True)

    def __enter__(self):
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", "im0", "netns", self.names[0], "type", "veth", "peer", "name", "im0", "netns", self.names[1])
        for i, name in enumerate(self.names, 1):
            self.ip("-n", name, "addr", "add", f"10.78.0.{i}/24", "dev", "im0")
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "link", "set", "im0", "up")
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "im0", "root", "tbf", "rate", self.rate, "burst", "256kb",
                            "latency", "50ms"], check=True)
        self.rsh.write_text(f'#!/bin/sh\nh=$1; shift; exec ip netns exec {self.names[0][:-1]}"${{h##*.}}" sh -c "$*"\n')
        self.rsh.chmod(0o755)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name])

    def mpirun(self):
        return ["ip", "netns", "exec", self.names[0], "mpirun", "-n", "2", "--host", "10.78.0.1:1,10.78.0.2:1", "--mca", "plm", "rsh", "--mca",
                "plm_rsh_agent", self.rsh, "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "10.78.0.0/24",
                "--mca", "oob_tcp_if_include", "10.78.0.0/24", "--bind-to", "none", "-x", "PATH"]


def near():
    return ["mpirun", "-n", "2", "--bind-to", "none"]


# ---- runs -----------------------------------------------------------------------------------------

def job(launch, work, argv):
    """Both ranks, each on a core of its own as two machines of one core have."""
    pin = work / "pin"
    pin.write_text('#!/bin/sh\nexec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"\n')
    pin.chmod(0o755)
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", GOMP_SPINCOUNT="3000")
    done = subprocess.run(list(map(str, [*launch, pin, *argv])), env=env, capture_output=True, text=True, timeout=400)
    if done.returncode:
        sys.exit(f"{argv}\nexit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-3000:]}")
    return done


def train(args, work, launch, tokens):
    run, T = work / "run", 128
    shutil.rmtree(run, ignore_errors=True)
    batch = tokens // T
    job(launch, work, [args.build / "imece", "train", "--model", work / "model", "--data", work / "data-train", "--out", run, "--steps", args.steps, "--dp", 2,
                       "--seq-len", T, "--micro-batch", batch, "--global-batch", 2 * batch, "--order", "sequential", "--threads", 1, "--trace"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = [m["step_s"] for m in lines if "step_s" in m][1:]
    return seconds, json.loads((run / "trace.json").read_text())


def link_rate(args, work, launch):
    done = job(launch, work, [args.build / "imece", "bench", "comm", "--op", "all_reduce", "--min", 16 << 20, "--max", 16 << 20, "--json"])
    return (16 << 20) / (json.loads(done.stdout)["rows"][0]["us"] * 1e-6)


def buckets():
    """Bytes of each unit's gradient: the embedding, the blocks, the head."""
    D, F, V, L = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"], CONFIG["num_hidden_layers"]
    return [4 * V * D] + L * [4 * (4 * D * D + 3 * D * F + 2 * D)] + [4 * (V * D + D)]


def times_of(trace, nbuckets):
    """Rank 0's last step: seconds from its start until each bucket's gradient is there, until the last of them is reduced, and in all."""
    spans = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e["pid"] == 0]
    step = max((e for e in spans if e["name"] == "step"), key=lambda e: e["ts"])
    inside = [e for e in spans if step["ts"] <= e["ts"] <= step["ts"] + step["dur"]]

    def end(e):
        return (e["ts"] + e["dur"] - step["ts"]) * 1e-6
    ready = [0.0] * nbuckets
    for e in inside:
        found = re.match(r"(?:BACKWARD|LOSS) (\d+)\b", e.get("args", {}).get("instruction", ""))
        if found and e["tid"] == 0:
            ready[int(found[1])] = max(ready[int(found[1])], end(e))
    reduced = max(end(e) for e in inside if e.get("args", {}).get("instruction", "").startswith("REDUCE"))
    return ready, reduced, step["dur"] * 1e-6


def expect(trace, rate):
    nbytes = buckets()
    ready, reduced, whole = times_of(trace, len(nbytes))
    through = 0.0
    for k in reversed(range(len(nbytes))):  # the head's is there first
        through = max(through, ready[k]) + nbytes[k] / rate
    return max(through, max(ready)) + (whole - reduced), whole - reduced


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rate", default="1gbit", help="as tc knows it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of a run; the first is not counted")
    args = parser.parse_args()
    if os.geteuid():
        sys.exit("bench_overlap.py makes network namespaces: as root")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("bench_overlap.py needs a core for each of two hosts")
    rows, total = [], sum(buckets())
    with tempfile.TemporaryDirectory(prefix="imece-bench-") as tmp:
        work = pathlib.Path(tmp)
        (work / "model").mkdir()
        (work / "model/config.json").write_text(json.dumps(CONFIG))
        text = work / "text.txt"
        text.write_text("the mill of the village grinds what every house has grown, and each of them carries its share\n" * 4000)
        subprocess.run([args.build / "imece", "data", "build", text, "--out", work / "data"], check=True, capture_output=True)
        with Lab(args.rate, work) as lab:
            rate = link_rate(args, work, lab.mpirun())
            for case, tokens in CASES.items():
                compute, step, expected, tail = [], [], [], []
                for _ in range(args.rounds):
                    seconds, trace = train(args, work, near(), tokens)
                    compute += seconds
                    e, after = expect(trace, rate)
                    expected.append(e), tail.append(after)
                    step += train(args, work, lab.mpirun(), tokens)[0]
                rows.append({"case": case, "tokens_per_rank": tokens, "compute_s": statistics.median(compute), "comm_s": total / rate,
                             "after_s": statistics.median(tail), "expected_s": statistics.median(expected), "step_s": statistics.median(step),
                             "best_step_s": min(step), "ratio": statistics.median(step) / statistics.median(expected)})
    print(f"dp 2 over {args.rate} (an all_reduce makes {rate / 1e6:.0f} MB/s), {total / 1e6:.0f} MB of gradients, two hosts of one core")
    print(f"{'case':12} {'compute s':>10} {'comm s':>8} {'without':>8} {'expected':>9} {'step s':>8} {'ratio':>6}  wanted 1.10")
    for r in rows:
        print(f"{r['case']:12} {r['compute_s']:10.3f} {r['comm_s']:8.3f} {r['compute_s'] + r['comm_s']:8.3f} {r['expected_s']:9.3f} {r['step_s']:8.3f} {r['ratio']:6.3f}")
    print(json.dumps({"bench": "overlap", "rate": args.rate, "link_bytes_per_s": rate, "gradient_bytes": total, "rows": rows, "wanted": 1.10}))


main()
