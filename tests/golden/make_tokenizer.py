#!/usr/bin/env python3
"""make_tokenizer.py: small tokenizers in the style of known families, and their ids of odd texts, by Hugging Face's `tokenizers`.

Writes tests/golden/tokenizer/*.json. Made with tokenizers 0.23.3 (PyPI), Python 3.11:
    python3 -m venv V && V/bin/pip install tokenizers==0.23.3 && V/bin/python tests/golden/make_tokenizer.py
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, __version__, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
import tok_text

OUT = HERE / "tokenizer"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def words(digits):
    return Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(digits):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(words(digits), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])


def byte_level(pre, special=SPECIAL, normalizer=None, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t, dict(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def fallback(normalizer, pre, decoder):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoder
    return t, dict(special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=120)


def kinds():
    meta = "\u2581"
    sp = decoders.Sequence([decoders.Replace(meta, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    yield "gpt2", byte_level(pre_tokenizers.ByteLevel(False), ["<|endoftext|>"])
    yield "llama3", byte_level(split(r"\p{N}{1,3}"), ignore_merges=True)
    yield "qwen2", byte_level(split(r"\p{N}"), normalizer=normalizers.NFC())
    yield "smollm2", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(True)]))
    yield "llama2", fallback(normalizers.Sequence([normalizers.Prepend(meta), normalizers.Replace(" ", meta)]), None, sp)
    yield "metaspace", fallback(None, pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first"))
    yield "falcon", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(False), pre_tokenizers.Digits(False),
                                                        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    yield "gemma", fallback(normalizers.Replace(" ", meta), pre_tokenizers.Split(" ", "merged_with_previous"),
                            decoders.Sequence([decoders.Replace(meta, " "), decoders.ByteFallback(), decoders.Fuse()]))


def finish(name, t):
    """What the real ones have besides: templates, added tokens of all sorts; words' special tokens are no longer bytes' ones."""
    data = json.loads(t.to_str())
    if name in ("llama2", "metaspace", "gemma"):
        data["added_tokens"] = [a for a in data["added_tokens"] if not a["content"].startswith("<0x")]
        data["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                  "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    t = Tokenizer.from_str(json.dumps(data))
    if name == "llama3":
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|endoftext|> $A <|im_end|>", pair="$A $B", special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)])])
    if name == "smollm2":
        t.add_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("<tool_call>", rstrip=True, normalized=False),
                      AddedToken("[INST]", single_word=True, normalized=False)])
    if name == "metaspace":
        t.add_tokens([AddedToken("<mask>", normalized=True), AddedToken("the user", normalized=True, single_word=True)])
    return t


def texts():
    rng = random.Random(4)
    out = ["", "a", " ", "Hello world, it's 1923!", "x" * 300, " " * 70 + "x", "a<|endoftext|>b <s> c</s>  <mask>  d[INST] e[INST]f the user\n<tool_call>\t x"]
    out += tok_text.SPECIAL + tok_text.TURKISH + tok_text.CJK + tok_text.ARABIC + tok_text.EMOJI
    out += [tok_text.odd_text(rng, 60) for _ in range(40)]
    # punctuation that Unicode 8 did not have, and what was punctuation then
    out += [f"12 \n {c}\u062F a {c}b{c} ." for c in "\u061D\u09FD\u2E42\u2E43\u2E5D\u166D\u1B7E\u3002\U000111C9\U00011B00\U0001E95F"]
    return out


def main():
    OUT.mkdir(exist_ok=True)
    pages = [p for p in tok_text.samples() if "\x00" not in p][:40]
    train = [p[:3000] for p in pages] + ["T\u00FCrkiye'nin ba\u015Fkenti Ankara'd\u0131r. " * 3, " \u4E2D\u6587" * 5]
    odd, result = texts(), {"made_with": f"tokenizers {__version__}", "kinds": {}, "trained": {}}
    result["texts"], result["train"] = odd, train[:12] + train[-2:]
    for name, (t, how) in kinds():
        t.train_from_iterator(train, trainers.BpeTrainer(vocab_size=700, show_progress=False, **how))
        t = finish(name, t)
        (OUT / f"{name}.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":")))
        plain = [t.encode(x, add_special_tokens=False).ids for x in odd]
        kind = {"ids": plain, "around": [t.encode(x).ids for x in odd], "decoded": [t.decode(i, skip_special_tokens=False) for i in plain]}
        t.encode_special_tokens = True
        kind["letters"] = [t.encode(x, add_special_tokens=False).ids for x in odd]
        result["kinds"][name] = kind
    for name, pre, longest in (("gpt2", pre_tokenizers.ByteLevel(False), None), ("llama3", split(r"\p{N}{1,3}"), None), ("short", pre_tokenizers.ByteLevel(False), 4)):
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre
        more = {"max_token_length": longest} if longest else {}
        t.train_from_iterator(result["train"], trainers.BpeTrainer(vocab_size=600, show_progress=False, special_tokens=["<|endoftext|>"],
                                                                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **more))
        result["trained"][name] = {"vocab_size": 600, "merges": json.loads(t.to_str())["model"]["merges"]}
    (OUT / "vectors.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")))


main()
