#!/usr/bin/env python3
"""check.py --build DIR [-j N] [REGEX]: the house check and all tests of a build; the last line counts them.

Counted are the cases: cmocka's tests, and the ok/FAIL/SKIP lines of the scripts in tests/cli. A test program that says
nothing of the kind counts as one. A skip that tests/skips.txt does not allow counts as failed.
"""
import argparse
import fnmatch
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def allowed_skips():
    """Lines of tests/skips.txt: PROGRAM/CASE (with * and ?), then # and the reason."""
    with open(os.path.join(ROOT, "tests", "skips.txt")) as f:
        lines = [line.split("#")[0].strip() for line in f]
    return [line for line in lines if line]


def split_log(text):
    """ctest's LastTest.log -> [(name, output, ctest's own verdict)]"""
    tests = []
    for part in re.split(r"^\d+/\d+ Testing: ", text, flags=re.M)[1:]:
        name = part.split("\n", 1)[0].strip()
        passed = re.search(r"^Test Passed\.", part, re.M) is not None
        seconds = re.search(r"^Test time = *([\d.]+)", part, re.M)
        output = part.split("-" * 58 + "\n", 1)[-1].split("<end of output>")[0]
        tests.append((name, output, passed, float(seconds.group(1)) if seconds else 0.0))
    return tests


def count(name, output, passed, allowed):
    """-> (passed, failed, skipped, [lines to show])"""
    good = len(re.findall(r"^\[       OK \] ", output, re.M)) + len(re.findall(r"^ok ", output, re.M))
    bad_names = set(re.findall(r"^\[  FAILED  \] (?!\d+ test)(\S+)", output, re.M))
    bad = len(bad_names) + len(re.findall(r"^FAIL ", output, re.M))
    skips = set(re.findall(r"^\[  SKIPPED \] (?!\d+ test)(\S+)", output, re.M)) | set(re.findall(r"^SKIP ([^:\n]+)", output, re.M))
    show = []
    skipped = 0
    for case in sorted(skips):
        full = "%s/%s" % (name, case.strip())
        if any(fnmatch.fnmatch(full, pattern) for pattern in allowed):
            skipped += 1
            show.append("SKIP " + full)
        else:
            bad += 1
            show.append("FAIL %s: skipped, and tests/skips.txt does not allow it" % full)
    if not passed and bad == 0:
        bad = 1  # it crashed, or ran out of time
    if passed and good + bad + skipped == 0:
        good = 1
    return good, bad, skipped, show


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("-j", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("only", nargs="?", help="regular expression: these tests alone")
    a = p.parse_args()
    start = time.time()
    total = [0, 0, 0]

    house = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "check-house.py"), "--build", a.build])
    total[0 if house.returncode == 0 else 1] += 1

    log = os.path.join(a.build, "Testing", "Temporary", "LastTest.log")
    if os.path.exists(log):
        os.remove(log)
    command = ["ctest", "--test-dir", a.build, "--output-on-failure", "-j", str(a.j)]
    if a.only:
        command += ["-R", a.only]
    env = dict(os.environ)
    # threads that wait sleep: several tests share the cores
    env.setdefault("OMP_WAIT_POLICY", "passive")
    env.setdefault("TSAN_OPTIONS", "halt_on_error=1")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    ctest = subprocess.run(command, env=env)
    if not os.path.exists(log):
        print("check: ctest ran no test", file=sys.stderr)
        total[1] += 1
    else:
        with open(log, errors="replace") as f:
            tests = split_log(f.read())
        if not tests:
            print("check: ctest ran no test", file=sys.stderr)
            total[1] += 1
        allowed = allowed_skips()
        for name, output, passed, seconds in tests:
            counts = count(name, output, passed, allowed)
            for i in range(3):
                total[i] += counts[i]
            for line in counts[3]:
                print(line)
    if ctest.returncode != 0 and total[1] == 0:
        print("check: ctest failed (%d), but no case did" % ctest.returncode, file=sys.stderr)
        total[1] += 1
    print("check took %.0f s" % (time.time() - start))
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
