#!/usr/bin/env python3
"""check_peers.py [--build DIR] [--only NAME ...] [--keep DIR] [--threads N]: build/imece against Transformers and PyTorch.

The peer computes in fp32 on this machine's CPU. Checks (each prints one line; exit code 3 when one fails):
  logits    SmolLM2-135M: log-probabilities after every position of 5 prompts, at Transformers' 8 likeliest ids and
            8 random ones each, within 1e-4 absolute
  greedy    the same greedy ids after these prompts
  steps     SmolLM2-135M, 20 AdamW steps: losses and gradient norms within 1e-5 relative of PyTorch
            (norms within 5e-5: PyTorch's own fp32 ones differ from its fp64 ones by 1e-5 after 8 steps, ours by 1e-6)
  export    the checkpoint after these steps, opened by Transformers as it is, gives our evaluation loss
  layouts   SmolLM2-135M in layouts with tensor, sequence, data and pipeline parallelism and ZeRO: 5 steps of documents of different lengths,
            losses within 1e-5 relative of one rank's and of PyTorch's; the process's peak, less what it had when the command began, within
            10 % of what the plan said
  resumes   saved in one layout, resumed in a second, then at one rank, then opened by Transformers: each step's loss, and Transformers' of
            the next step's batch, within 1e-5 relative of the run that was never stopped
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
LAYOUTS = {"tp 2, sequence parallel": "--tp 2 --sequence-parallel", "tp 3": "--tp 3", "dp 2, zero 3": "--dp 2 --zero 3", "tp 2 x dp 2": "--tp 2 --dp 2",
           "pp 2, 1F1B": "--pp 2", "pp 4, interleaved": "--pp 4 --pipeline interleaved", "tp 2 x pp 2": "--tp 2 --pp 2",
           "pp 3 x dp 2, zero 1": "--pp 3 --dp 2 --zero 1"}
RESUMES = [("--tp 2 --dp 2", "--tp 1 --dp 3 --zero 3", "--dp 1 --zero 0"), ("--tp 2 --pp 2", "--tp 1 --pp 1 --dp 2 --zero 3", "--dp 1 --zero 0")]
DOC_STEPS, DOC_BATCH, DOC_LEN = 5, 5, 24  # of `layouts`; documents of 2 to DOC_LEN + 1 tokens
PROMPTS = ["The village works together, and so do", "Türkiye'nin başkenti Ankara'dır. 1923 yılında",
           "def factorial(n):\n    if n == 0:\n        return 1\n    return", "Once upon a time, in a small house near the sea,",
           "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n"]
LR, CLIP, DECAY, NEW = 1e-4, 1.0, 0.1, 12
TOP, RANDOM = 8, 8
MEMORY = 0.1
CHECKS = ["logits", "greedy", "steps", "layouts", "resumes", "gpt2", "families"]


def newest(run_dir):
    root = run_dir / "checkpoints"
    return root / (root / "latest").read_text().strip()


def memory_of(closing):
    """Of a run's closing summary: whether what the process grew by is near what the plan said, and both in words."""
    said = json.loads(closing.splitlines()[-1])
    grew, planned = said["mem_peak_bytes"] - said["mem_start_bytes"], said["mem_predicted_bytes"]
    off = grew / planned - 1
    return abs(off) <= MEMORY, (f"planned {planned / 1e6:.0f} MB, the process grew by {grew / 1e6:.0f} MB, {100 * off:+.1f} % "
                                f"(allowed {100 * MEMORY:.0f} %)")


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
        self.documents = self.make_documents(2 * len(RESUMES[0]) + 1)
        self.whole = None

    def make_documents(self, steps):
        """As many documents as these steps need, from 2 to DOC_LEN + 1 tokens: a mean of means would be another loss."""
        lengths = np.random.default_rng(7).permuted(np.resize(np.arange(2, DOC_LEN + 2), steps * DOC_BATCH))
        ends = np.cumsum(lengths)
        documents = [self.ids[e - n:e] for n, e in zip(lengths, ends)]
        write_tokens(self.work / "documents", documents)
        return documents

    def report(self, name, good, text):
        self.failures += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {text}", flush=True)

    def load(self, directory, dtype=torch.float32):
        return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()

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

    def train(self, out, directory, data, steps, seq_len, batch, micro, *more):
        """Runs the trainer; what it used of memory, as report() takes it."""
        return memory_of(run_imece(
            self.args.build, "train", "--model", directory, "--data", data, "--out", out, "--steps", steps, "--seq-len", seq_len,
            "--micro-batch", micro, "--global-batch", batch, "--order", "sequential", "--precision", "fp32", "--lr", LR, "--schedule", "constant",
            "--warmup", 0, "--weight-decay", DECAY, "--beta1", 0.9, "--beta2", 0.95, "--eps", 1e-8, "--clip", CLIP, "--dropout", 0, "--json", *more))

    def train_documents(self, out, steps, layout):
        shutil.rmtree(out, ignore_errors=True)
        return self.train(out, self.smol, self.work / "documents", steps, DOC_LEN, DOC_BATCH, 1, "--pack", "none", "--attention", "causal",
                          *layout.split())

    def document_batch(self, step):
        """The ids and targets of one step, padded at their ends; -100: not counted."""
        ids, targets = torch.zeros(DOC_BATCH, DOC_LEN, dtype=torch.long), torch.full((DOC_BATCH, DOC_LEN), -100)
        for i, d in enumerate(self.documents[step * DOC_BATCH:(step + 1) * DOC_BATCH]):
            ids[i, :len(d) - 1], targets[i, :len(d) - 1] = torch.from_numpy(d[:-1].copy()), torch.from_numpy(d[1:].copy())
        return ids, targets

    def one_rank(self):
        """The run that is never stopped: as many steps as `resumes` has, and the one whose batch Transformers gets."""
        if self.whole is None:
            out, steps = self.work / "run-whole", 2 * len(RESUMES[0]) + 1
            log(f"one rank: {steps} steps of {DOC_BATCH} documents")
            memory = self.train_documents(out, steps, f"--threads {self.args.threads}")
            self.whole = read_metrics(out)
            shutil.rmtree(out)
            self.report("one rank, memory", *memory)
        return self.whole

    def layouts(self):
        one = self.one_rank()
        log("the same with PyTorch")
        model = self.load(self.smol)
        opt = torch.optim.AdamW(groups(model, DECAY), lr=LR, betas=(0.9, 0.95), eps=1e-8)
        peer = [train_step(model, opt, *self.document_batch(s), CLIP) for s in range(DOC_STEPS)]
        del model, opt
        self.compare_losses("one rank", one[:DOC_STEPS], peer, peer)
        for name, layout in LAYOUTS.items():
            out = self.work / "run-layout"
            log(name)
            memory = self.train_documents(out, DOC_STEPS, layout)
            self.compare_losses(name, read_metrics(out), [(m["loss"], m["grad_norm"]) for m in one], peer)
            self.report(f"{name}, memory", *memory)
            shutil.rmtree(out)

    def compare_losses(self, name, ours, one, peer):
        def worst(right, k, key):
            return max(abs(m[key] - r[k]) / r[k] for m, r in zip(ours, right))
        off, far = worst(one, 0, "loss"), worst(peer, 0, "loss")
        norm, far_norm = worst(one, 1, "grad_norm"), worst(peer, 1, "grad_norm")
        good = len(ours) == DOC_STEPS and max(off, far) <= 1e-5 and max(norm, far_norm) <= 5e-5
        self.report(name, good, f"{len(ours)} steps, loss {ours[0]['loss']:.5f} -> {ours[-1]['loss']:.5f}; largest relative difference from one rank "
                                f"{off:.1e}, from PyTorch {far:.1e} (allowed 1e-5), of norms {norm:.1e}, {far_norm:.1e} (allowed 5e-5)")

    def resumes(self):
        one = self.one_rank()
        for stages in RESUMES:
            out, steps = self.work / "run-resumed", 0
            for layout in stages:
                steps += 2
                log(f"to step {steps}: {layout}")
                if steps == 2:
                    memory = self.train_documents(out, steps, layout)
                else:
                    memory = memory_of(run_imece(self.args.build, "train", "--resume", out, "--steps", steps, "--json", *layout.split()))
                self.report(f"to step {steps}: {layout}, memory", *memory)
            ours = [m["loss"] for m in read_metrics(out)]
            with torch.no_grad():
                ids, targets = self.document_batch(steps)
                logits = self.load(newest(out))(input_ids=ids, use_cache=False).logits.double()
                ours.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item())
            shutil.rmtree(out)
            off = [abs(a - m["loss"]) / m["loss"] for a, m in zip(ours, one)]
            good = len(ours) == len(one) == steps + 1 and max(off) <= 1e-5
            self.report(f"resumes {' | '.join(stages)}", good,
                        f"{len(ours) - 1} steps and Transformers' loss of the next batch; largest relative difference from the run that was not "
                        f"stopped {max(off[:-1]):.1e}, of Transformers {off[-1]:.1e} (allowed 1e-5)")

    def compare_steps(self, name, directory, steps, batch, micro, seq_len):
        out = self.work / f"run-{name}"
        shutil.rmtree(out, ignore_errors=True)
        log(f"{name}: {steps} steps of {batch} x {seq_len} tokens with imece")
        memory = self.train(out, directory, self.data, steps, seq_len, batch, micro, "--threads", self.args.threads)
        ours = read_metrics(out)
        self.report(f"{name}, memory", *memory)
        log(f"{name}: the same with PyTorch")
        worst, norm = self.from_pytorch(ours, directory, steps, batch, micro, seq_len, torch.float32)
        told, good = f"from PyTorch {worst:.1e}, of norms {norm:.1e}", worst <= 1e-5 and norm <= 5e-5
        if not good:  # rounding grows from step to step on both sides: what is right tells fp64
            log(f"{name}: the same with PyTorch in fp64")
            worst, norm = self.from_pytorch(ours, directory, steps, batch, micro, seq_len, torch.float64)
            told, good = f"{told}; from PyTorch in fp64 {worst:.1e}, {norm:.1e}", worst <= 1e-5 and norm <= 5e-5
        self.report(name, good and len(ours) == steps, f"{steps} steps, loss {ours[0]['loss']:.5f} -> {ours[-1]['loss']:.5f}; largest relative "
                                                       f"difference {told} (allowed 1e-5 and 5e-5 from either)")
        return out

    def from_pytorch(self, ours, directory, steps, batch, micro, seq_len, dtype):
        """The same steps with PyTorch: the largest relative difference of a loss, and of a norm."""
        model = self.load(directory, dtype)
        opt = torch.optim.AdamW(groups(model, DECAY), lr=LR, betas=(0.9, 0.95), eps=1e-8)
        off = []
        for s in range(steps):
            x, y = sequential(self.ids, seq_len, s * batch, batch)
            loss, norm = train_step(model, opt, torch.from_numpy(x), torch.from_numpy(y), CLIP, micro)
            off.append((abs(ours[s]["loss"] - loss) / loss, abs(ours[s]["grad_norm"] - norm) / norm))
        return tuple(map(max, zip(*off)))

    def compare_export(self, name, run_dir, seq_len, ids=None):
        directory = newest(run_dir)
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
