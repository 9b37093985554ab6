#!/usr/bin/env python3
"""soak_layout.py --imece BINARY [--count N] [--seed N] [--first N]: layouts drawn at random, each against one rank.

Every layout is a run of `imece train` with the same model, data and batch as one of one rank: losses, gradient norms, the evaluation's losses and the
weights of the last checkpoint must be one rank's within 1e-5. A layout that is refused must be refused before step 0 (exit code 2, nothing written)
for a reason that stands in docs/refusals.md. None may take longer than --deadline.

Case i depends on the seed and i alone: --seed S --first I --count 1 repeats it. Exit code: 0 all of this, and of 50 or more --share run; 1 otherwise.
"""
import argparse
import array
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # nothing is left in the source tree
import refusals  # noqa: E402

STEPS = 4
SEQ = 12

# Sizes that divide nothing; blocks for several stages. Dropout in gpt2: it must not depend on the layout either.
MODELS = {
    "llama": {"model_type": "llama", "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 7, "num_attention_heads": 6,
              "num_key_value_heads": 3, "head_dim": 10, "vocab_size": 101, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False},
    "llama-tied": {"model_type": "llama", "hidden_size": 28, "intermediate_size": 51, "num_hidden_layers": 6, "num_attention_heads": 8,
                   "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 67, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2", "n_embd": 30, "n_head": 5, "n_layer": 5, "vocab_size": 53, "n_positions": 40, "n_inner": 50,
             "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    "neox": {"model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 50, "num_hidden_layers": 8, "num_attention_heads": 4,
             "vocab_size": 59, "max_position_embeddings": 64, "layer_norm_eps": 1e-5, "rotary_pct": 0.5, "rotary_emb_base": 10000,
             "hidden_act": "gelu", "use_parallel_residual": True, "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 45, "num_hidden_layers": 4, "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 6, "vocab_size": 71, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False},
}


def blocks_of(model):
    return MODELS[model].get("num_hidden_layers") or MODELS[model]["n_layer"]


def cut(rng, blocks, parts):
    """`blocks` in `parts` at random, each one at least; one in eight is wrong by a block."""
    if parts > blocks:
        return ",".join(["1"] * parts)
    at = sorted(rng.sample(range(1, blocks), parts - 1))
    sizes = [b - a for a, b in zip([0] + at, at + [blocks])]
    if rng.random() < 0.125:
        sizes[-1] += 1
    return ",".join(map(str, sizes))


def draw(seed, i):
    """(model, global batch, options) of case i."""
    rng = random.Random("%d %d" % (seed, i))
    model = rng.choice(sorted(MODELS))
    ranks = rng.choice([1, 2, 2, 3, 4, 4, 4, 5, 6, 6, 8, 8])
    meshes = [(t, d, ranks // t // d) for t in range(1, ranks + 1) if ranks % t == 0 for d in range(1, ranks // t + 1) if ranks // t % d == 0]
    tp, dp, pp = rng.choice(meshes + [m for m in meshes if m[2] > 1])
    o = {"tp": tp, "dp": dp, "pp": pp}
    if dp > 1 or rng.random() < 0.1:
        o["zero"] = rng.randrange(4)
    if rng.random() < (0.5 if tp > 1 else 0.03):
        o["sequence-parallel"] = None
    o["recompute"] = rng.choice(["none", "none", "selective", "full"])
    o["pipeline"] = rng.choice(["gpipe", "1f1b", "interleaved", "interleaved", "zb-h1"])
    chunks = 1
    if o["pipeline"] == "interleaved" or rng.random() < 0.04:
        chunks = rng.choice([1, 2, 2, 3])
        if chunks * pp > blocks_of(model) and rng.random() < 0.6:  # most that cannot be are left out: a third would be
            chunks = 1
        o["chunks"] = chunks
    stages = rng.choice(["even", "even", "balanced", "list"])
    o["stages"] = cut(rng, blocks_of(model), pp * chunks) if stages == "list" else stages
    o["micro-batch"] = rng.choice([1, 1, 2, 3, 4])
    if rng.random() < 0.1:
        o["device"] = "deferred"
    if rng.random() < 0.1:
        o["kernels"] = "plain"
    return model, rng.choice([5, 8, 9]), o


def flags(options):
    return [part for key, value in options.items() for part in (["--" + key] if value is None else ["--" + key, str(value)])]


def tensors(path):
    """name -> its values, of a safetensors file in fp32"""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            assert t["dtype"] == "F32", name
            out[name] = array.array("f", data[t["data_offsets"][0]:t["data_offsets"][1]])
    return out


def distance(a, b):
    """|a - b| / |b|"""
    d = sum((x - y) * (x - y) for x, y in zip(a, b))
    return (d / max(sum(y * y for y in b), 1e-4)) ** 0.5 if d == d else float("inf")


class Run:
    """What a run left: its metrics' lines in order, and the weights of its last checkpoint."""

    def __init__(self, path):
        with open(path + "/metrics.jsonl") as f:
            lines = [json.loads(line) for line in f]
        self.values = []
        for line in lines:
            for key in ("loss", "grad_norm", "valid_loss", "counted"):
                if key in line:
                    self.values.append((line["step"], key, line[key]))
        self.weights = tensors(path + "/checkpoints/step-%d/model.safetensors" % STEPS)

    def differs(self, one):
        """The first thing in which it is not as `one`, or None."""
        if [v[:2] for v in self.values] != [v[:2] for v in one.values]:
            return "other lines in metrics.jsonl"
        for (step, key, a), (_, _, b) in zip(self.values, one.values):
            if a is None or b is None or not abs(a - b) <= 1e-5 * abs(b):
                return "%s of step %d is %r, one rank %r" % (key, step, a, b)
        if self.weights.keys() != one.weights.keys():
            return "other tensors in the checkpoint"
        for name, w in self.weights.items():
            if len(w) != len(one.weights[name]):
                return "%s has another size" % name
            d = distance(w, one.weights[name])
            if not d <= 1e-5:
                return "%s differs by %g after %d steps" % (name, d, STEPS)
        return None


class Soak:
    def __init__(self, imece, directory, deadline):
        self.imece, self.dir, self.deadline = imece, directory, deadline
        self.reasons = [re.compile(refusals.pattern(text)) for text in refusals.of_docs()]
        self.one = {}
        rng = random.Random(7)
        ids = self.dir + "/ids.txt"
        with open(ids, "w") as f:
            for _ in range(60):
                f.write(" ".join(str(rng.randrange(50)) for _ in range(30)) + "\n")
        self.call(["data", "build", ids, "--ids", "--out", self.dir + "/d", "--valid-fraction", "0.1"])
        for name, config in MODELS.items():
            os.mkdir(self.dir + "/" + name)
            with open("%s/%s/config.json" % (self.dir, name), "w") as f:
                json.dump(config, f)

    def call(self, arguments):
        p = subprocess.run([self.imece] + arguments, capture_output=True, text=True, timeout=self.deadline, stdin=subprocess.DEVNULL)
        if p.returncode:
            sys.exit("soak_layout.py: imece %s: %s" % (" ".join(arguments), p.stderr))

    def command(self, model, batch, options, out):
        return [self.imece, "train", "--model", self.dir + "/" + model, "--data", self.dir + "/d-train", "--valid", self.dir + "/d-valid",
                "--eval-batches", "0", "--seq-len", str(SEQ), "--global-batch", str(batch), "--steps", str(STEPS), "--lr", "1e-3", "--eps", "1e-5",
                "--label-smoothing", "0.05", "--seed", "3", "--threads", "1", "--deadline", "300", "--no-rings", "--out", out] + flags(options)

    def reference(self, model, batch):
        if (model, batch) not in self.one:
            out = "%s/one-%s-%d" % (self.dir, model, batch)
            self.call(self.command(model, batch, {"micro-batch": batch}, out)[1:])
            self.one[model, batch] = Run(out)
        return self.one[model, batch]

    def run(self, model, batch, options):
        """-> (verdict, text): right, refused, or what is wrong"""
        out = self.dir + "/run"
        shutil.rmtree(out, ignore_errors=True)
        try:
            p = subprocess.run(self.command(model, batch, options, out), capture_output=True, text=True, timeout=self.deadline,
                               stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return "HANGS", "no end after %g s" % self.deadline
        said = " ".join(p.stderr.split())
        if p.returncode == 2:
            for k, reason in enumerate(self.reasons):
                if reason.search(said):
                    return ("refused", str(k)) if not os.path.exists(out) else ("WRONG", "refused, but it wrote %s" % out)
            return "WRONG", "refused, and docs/refusals.md has no such reason: %s" % said[:400]
        if p.returncode:
            return "FAILS", "exit code %d: %s" % (p.returncode, said[-400:])
        difference = Run(out).differs(self.reference(model, batch))
        return ("WRONG", difference) if difference else ("right", "")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--imece", default="build/imece")
    p.add_argument("--count", type=int, default=200)
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--deadline", type=float, default=600)
    p.add_argument("--share", type=float, default=0.7)
    p.add_argument("--quiet", action="store_true", help="only what is wrong, and the sum")
    a = p.parse_args()
    seed = a.seed if a.seed is not None else int(time.time())
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    print("soak-layout: seed %d" % seed, flush=True)
    count, refused, began = collections.Counter(), collections.Counter(), time.time()
    with tempfile.TemporaryDirectory(prefix="imece-soak-") as directory:
        soak = Soak(os.path.abspath(a.imece), directory, a.deadline)
        for i in range(a.first, a.first + a.count):
            model, batch, options = draw(seed, i)
            t0 = time.time()
            verdict, text = soak.run(model, batch, options)
            count[verdict] += 1
            name = "%s, batch %d %s" % (model, batch, " ".join(flags(options)))
            if verdict == "refused":
                refused[int(text)] += 1
                text = ""
            if not a.quiet or verdict not in ("right", "refused"):
                print("%4d %-8s %5.1f s  %s%s" % (i, verdict, time.time() - t0, name, "\n     " + text if text else ""), flush=True)
    reasons = refusals.of_docs()
    for k, n in refused.most_common():
        print("refused %d: %s" % (n, reasons[k]))
    few = a.count >= 50 and count["right"] < a.share * a.count
    if few:
        print("soak-layout: too few of them run: at least %.0f %%" % (100 * a.share))
    good = count["right"] + count["refused"] == a.count and not few
    print("soak-layout: %d layouts, seed %d, %.0f s: %d right (%.0f %%), %d refused by the table, %d wrong, %d failed, %d hang" %
          (a.count, seed, time.time() - began, count["right"], 100 * count["right"] / a.count, count["refused"], count["WRONG"], count["FAILS"],
           count["HANGS"]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
