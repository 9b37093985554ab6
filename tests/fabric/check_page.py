#!/usr/bin/env python3
"""check_page.py LIST.json PAGE       the table of docs/fabric-check.md has the checks of `imece fabric check --list --json`, in order, with their words
check_page.py LIST.json --print      that table"""
import json
import sys


def main():
    with open(sys.argv[1]) as f:
        rows = ["| `%s` | %s | %s |" % (r["id"], r["title"].replace("|", "\\|"), r["why"].replace("|", "\\|")) for r in json.load(f)]
    if sys.argv[2] == "--print":
        print("\n".join(["| check | asks whether | why |", "|---|---|---|"] + rows))
        return 0
    with open(sys.argv[2]) as f:
        text = f.read()
    table = [line for line in text.split("## The checks")[1].split("\n## ")[0].splitlines() if line.startswith("| `")]
    for want in rows:
        if want not in table:
            print("not in the page: " + want)
    for have in table:
        if have not in rows:
            print("no such check: " + have)
    return 0 if table == rows else 1


if __name__ == "__main__":
    sys.exit(main())
