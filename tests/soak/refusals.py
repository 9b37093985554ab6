#!/usr/bin/env python3
"""refusals.py: the table of docs/refusals.md against the reasons in the code.

A reason in the code is the format of an im_fail in one of SOURCES; in the table it is the same text with N for a number and ... for a name.
Both must have the same ones: a rule that is added or changed without its row fails the check, and so does a row that no rule has.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# file -> functions whose refusals are of the layout (None: all of the file)
SOURCES = {
    "src/plan/plan.c": None,
    "src/model/share.c": ["im_share_check"],
    "src/model/model.c": ["im_model_need_runnable"],
    "src/train/plan.c": None,
    "src/plan/refuse.c": ["im_plan_check_layout", "refuse_count"],
    "src/train/setup.c": ["im_train_need_memory"],
    "src/train/options.c": ["rule_sequence_parallel"],
}


def plain(text):
    """A format or a row's text with its places made equal."""
    text = re.sub(r"%[-+ 0-9.]*(?:ll|z|l)?[dugx]", "N", text)
    text = re.sub(r"%[-0-9.]*s", "...", text)
    return re.sub(r"\s+", " ", text).strip()


def functions(source):
    """name -> text, of a C file formatted as this project's are: a function begins and ends in the first column."""
    out = {}
    for m in re.finditer(r"^[a-z][^\n;#]*?\b(\w+)\([^;{]*?\)\n\{\n(.*?)^\}", source, re.M | re.S):
        out[m.group(1)] = m.group(2)
    return out


LITERAL = r'"(?:[^"\\]|\\.)*"'


def first_text(call):
    """The first literal of an argument list, its parts put together."""
    call = call.replace('" PRId64 "', "lld").replace('" PRId64', 'lld"')
    m = re.search(LITERAL + r"(?:\s*" + LITERAL + ")*", call)
    return "".join(part[1:-1] for part in re.findall(LITERAL, m.group(0))).replace('\\"', '"') if m else ""


def of_code():
    """text -> where, of every refusal"""
    found = {}
    for path, names in SOURCES.items():
        with open(os.path.join(ROOT, path)) as f:
            all_functions = functions(f.read())
        for name in names or all_functions:
            if name not in all_functions:
                sys.exit("refusals.py: %s has no function %s" % (path, name))
            for m in re.finditer(r"im_fail\(|im_str_printf\(&text, *", all_functions[name]):
                text = plain(first_text(all_functions[name][m.end():]))
                if text != "..." and "no memory" not in text:
                    found[text] = "%s, %s" % (path, name)
    return found


def of_docs():
    """The first column of the tables: text in backticks."""
    with open(os.path.join(ROOT, "docs", "refusals.md")) as f:
        return [plain(m.group(1)) for m in re.finditer(r"^\| `([^`]*)` \|", f.read(), re.M)]


def pattern(text):
    """A regular expression for what a reason says when its places are filled."""
    out = re.escape(text)
    out = re.sub(r"(?<![A-Za-z])N(?![A-Za-z])", r"-?[0-9.e+]+", out)
    return out.replace(re.escape("..."), ".*")


def check():
    code, docs = of_code(), of_docs()
    bad = ["docs/refusals.md has no row for `%s` (%s)" % (t, w) for t, w in code.items() if t not in docs]
    bad += ["docs/refusals.md: no rule says `%s`" % t for t in docs if t not in code]
    bad += ["docs/refusals.md: twice: `%s`" % t for t in set(docs) if docs.count(t) > 1]
    for line in bad:
        print(line)
    if not bad:
        print("%d reasons, each with its row" % len(code))
    return not bad


if __name__ == "__main__":
    sys.exit(0 if check() else 1)
