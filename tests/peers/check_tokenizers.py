#!/usr/bin/env python3
"""check_tokenizers.py [--build DIR] [--mb N]: imece's tokenizers against Hugging Face's `tokenizers`.

For each kind of tests/golden/tokenizer (GPT-2, Llama 3, Qwen 2, SmolLM2, Llama 2, Metaspace, Falcon, Gemma; trained small) and for SmolLM2's own file: the ids of
N MB of mixed text (10; tok_text.py), with and without what the template puts around it, and the text of the ids. Then training: vocabulary and
merges of BpeTrainer on the same text and options. Then Transformers: the directory of a trained tokenizer, and a checkpoint of a run on its
tokens, open with AutoTokenizer and give our ids, special tokens and text. Exit code 3 when something differs.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import tok_text
from peerlib import Failed, log, run, run_imece

ROOT = pathlib.Path(__file__).resolve().parents[2]
END = "<<<end of text>>>"


def encode(build, path, texts, work, *options):
    """Ids of texts, each in a file's part that a separator line ends: a text is what stands in front of it, with its newline."""
    (work / "text").write_text("".join(t + "\n" + END + "\n" for t in texts), newline="")
    out = run_imece(build, "tokenizer", "encode", "-t", path, work / "text", "--separator", END, *options)
    return [list(map(int, line.split())) for line in out.split("\n")[:-1]]


def compare(build, name, path, texts, work):
    tok, bad = Tokenizer.from_file(str(path)), 0
    right = [e.ids for e in tok.encode_batch([t + "\n" for t in texts], add_special_tokens=False)]
    around = [e.ids for e in tok.encode_batch([t + "\n" for t in texts[:500]])]
    ours = encode(build, path, texts, work)
    bad += sum(a != b for a, b in zip(ours, right)) + abs(len(ours) - len(right))
    bad += sum(a != b for a, b in zip(encode(build, path, texts[:500], work, "--template"), around))
    (work / "ids").write_text("".join(" ".join(map(str, i)) + "\n" for i in right[:500]))
    back = run_imece(build, "tokenizer", "decode", "-t", path, work / "ids", "--json").splitlines()
    bad += sum(json.loads(a)["text"] != tok.decode(b, skip_special_tokens=False) for a, b in zip(back, right[:500]))
    nbytes = sum(len(t.encode()) + 1 for t in texts)
    print(f"{'FAIL' if bad else 'ok  '} {name}: {sum(map(len, right))} ids of {nbytes / 1e6:.1f} MB in {len(texts)} texts; {bad} texts differ", flush=True)
    return bad


def train(build, texts, work, style, pre, **options):
    (work / "text").write_text("".join(t + "\n" + END + "\n" for t in texts), newline="")
    flags = [x for k, v in options.items() for x in (f"--{k.replace('_', '-')}", v)]
    run_imece(build, "tokenizer", "train", work / "text", "--separator", END, "--style", style, "--out", work / "tok", "--force", *flags)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.train_from_iterator([x + "\n" for x in texts], trainers.BpeTrainer(special_tokens=["<|endoftext|>"], show_progress=False,
                                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options))
    ours, right = json.loads((work / "tok/tokenizer.json").read_text())["model"], json.loads(t.to_str())["model"]
    good = ours["vocab"] == right["vocab"] and ours["merges"] == right["merges"]
    opened = Tokenizer.from_file(str(work / "tok/tokenizer.json"))
    good = good and all(opened.encode(x).ids == t.encode(x).ids for x in texts[:50])
    print(f"{'ok  ' if good else 'FAIL'} training {style} {options}: {len(right['merges'])} merges", flush=True)
    return not good


def open_in_transformers(build, name, path, texts, work, end, length):
    """A directory through AutoTokenizer: ids without and with the template, text, the token that ends a text."""
    from transformers import AutoTokenizer
    tok = AutoTokenizer.from_pretrained(str(path))
    ours, around = encode(build, path, texts, work), encode(build, path, texts, work, "--template")
    right = [tok(t + "\n", add_special_tokens=False).input_ids for t in texts]
    bad = [name for name, good in (
        ("ids", ours == right), ("ids with the template", around == [tok(t + "\n").input_ids for t in texts]),
        ("text", [tok.decode(i, skip_special_tokens=False, clean_up_tokenization_spaces=False) for i in right] == [t + "\n" for t in texts]),
        ("end of text", tok.eos_token == end and tok.convert_tokens_to_ids(end) == tok.eos_token_id), ("length", len(tok) == length)) if not good]
    print(f"{'FAIL' if bad else 'ok  '} AutoTokenizer {name}: {sum(map(len, right))} ids in {len(texts)} texts, ends with {tok.eos_token}"
          + (f"; not the same: {', '.join(bad)}" if bad else ""), flush=True)
    return bool(bad)


def transformers(build, texts, work):
    """Tokenizers that `imece tokenizer train` made, and the checkpoints of runs on their tokens."""
    failures, end = 0, "<|im_end|>"
    (work / "text").write_text("".join(t + "\n" + END + "\n" for t in texts), newline="")
    (work / "pages").write_text((work / "text").read_text(), newline="")
    shape = json.loads((ROOT / "models/llama-bytes-tiny.json").read_text())
    (work / "config.json").write_text(json.dumps({**shape, "vocab_size": 2048, "hidden_size": 32, "num_hidden_layers": 1}))
    for style in ("gpt2", "llama3", "qwen2", "smollm2"):
        tok, data, out = (work / f"{what}-{style}" for what in ("own", "data", "run"))
        run_imece(build, "tokenizer", "train", work / "pages", "--separator", END, "--style", style, "--vocab-size", 2000, "--out", tok,
                  "--special", "<|im_start|>", "--special", end, "--eos", end)
        failures += open_in_transformers(build, f"{style}, trained", tok, texts, work, end, 2000)
        run_imece(build, "data", "build", work / "pages", "--separator", END, "--tokenizer", tok, "--out", data)
        run_imece(build, "train", "--model", work / "config.json", "--tokenizer", tok, "--data", f"{data}-train", "--out", out, "--steps", 1,
                  "--seq-len", 32, "--threads", 1)
        failures += open_in_transformers(build, f"{style}, from a checkpoint", out / "checkpoints/step-1", texts, work, end, 2000)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--mb", type=float, default=10)
    args = parser.parse_args()
    texts = [t for t in tok_text.texts(args.mb * 1e6) if END not in t and t]
    failures = 0
    with tempfile.TemporaryDirectory(prefix="imece-peers-") as name:
        work = pathlib.Path(name)
        for path in sorted((ROOT / "tests/golden/tokenizer").glob("*.json")):
            if path.stem != "vectors":
                failures += compare(args.build, path.stem, path, texts, work) > 0
        try:
            log("SmolLM2's own tokenizer")
            run([sys.executable, str(ROOT / "tests/peers/smollm2_dir.py"), str(work / "smollm2"), "bf16"])
            failures += compare(args.build, "SmolLM2-135M", work / "smollm2/tokenizer.json", texts, work) > 0
        except Failed as e:
            print(f"FAIL SmolLM2-135M: {e}")
            failures += 1
        pages = [t for t in tok_text.samples() if END not in t]
        llama3 = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False)])
        failures += train(args.build, pages, work, "gpt2", pre_tokenizers.ByteLevel(False), vocab_size=8000)
        failures += train(args.build, pages, work, "gpt2", pre_tokenizers.ByteLevel(False), vocab_size=3000, min_frequency=20, max_token_length=6)
        failures += train(args.build, pages, work, "llama3", llama3, vocab_size=8000)
        failures += transformers(args.build, pages[:60] + [t for t in texts if len(t) < 3000][:300], work)
    print("all tokenizers agree" if not failures else f"{failures} checks failed")
    sys.exit(3 if failures else 0)


if __name__ == "__main__":
    main()
