#!/usr/bin/env python3
"""bench_pipeline.py --build DIR [--only paced|real] [--keep DIR]: what the schedules of a pipeline cost, on this machine.

paced   4 stages, 8 micro-batches, with kernels that sleep their planned time: the ranks may outnumber the cores, and the share of the step in which
        stages are idle is still true. Planned: the same programs in the simulator. The formula is of equal stages and free messages.
real    2 stages x 1 thread against one rank x 2 threads, the same model and batch: what is left of the step without the bubble of the schedule, over
        one rank's step. One rank takes the sequences one by one as the stages do, and all at once; its faster step counts. Of each the fastest step of
        two rounds: what else the machine does only adds.

Prints a table and, last, one JSON line. Exit code 1 when a bubble is more than 2 points from its formula, zb-h1 is not ahead of 1f1b by what its
formula says within 2 points, or the real pipeline takes more than 1.15 times one rank's step after its bubble.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

P, M, POINTS, RATIO = 4, 8, 2.0, 1.15

# Blocks alone cost something: a head of 64 rows, short sequences, so that the stages are equal and a backward is two forwards.
PACED = {"model_type": "llama", "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6,
         "num_key_value_heads": 6, "head_dim": 64, "vocab_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "hidden_act": "silu", "tie_word_embeddings": False}
REAL = dict(PACED, hidden_size=512, intermediate_size=1408, num_attention_heads=8, num_key_value_heads=8, vocab_size=2048, max_position_embeddings=256)

SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)]


def formula(name, p, m, v):
    """Idle share in per cent: equal stages, a backward of two forwards, messages that take no time."""
    return 100.0 * (p - 1) / {"gpipe": m + p - 1, "1f1b": m + p - 1, "interleaved": v * m + p - 1, "zb-h1": 3 * m + p - 1}[name]


class Bench:
    def __init__(self, build, directory):
        self.imece, self.dir = os.path.abspath(build) + "/imece", directory
        for name, config in (("paced", PACED), ("real", REAL)):
            with open("%s/%s.json" % (directory, name), "w") as f:
                json.dump(config, f)
        with open(directory + "/ids", "w") as f:
            for i in range(400):
                f.write(" ".join(str((i * 31 + k * 7) % 64) for k in range(64)) + "\n")
        self.call("data", "build", directory + "/ids", "--ids", "--out", directory + "/d", "--valid-fraction", "0")

    def call(self, *arguments):
        p = subprocess.run([self.imece, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                           env=dict(os.environ, GOMP_SPINCOUNT="3000"))
        if p.returncode:
            sys.exit("bench_pipeline.py: imece %s: exit code %d: %s" % (" ".join(arguments), p.returncode, p.stderr))
        return p.stdout + p.stderr

    def train(self, out, *arguments):
        """-> (seconds of the steps after the first, planned and measured bubble in per cent or None)"""
        said = self.call("train", "--data", self.dir + "/d-train", "--init", "random", "--lr", "1e-4", "--keep", "1", "--out", self.dir + "/" + out,
                         *arguments)
        with open("%s/%s/metrics.jsonl" % (self.dir, out)) as f:
            seconds = [json.loads(line)["step_s"] for line in f if '"step_s"' in line]
        bubble = re.search(r"bubble planned ([0-9.]+) %, measured ([0-9.]+) %", said)
        return seconds[1:], bubble and float(bubble.group(1)), bubble and float(bubble.group(2))


def paced(b):
    """A block's forward of 256 tokens is some 0.9 GFLOP: 10 ms at 90 GFLOP/s, so that a late wake-up of a tenth of a millisecond is little."""
    rows = []
    for name, v in SCHEDULES:
        steps, planned, measured = b.train("paced-" + name, "--model", b.dir + "/paced.json", "--kernels", "paced", "--pace-flops", "90e9",
                                           "--pace-bytes", "1e12", "--seq-len", "64", "--micro-batch", "4", "--global-batch", str(4 * M), "--pp", str(P),
                                           "--pipeline", name, "--threads", "1", "--steps", "3", *(["--chunks", str(v)] if v > 1 else []))
        rows.append({"schedule": name, "chunks": v, "formula": formula(name, P, M, v), "planned": planned, "measured": measured,
                     "step_s": statistics.median(steps)})
    return rows


def real(b):
    common = ["--model", b.dir + "/real.json", "--seq-len", "128", "--global-batch", str(M), "--steps", "5"]
    ways = {"single": ["--micro-batch", "1", "--threads", "2"], "whole": ["--micro-batch", str(M), "--threads", "2"],
            "two": ["--micro-batch", "1", "--threads", "1", "--pp", "2", "--stages", "balanced"]}
    best = dict.fromkeys(ways, float("inf"))
    for i in range(2):
        for way, arguments in ways.items():
            steps, planned, measured = b.train("%s-%d" % (way, i), *common, *arguments)
            best[way] = min(best[way], *steps)
    single, whole, two = best["single"], best["whole"], best["two"]
    bubble, one = formula("1f1b", 2, M, 1), min(single, whole)
    return {"one_rank_one_by_one_s": single, "one_rank_at_once_s": whole, "pp2_s": two, "bubble": bubble, "planned": planned, "measured": measured,
            "ratio": two * (1 - bubble / 100) / one}


def table(result):
    for r in result.get("paced", []):
        print("pp %d, %d micro-batches, paced  %-11s v %d   bubble: formula %5.1f %%  planned %5.1f %%  measured %5.1f %%   step %7.1f ms" %
              (P, M, r["schedule"], r["chunks"], r["formula"], r["planned"], r["measured"], 1e3 * r["step_s"]))
    if "real" in result:
        r = result["real"]
        print("pp 2 x 1 thread, %d micro-batches, 1f1b: step %.1f ms, without its bubble of %.1f %% %.1f ms; one rank x 2 threads %.1f ms, in %d "
              "micro-batches %.1f ms: %.2f times the faster" %
              (M, 1e3 * r["pp2_s"], r["bubble"], 1e3 * r["pp2_s"] * (1 - r["bubble"] / 100), 1e3 * r["one_rank_at_once_s"], M,
               1e3 * r["one_rank_one_by_one_s"], r["ratio"]))


def judge(result):
    bad = ["%s: %.1f %% idle, the formula says %.1f %%" % (r["schedule"], r["measured"], r["formula"])
           for r in result.get("paced", []) if abs(r["measured"] - r["formula"]) > POINTS]
    by = {r["schedule"]: r for r in result.get("paced", [])}
    if by:
        ahead = by["1f1b"]["measured"] - by["zb-h1"]["measured"]
        says = by["1f1b"]["formula"] - by["zb-h1"]["formula"]
        result["zb_h1_ahead"] = {"measured": ahead, "formula": says}
        print("zb-h1 is %.1f points ahead of 1f1b, its formula says %.1f" % (ahead, says))
        if abs(ahead - says) > POINTS:
            bad.append("zb-h1 is %.1f points ahead of 1f1b, its formula says %.1f" % (ahead, says))
    if "real" in result and result["real"]["ratio"] > RATIO:
        bad.append("the pipeline takes %.2f times one rank's step after its bubble; at most %.2f" % (result["real"]["ratio"], RATIO))
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--only", choices=["paced", "real"])
    p.add_argument("--keep", help="directory for the runs and their pictures; default: one that goes away")
    a = p.parse_args()
    result = {"bench": "pipeline"}
    with tempfile.TemporaryDirectory(prefix="imece-pipeline-") as away:
        if a.keep:
            os.makedirs(a.keep, exist_ok=True)
        b = Bench(a.build, a.keep or away)
        if a.only != "real":
            result["paced"] = paced(b)
        if a.only != "paced":
            result["real"] = real(b)
    table(result)
    bad = judge(result)
    for line in bad:
        print("not as it should be: " + line)
    print(json.dumps(result))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
