#!/usr/bin/env python3
"""check_peers.py [--build DIR] [--only NAME ...] [--keep DIR] [--threads N]: build/imece against Transformers and PyTorch.

The peer computes in fp32 on this machine's CPU. Checks (each prints one line; exit code 3 when one fails):
  logits    SmolLM2-135M: log-probabilities after every position of 5 prompts, at Transformers' 8 likeliest ids and
            8 random ones each, within 1e-4 absolute
  greedy    the same greedy ids after these prompts
  steps     SmolLM2-135M, 20 AdamW steps: losses and gradient norms within 1e-5 relative of PyTorch
            (norms within 5e-5: PyTorch's own fp32 ones differ from its fp64 ones by 1e-5 after 8 steps, ours by 1e-6)
  export    the checkpoint after these steps, opened by Transformers as it is, gives our evaluation loss
  gpt2      a random GPT-2 124M written by Transformers: 3 steps, and its export
  families  the models of tests/golden: 3 steps on ranks, in a layout of each; the checkpoint, opened by Transformers as it is, gives our loss
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from peerlib import Failed, groups, log, read_metrics, run, run_imece, sequential, train_step, write_tokens

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAMILIES = {"mistral-window": "--tp 2 --sequence-parallel", "mistral-tied": "--pp 2", "qwen2": "--dp 2 --zero 3", "qwen2-window": "--tp 2",
            "qwen3": "--tp 4", "qwen3-bias": "--tp 2 --recompute full", "olmo2": "--tp 4 --sequence-parallel", "olmo2-bias": "--pp 2 --tp 2",
            "phi3": "--tp 4", "phi3-long": "--tp 2 --dp 2 --zero 2", "neox": "--tp 3", "neox-sequential": "--tp 2", "bloom": "--tp 5",
            "bloom-untied": "--pp 2 --tp 2"}
PROMPTS = ["The village works together, and so do", "Türkiye'nin başkenti Ankara'dır. 1923 yılında",
           "def factorial(n):\n    if n == 0:\n        return 1\n    return", "Once upon a time, in a small house near the sea,",
           "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n"]
LR, CLIP, DECAY, NEW = 1e-4, 1.0, 0.1, 12
TOP, RANDOM = 8, 8
CHECKS = ["logits", "greedy", "steps", "gpt2", "families"]


class Peers:
    def __init__(self, args, work):
        self.args, self.work, self.failures = args, work, 0
        self.smol = work / "smollm2"
        if not (self.smol / "tokenizer.json").exists():
            log("writing SmolLM2-135M as a Hugging Face directory")
            run([sys.executable, str(ROOT / "tests/peers/smollm2_dir.py"), str(self.smol), "fp32"])
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(str(self.smol / "tokenizer.json"))
        self.prompts = [self.tokenizer.encode(p).ids for p in PROMPTS]
        text = "".join((ROOT / p).read_text() for p in ("tests/golden/make_golden.py", "tests/peers/check_peers.py", "LICENSE")
                       if (ROOT / p).exists())
        self.ids = np.array(self.tokenizer.encode(text).ids)
        self.data = work / "text"
        write_tokens(self.data, [self.ids])

    def report(self, name, good, text):
        self.failures += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {text}", flush=True)

    def load(self, directory):
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def logits(self):
        model = self.load(self.smol)
        gen, lines, right = np.random.default_rng(1), [str(len(self.prompts))], []
        for ids in self.prompts:
            with torch.no_grad():
                logp = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
            asked = torch.cat((logp.topk(TOP).indices.T, torch.from_numpy(gen.integers(0, logp.shape[1], (RANDOM, len(ids))))))
            right.append(torch.gather(logp, 1, asked.T).T.numpy())
            lines += [f"{len(ids)} {len(asked)}", " ".join(map(str, ids))] + [" ".join(map(str, row)) for row in asked.tolist()]
        out = run([str(self.args.build / "peer_logits"), str(self.smol), str(self.args.threads)], "\n".join(lines) + "\n")
        got = np.array(out.split(), float)
        worst = np.abs(got - np.concatenate([r.ravel() for r in right])).max()
        self.report("logits", worst <= 1e-4, f"{got.size} log-probabilities, largest difference {worst:.1e} (allowed 1e-4)")

    def greedy(self):
        model, same = self.load(self.smol), 0
        for ids in self.prompts:
            seen = torch.tensor([ids])
            with torch.no_grad():
                for _ in range(NEW):
                    seen = torch.cat((seen, model(input_ids=seen, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)), 1)
            out = json.loads(run_imece(self.args.build, "generate", "--model", self.smol, "--ids", ",".join(map(str, ids)),
                                       "--max-tokens", NEW, "--temperature", 0,
                                       "--threads", self.args.threads, "--json"))
            right = seen[0, len(ids):].tolist()
            if 2 in right:  # the end-of-text id stops our side
                right = right[:right.index(2) + 1]
            got = out["ids"][:len(right)]
            same += got == right[:len(got)] and len(got) >= len(right) - 1
            if got != right:
                log(f"greedy ids {got}, Transformers {right}")
        self.report("greedy", same == len(self.prompts), f"{same} of {len(self.prompts)} prompts continue alike for {NEW} ids")

    def compare_steps(self, name, directory, steps, batch, micro, seq_len):
        out = self.work / f"run-{name}"
        shutil.rmtree(out, ignore_errors=True)
        log(f"{name}: {steps} steps of {batch} x {seq_len} tokens with imece")
        run_imece(self.args.build, "train", "--model", directory, "--data", self.data, "--out", out, "--steps", steps,
                  "--seq-len", seq_len, "--micro-batch", micro, "--global-batch", batch, "--order", "sequential",
                  "--precision", "fp32", "--lr", LR, "--schedule", "constant", "--warmup", 0, "--weight-decay", DECAY,
                  "--beta1", 0.9, "--beta2", 0.95, "--eps", 1e-8, "--clip", CLIP, "--dropout", 0, "--threads", self.args.threads)
        ours = read_metrics(out)
        log(f"{name}: the same with PyTorch")
        model = self.load(directory)
        opt = torch.optim.AdamW(groups(model, DECAY), lr=LR, betas=(0.9, 0.95), eps=1e-8)
        worst, worst_norm = 0.0, 0.0
        for s in range(steps):
            x, y = sequential(self.ids, seq_len, s * batch, batch)
            loss, norm = train_step(model, opt, torch.from_numpy(x), torch.from_numpy(y), CLIP, micro)
            worst = max(worst, abs(ours[s]["loss"] - loss) / loss)
            worst_norm = max(worst_norm, abs(ours[s]["grad_norm"] - norm) / norm)
        good = len(ours) == steps and worst <= 1e-5 and worst_norm <= 5e-5
        self.report(name, good, f"{steps} steps, loss {ours[0]['loss']:.5f} -> {ours[-1]['loss']:.5f}; largest relative "
                                f"difference {worst:.1e} (allowed 1e-5), of norms {worst_norm:.1e} (allowed 5e-5)")
        return out

    def compare_export(self, name, run_dir, seq_len, ids=None):
        root = run_dir / "checkpoints"
        directory = root / (root / "latest").read_text().strip()
        model, total, count = self.load(directory), 0.0, 0
        ids, valid = (self.ids if ids is None else ids)[-(9 * seq_len + 1):], self.work / f"valid-{name.replace(' ', '-')}"
        write_tokens(valid, [ids], np.int32)
        for i in range(9):
            x, y = sequential(ids, seq_len, i, 1)
            with torch.no_grad():
                logits = model(input_ids=torch.from_numpy(x), use_cache=False).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, torch.from_numpy(y[0]), reduction="sum").item()
            count += y.size
        ours = json.loads(run_imece(self.args.build, "eval", "--model", directory, "--data", valid, "--seq-len", seq_len,
                                    "--threads", self.args.threads, "--json"))
        off = abs(ours["loss"] - total / count) / (total / count)
        self.report(name, off <= 1e-5, f"our loss of our checkpoint {ours['loss']:.6f}, Transformers' {total / count:.6f}, "
                                       f"relative difference {off:.1e} (allowed 1e-5)")

    def steps(self):
        self.compare_export("export", self.compare_steps("steps", self.smol, 20, 4, 2, 64), 64)

    def gpt2(self):
        directory = self.work / "gpt2"
        if not directory.exists():
            torch.manual_seed(1)
            GPT2LMHeadModel(GPT2Config()).save_pretrained(directory)
        self.compare_export("gpt2 export", self.compare_steps("gpt2", directory, 3, 3, 2, 100), 100)

    def families(self):
        small = self.work / "small"
        for name, layout in FAMILIES.items():
            directory, out = ROOT / "tests/golden" / name, self.work / f"run-{name}"
            ids = self.ids % json.loads((directory / "config.json").read_text())["vocab_size"]
            write_tokens(small, [ids])
            shutil.rmtree(out, ignore_errors=True)
            run_imece(self.args.build, "train", "--model", directory, "--data", small, "--out", out, "--steps", 3, "--seq-len", 24,
                      "--micro-batch", 1, "--global-batch", 3, "--lr", 1e-3, "--threads", 1, *layout.split())
            self.compare_export(f"{name} ({layout})", out, 24, ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS)
    parser.add_argument("--keep", type=pathlib.Path, help="work here and leave the files (default: a temporary directory)")
    parser.add_argument("--threads", type=int, default=0, help="threads of both sides (default: all cores)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    work = args.keep or pathlib.Path(tempfile.mkdtemp(prefix="imece-peers-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        peers = Peers(args, work)
        for name in args.only:
            try:
                getattr(peers, name)()
            except Failed as e:
                peers.report(name, False, str(e))
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    print("all peers agree" if not peers.failures else f"{peers.failures} checks failed")
    sys.exit(3 if peers.failures else 0)


if __name__ == "__main__":
    main()
