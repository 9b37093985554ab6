#!/usr/bin/env python3
"""make-table.py [--check FILE]: the history of NCCL's variables as a C table (src/fabric/env_nccl_history.c), on standard output.

Read are, beside this script:
  params.tsv   every NCCL_PARAM(name, variable, default) of NCCL's source, found by git grep at the last tag of each minor
               version from 2.7.8 to 2.30.7: the version where a default appears, and where it changes. "(absent)": gone.
  getenv.txt   the variables that the same tags read with ncclGetEnv or getenv: first and last version.
EXTRA below is what those two searches cannot see. --check: exit 1 unless FILE is what would be printed.
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

# The searches see one-line NCCL_PARAM declarations and getenv calls: variables that moved to DEFINE_NCCL_PARAM look as if they had gone.
MOVED = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_DEBUG_TIMESTAMP_LEVELS", "NCCL_NO_CACHE",
         "NCCL_WARN_ENABLE_DEBUG_INFO", "NCCL_CTA_POLICY", "NCCL_SET_THREAD_NAME"}
EXTRA = [  # name, first minor, default
    ("NCCL_IB_OOO_RQ", 30, "0"),
    ("NCCL_CHECKS_DISABLE", 7, "0"),
    ("NCCL_NET_GDR_LEVEL", 7, "unset"),  # ncclGetLevel is given the names of these three
    ("NCCL_P2P_LEVEL", 7, "unset"),
    ("NCCL_P2P_DISABLE", 7, "0"),
]
FIRST = 7  # the oldest minor that was searched


def minor(tag):
    m = re.match(r"v2\.(\d+)\.\d+-1$", tag)
    if not m:
        sys.exit("make-table.py: not a tag of NCCL 2: %r" % tag)
    return int(m.group(1))


def value(text):
    """(as number or None, as text): C expressions of integers are worked out."""
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if text == "NCCL_CONFIG_UNDEF_INT":
        return None, "unset"
    plain = re.sub(r"(?<=\d)(?:LL|L|U)\b", "", text)
    if re.fullmatch(r"[-\d\s()<*+]+", plain):
        number = eval(plain)  # digits, blanks and ( ) - < * + alone
        return number, str(number)
    if text == "unset":
        return None, text
    return None, {"MAXCHANNELS": "all channels", "INT64_MAX": "no limit"}.get(text, text)


def read():
    rows = {}
    for line in open(os.path.join(HERE, "params.tsv")):
        name, changes = line.rstrip("\n").split("\t")
        steps = []
        for tag, text in re.findall(r"(v2\.\d+\.\d+-1):(.*?)(?=  v2\.\d|$)", changes):
            text = text.strip()
            if text == "(absent)":
                if name not in MOVED:
                    steps.append((minor(tag), None, None))
            else:
                steps.append((minor(tag),) + value(text))
        rows[name] = steps
    for line in open(os.path.join(HERE, "getenv.txt")):
        m = re.match(r"(\w+) since(?:<=)? (\S+)\s*(?:LAST (\S+))?\s*$", line)
        if not m:
            sys.exit("make-table.py: getenv.txt: %r" % line)
        name, first, last = m.group(1), minor(m.group(2)), m.group(3)
        steps = rows.get(name, [])
        gone = [] if last is None or name in MOVED else [(minor(last) + 1, None, None)]
        if name in rows and not gone:  # a number first, text later, or both: never absent from then on
            steps = [s for s in steps if s[2] is not None or s[0] < first]
            steps = [s for i, s in enumerate(steps) if s[2] is not None or i + 1 < len(steps)]
        elif name not in rows:
            steps = [(first, None, "unset")] + gone
        if all(s[0] > first for s in steps):
            steps = [(first, None, "unset")] + steps
        rows[name] = steps
    for name, first, text in EXTRA:
        rows.setdefault(name, [(first,) + value(text)])
    for name, steps in rows.items():
        rows[name] = [s for i, s in enumerate(steps) if not i or s[1:] != steps[i - 1][1:]]
    return rows


def print_table(rows):
    out = ["/* Made by tools/nccl-history/make-table.py: do not edit. Source: NCCL's source code at the last tag of each minor version from 2.7.8 to",
           " * 2.30.7. A row: the minor version of NCCL 2 where a default appears or changes; text NULL: the variable has gone. */",
           '#include "fabric/env_table.h"', "", "// clang-format off", "const im_env_history im_env_nccl_history[] = {"]
    for name in sorted(rows):
        steps = ", ".join('{%d, %s, %s, "%s"}' % (m, "true" if n is not None else "false", "%dLL" % n if n is not None else "0", t.replace('"', '\\"'))
                          if t is not None else "{%d, false, 0, NULL}" % m for m, n, t in rows[name])
        out.append('    {"%s", %d, {%s}},' % (name, len(rows[name]), steps))
    out += ["};", "// clang-format on", "const size_t im_env_nccl_history_count = sizeof im_env_nccl_history / sizeof im_env_nccl_history[0];", ""]
    return "\n".join(out)


def main():
    rows = read()
    longest = max(len(s) for s in rows.values())
    if longest > 6 or any(s[0][0] < FIRST for s in rows.values()):
        sys.exit("make-table.py: a row has %d steps: IM_ENV_HISTORY_STEPS is 6" % longest)
    text = print_table(rows)
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        same = open(sys.argv[2]).read() == text
        print("the table is %s" % ("what the script makes" if same else "not what the script makes: " + sys.argv[2]))
        sys.exit(0 if same else 1)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
