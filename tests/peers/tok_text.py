"""Mixed text to try tokenizers on: the same texts for the same seed, from this repository's pages and sources, Python's own library, and
characters of every kind drawn at random."""
import pathlib
import random
import sysconfig
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANGES = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
          (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x20A0, 0x20CF), (0x2100, 0x214F), (0x2460, 0x24FF),
          (0x2600, 0x27BF), (0x3000, 0x30FF), (0x3400, 0x34FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB4F),
          (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x10330, 0x1034A), (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
          (0xE0020, 0xE007F)]
EMOJI = ["\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F44D\U0001F3FD", "\U0001F1F9\U0001F1F7", "\u2764\uFE0F\u200D\U0001F525",
         "1\uFE0F\u20E3", "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F", "\u00A9\uFE0F", "\U0001FAE0"]
ARABIC = ["\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064A\u0643\u0645", "\u0645\u064F\u062D\u064E\u0645\u0651\u064E\u062F", "\u0661\u0662\u0663\u060C \u0664",
          "\u0644\u0627\u200C\u0647\u0627", "\u202Eabc\u202C"]
CJK = ["\u65E5\u672C\u8A9E\u306E\u6587\u7AE0\u3067\u3059\u3002", "\u4E2D\u6587\uFF0C\u6CA1\u6709\u7A7A\u683C\u7684\u53E5\u5B50\u3002", "\uD55C\uAD6D\uC5B4 \uBB38\uC7A5", "\u30AB\u3099\u30D5\u309A", "\uFF11\uFF12\uFF13"]
TURKISH = ["İstanbul'da IŞIK ılık, iğne İĞNE; şeker çiğ.", "i\u0307", "Türkiye’nin başkenti Ankara’dır.", "I\u0307ZMI\u0307R", "gidiyormuşçasına"]
SPECIAL = ["<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n", "<s>", "</s>", " <s> </s> ", "<unk>", "<|begin_of_text|>", "<|eot_id|>", "<tool_call>",
           "<|endoftext", "|endoftext|>", "<<s>>", "<0x0A>", "\u0120the", "\u2581\u2581the", "<|endoftext|><|endoftext|>", "[INST]", "<mask>", " <mask>\t"]
SPACES = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "    ", " \n ", "\u00A0", "\u3000", "\u2028", "\u180E", "\u200B", "\x0B\x0C", "\x85", "\n   \n\t\n", "\u2003 "]
CONTRACTIONS = ["it's", "IT'S", "don't", "we'LL", "they've", "I'm", "'S", "'\u017F", "\u2019s", "d'accord", "''re'", "x'st"]


def samples():
    out = []
    for pattern in ("README*.md", "docs/*.md", "src/*/*.[ch]", "tests/*/*.py", "tools/*"):
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                out.append(path.read_text(errors="replace"))
    lib = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse.py", "typing.py", "turtle.py", "decimal.py", "_pydecimal.py", "html/entities.py", "encodings/cp857.py", "locale.py"):
        if (lib / name).exists():
            out.append((lib / name).read_text(errors="replace"))
    return out


def known(c):
    """Assigned in Python's Unicode (14): the two sides have newer tables, and not the same ones."""
    return unicodedata.category(c) != "Cn"


def character(rng):
    while True:
        c = chr(rng.randint(*rng.choice(RANGES)))
        if known(c):
            return c


def odd_word(rng):
    kind = rng.randrange(13)
    if kind < 2:
        return rng.choice(rng.choice((EMOJI, ARABIC, CJK, TURKISH, SPECIAL, CONTRACTIONS)))
    if kind == 2:
        return "".join(character(rng) for _ in range(rng.randint(1, 12)))
    if kind == 3:
        low, high = rng.choice(RANGES)
        return "".join(filter(known, (chr(rng.randint(low, high)) for _ in range(rng.randint(1, 20)))))
    if kind == 4:  # marks in any order and number
        return "".join(rng.choice("aeiousnczAEIO\u0438\u0915") + "".join(chr(rng.randint(0x300, 0x345)) for _ in range(rng.randrange(5)))
                       for _ in range(rng.randint(1, 5)))
    if kind == 5:
        return str(rng.randrange(10 ** rng.randint(1, 12))) + rng.choice(["", ".5", "%", "\u00B2", "\u00BD", "\u0663", "x"])
    if kind == 6:
        return chr(rng.randrange(0x20)) * rng.randint(1, 3)
    if kind == 7:
        return "".join(rng.choice("!?.,;:-_=+*/\\|()[]{}<>@#$%^&~`\"'") for _ in range(rng.randint(1, 10)))
    if kind == 8:
        return rng.choice("ab=- x\u4E2D") * rng.randint(1, 300)
    if kind == 9:
        return unicodedata.normalize(rng.choice(("NFD", "NFC", "NFKD")), rng.choice(TURKISH + CJK))
    if kind == 10:
        return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 4)))
    if kind == 11:  # any character there is; not marks, whose order in normal forms came with later versions too
        c = rng.randrange(0x110000 - 0x800)
        c = chr(c if c < 0xD800 else c + 0x800)
        return c if known(c) and not unicodedata.combining(c) else "\u0627"
    return rng.choice(SPECIAL)


def odd_text(rng, length):
    out, n = [], 0
    while n < length:
        word = odd_word(rng) + (rng.choice(SPACES) if rng.random() < 0.8 else "")
        out.append(word)
        n += len(word)
    return "".join(out)


def texts(nbytes, seed=1):
    """Texts of together about nbytes of UTF-8: half of it pages and sources, half odd; very long words among them."""
    rng = random.Random(seed)
    pages, out, total = samples(), [], 0
    for n in (0, 1, 2, 100000):
        out.append("x" * n)
        out.append("\u00E7\u011F" * n)
    out += ["".join(rng.choice("abcdefgh") for _ in range(200000)), " " * 100000, "\u4E2D" * 50000, "\U0001F600" * 20000, "a " * 50000]
    out += SPECIAL + SPACES + [a + b for a in SPACES for b in SPACES]
    while total < nbytes:
        page = rng.choice(pages)
        at = rng.randrange(len(page))
        part = page[at:at + rng.randint(10, 20000)]
        text = part if rng.random() < 0.5 else odd_text(rng, rng.randint(1, 10000))
        if rng.random() < 0.2:
            text = part[:2000] + odd_text(rng, 500) + part[2000:]
        out.append(text)
        total += len(text.encode())
    return out
