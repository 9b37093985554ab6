#!/usr/bin/env python3
"""bench_tokenizer.py [--build DIR] [--mb N] [--rounds N]: imece tokenizer beside Hugging Face's `tokenizers`, encoding and training, on one thread and on two.

One table and one JSON line. Rounds alternate, and the median of each counts. Ours is the whole command: loading, reading, printing the ids;
theirs is encode_batch alone (in a process of its own, for the number of threads), or train_from_iterator alone.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/peers"))
END = "<<<end of text>>>"
THEIRS = """
import sys, time, json
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
what, path, text, end = sys.argv[1:5]
texts = open(text, newline="").read().split(end + "\\n")[:-1]
t0 = time.time()
if what == "encode":
    tok = Tokenizer.from_file(path)
    t0 = time.time()
    tok.encode_batch(texts, add_special_tokens=False)
else:
    t = Tokenizer(models.BPE()); t.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=8000, special_tokens=["<|endoftext|>"], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
print(time.time() - t0)
"""


def ours(build, what, path, text, threads, work):
    args = [str(build / "imece"), "tokenizer", what]
    args += ["-t", str(path), str(text)] if what == "encode" else [str(text), "--vocab-size", "8000", "--out", str(work / "tok"), "--force"]
    t0 = time.time()
    subprocess.run(args + ["--separator", END, "--threads", str(threads)], check=True, stdout=subprocess.DEVNULL)
    return time.time() - t0


def theirs(what, path, text, threads):
    env = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="true")
    return float(subprocess.run([sys.executable, "-c", THEIRS, what, str(path), str(text), END], check=True, capture_output=True, text=True, env=env).stdout)


def main():
    import tok_text
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--mb", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    pages = [p for p in tok_text.samples() if END not in p]
    times = max(1, round(args.mb * 1e6 / sum(len(p.encode()) for p in pages)))
    result = []
    with tempfile.TemporaryDirectory(prefix="imece-bench-") as name:
        work = pathlib.Path(name)
        text = work / "text"
        text.write_text("".join(p + "\n" + END + "\n" for p in pages * times), newline="")
        mb = text.stat().st_size / 1e6
        print(f"{'':22} threads   imece MB/s   tokenizers MB/s   ratio   ({mb:.1f} MB, median of {args.rounds})")
        for what, path in [("encode", ROOT / f"tests/golden/tokenizer/{k}.json") for k in ("gpt2", "llama3", "qwen2", "llama2")] + [("train", None)]:
            for threads in (1, 2):
                a, b = [], []
                for _ in range(args.rounds):
                    a.append(ours(args.build, what, path, text, threads, work))
                    b.append(theirs(what, path, text, threads))
                x, y = mb / statistics.median(a), mb / statistics.median(b)
                label = f"{what} {path.stem if path else '8000 tokens'}"
                print(f"{label:22} {threads:7} {x:12.1f} {y:17.1f} {x / y:7.2f}", flush=True)
                result.append({"what": label, "threads": threads, "imece_mb_s": round(x, 2), "tokenizers_mb_s": round(y, 2), "ratio": round(x / y, 2)})
    print(json.dumps({"bench": "tokenizer", "mb": round(mb, 2), "rows": result}))


if __name__ == "__main__":
    main()
