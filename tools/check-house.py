#!/usr/bin/env python3
"""check-house.py [--root DIR] [--build DIR]: the rules of the house that a compiler does not know.

  - an include points only to a lower floor; sideways only where ALSO says so
  - a third-party header shows only inside the folder that wraps it
  - below src/cli nothing exits, reads the environment or prints
  - below src/cli there is no mutable global or static variable
  - what a folder exports begins with im_
Source is read without comments and strings; with --build the compiled objects are looked at too. Long functions and
files are only warned about. Exit 0: in order; 1: findings; 2: usage.
"""
import argparse
import os
import re
import subprocess
import sys

FLOOR = {
    "base": 0, "device": 1, "observe": 1, "tensor": 2, "comm": 2, "data": 2, "topology": 2, "model": 3, "plan": 3,
    "fabric": 3, "engine": 4, "checkpoint": 4, "train": 5, "infer": 5, "api": 6, "cli": 7,
}
# sideways, one way only
ALSO = {
    ("plan", "model"),         # parameter tables
    ("checkpoint", "engine"),  # a save is a snapshot of the engine
}
STANDARD = set("""
assert.h ctype.h errno.h fenv.h float.h inttypes.h limits.h locale.h math.h setjmp.h signal.h stdalign.h stdarg.h stdatomic.h
stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h strings.h tgmath.h time.h wchar.h
dirent.h dlfcn.h fcntl.h fnmatch.h ftw.h glob.h libgen.h netdb.h poll.h pthread.h pwd.h sched.h semaphore.h spawn.h termios.h unistd.h endian.h
sys/file.h sys/ioctl.h sys/mman.h sys/resource.h sys/socket.h sys/stat.h sys/statvfs.h sys/syscall.h sys/sysinfo.h sys/time.h sys/types.h
sys/uio.h sys/utsname.h sys/wait.h sys/vfs.h linux/falloc.h linux/futex.h arpa/inet.h ifaddrs.h imece.h
""".split())
# third party (and what only one folder should need): header pattern -> folders
WRAPPED = [
    (r"jansson\.h", {"base"}), (r"yaml\.h", {"base"}), (r"xxhash\.h", {"base"}),
    (r"(oneapi/dnnl/)?dnnl.*\.h", {"tensor/cpu"}),
    (r"omp\.h", {"tensor/cpu", "device/cpu", "engine"}),
    (r"(immintrin|cpuid|arm_neon|x86intrin)\.h", {"tensor/cpu"}),
    (r"mpi\.h", {"comm/mpi"}), (r"nccl\.h", {"comm/nccl"}), (r"(cuda.*|cublas.*|nvml)\.h", {"device/cuda", "tensor/cuda"}),
    (r"hwloc\.h", {"topology"}), (r"expat\.h", {"topology"}), (r"pcre2\.h", {"data"}), (r"utf8proc\.h", {"data"}),
    (r"zstd\.h", {"data"}), (r"zlib\.h", {"data", "fabric"}), (r"microhttpd\.h", {"infer", "fabric"}), (r"liburing\.h", {"checkpoint"}),
]
FORBIDDEN = ["exit", "_exit", "_Exit", "quick_exit", "abort", "getenv", "secure_getenv", "setenv", "putenv", "printf", "vprintf", "puts", "putchar", "perror"]
FORBIDDEN_WORDS = ["stdout", "stderr"]
# the same as symbols, and what compilers make of them
FORBIDDEN_SYMBOLS = set(FORBIDDEN + FORBIDDEN_WORDS + ["__printf_chk", "__vprintf_chk", "putc"])
MOST_FUNCTION, MOST_FILE = 70, 700


def strip(text):
    """Comments and the insides of strings become spaces; lines stay where they are."""
    def blank(m):
        s = m.group(0)
        if s[0] in "\"'":
            return s[0] + re.sub(r"[^\n]", " ", s[1:-1]) + s[-1]
        return re.sub(r"[^\n]", " ", s)
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


class Checker:
    def __init__(self, root):
        self.root = root
        self.findings = []
        self.warnings = []

    def find(self, where, line, what):
        self.findings.append("%s:%d: %s" % (where, line, what) if line else "%s: %s" % (where, what))

    def sources(self):
        for top in ("src", "include"):
            for directory, _, files in sorted(os.walk(os.path.join(self.root, top))):
                for name in sorted(files):
                    if name.endswith((".c", ".h")):
                        path = os.path.join(directory, name)
                        yield os.path.relpath(path, self.root), path

    # ---- includes ---------------------------------------------------------------

    def check_include(self, rel, line, quoted, header):
        parts = rel.split("/")
        folder = parts[1] if parts[0] == "src" else None
        inside = "/".join(parts[1:-1]) if folder else ""
        if quoted:
            target = header.split("/")[0]
            if not folder:
                self.find(rel, line, 'the public header includes "%s"' % header)
            elif "/" not in header or target not in FLOOR:
                self.find(rel, line, 'include "%s": write the path from src/, as in "%s/%s"' % (header, folder, header))
            elif not os.path.exists(os.path.join(self.root, "src", header)):
                self.find(rel, line, 'include "%s": there is no such file' % header)
            elif target != folder and FLOOR[target] > FLOOR[folder]:
                self.find(rel, line, 'include "%s" points upward: src/%s is on floor %d, src/%s on %d' % (header, target, FLOOR[target], folder, FLOOR[folder]))
            elif target != folder and FLOOR[target] == FLOOR[folder] and (folder, target) not in ALSO:
                self.find(rel, line, 'include "%s" points sideways, and no rule allows %s to use %s' % (header, folder, target))
            return
        if header in STANDARD:
            return
        for pattern, folders in WRAPPED:
            if re.fullmatch(pattern, header):
                if not any(inside == f or inside.startswith(f + "/") for f in folders):
                    self.find(rel, line, "<%s> shows outside %s" % (header, ", ".join("src/" + f for f in sorted(folders))))
                return
        self.find(rel, line, "<%s> is not known here: say in tools/check-house.py which folder wraps it" % header)

    # ---- statements --------------------------------------------------------------

    def check_variables(self, rel, code):
        """`static` (or thread-local) objects that can change. The compiled objects tell more; this one names the line."""
        for m in re.finditer(r"(?:^|(?<=[;{}\n]))[ \t]*((?:static|_Thread_local|__thread)\b[^;={(]*)(=|;)", code):
            words = re.sub(r"\[[^\]]*\]", "", m.group(1)).strip()
            words = re.sub(r"__attribute__", "", words)
            before, star, after = words.rpartition("*")
            fixed = re.search(r"\bconst\b", after if star else words)
            if not fixed and not re.match(r"static\s+(inline|void)\b", words):
                line = code.count("\n", 0, m.start(1)) + 1
                self.find(rel, line, "a variable that keeps its value between calls: %s" % " ".join(words.split()))

    def check_calls(self, rel, code):
        for name in FORBIDDEN:
            for m in re.finditer(r"(?<![\w.>])%s\s*\(" % re.escape(name), code):
                self.find(rel, code.count("\n", 0, m.start()) + 1, "%s() below src/cli" % name)
        for name in FORBIDDEN_WORDS:
            for m in re.finditer(r"\b%s\b" % name, code):
                self.find(rel, code.count("\n", 0, m.start()) + 1, "%s below src/cli" % name)

    def check_lengths(self, rel, code):
        lines = code.split("\n")
        if len(lines) > MOST_FILE:
            self.warnings.append("%s: %d lines" % (rel, len(lines)))
        start, name = None, ""
        for i, line in enumerate(lines):
            m = re.match(r"[A-Za-z_].*?\b([A-Za-z_]\w*)\s*\(.*", line)
            if m and not line.rstrip().endswith(";"):
                name = m.group(1)
            if (line.startswith("{") or (m and line.rstrip().endswith("{"))) and start is None:
                start = i
            elif line.startswith("}") and start is not None:
                if i - start > MOST_FUNCTION:
                    self.warnings.append("%s:%d: %s has %d lines" % (rel, start + 1, name, i - start))
                start = None

    def check_sources(self):
        for rel, path in self.sources():
            with open(path, errors="replace") as f:
                text = f.read()
            code = strip(text)
            for m in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', text, re.M):
                if "#" in code[m.start() : m.start(1)]:  # not in a comment
                    self.check_include(rel, text.count("\n", 0, m.start(1)) + 1, m.group(1) == '"', m.group(2))
            folder = rel.split("/")[1] if rel.startswith("src/") else ""
            if folder and folder not in FLOOR:
                self.find(rel, 0, "src/%s has no floor in tools/check-house.py" % folder)
            if folder and folder != "cli":
                self.check_calls(rel, code)
                self.check_variables(rel, code)
            self.check_lengths(rel, code)

    # ---- objects -------------------------------------------------------------------

    def objects(self, build):
        for folder in FLOOR:
            if folder == "cli":
                continue
            top = os.path.join(build, "CMakeFiles", "im_%s.dir" % folder)
            for directory, _, files in os.walk(top):
                for name in files:
                    path = os.path.join(directory, name)
                    source = os.path.relpath(path, top)
                    if name.endswith(".o") and os.path.exists(os.path.join(self.root, source[:-2])):  # not one left from a file since removed
                        yield source[:-2], path

    def check_objects(self, build):
        seen = 0
        for rel, path in self.objects(build):
            seen += 1
            table = subprocess.run(["objdump", "-t", path], capture_output=True, text=True, check=True).stdout
            for line in table.splitlines():
                m = re.match(r"([0-9a-f]+) (.{7}) (\S+)\t([0-9a-f]+) (?:\.hidden |0x\w+ )*(.+)$", line)
                if not m:
                    continue
                flags, section, size, name = m.group(2), m.group(3), int(m.group(4), 16), m.group(5)
                if section == "*UND*":
                    if name in FORBIDDEN_SYMBOLS:
                        self.find(rel, 0, "uses %s below src/cli" % name)
                elif flags[-1] == "O" and size and (re.match(r"\.(data|bss|tdata|tbss)(\.|$)", section) or section == "*COM*") and not section.startswith(".data.rel.ro"):
                    self.find(rel, 0, "%s (%d bytes in %s) is a variable that keeps its value between calls" % (name, size, section))
                elif flags[0] in "gu" and section not in ("*ABS*",) and not name.startswith("im_"):
                    self.find(rel, 0, "exports %s, which does not begin with im_" % name)
        if not seen:
            self.find(build, 0, "no compiled objects here")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    p.add_argument("--build", help="look at the objects of this build directory too")
    p.add_argument("--quiet", action="store_true", help="no warnings")
    a = p.parse_args()
    c = Checker(a.root)
    c.check_sources()
    if a.build:
        # a sanitizer adds variables of its own to every object: the plain builds are looked at
        cache = os.path.join(a.build, "CMakeCache.txt")
        sanitized = os.path.exists(cache) and re.search(r"^IM_SANITIZE:\w+=.+$", open(cache).read(), re.M)
        if not sanitized:
            c.check_objects(a.build)
    if not a.quiet:
        for w in c.warnings:
            print("house: long: " + w)
    for f in c.findings:
        print("house: " + f)
    print("house: %s" % ("in order" if not c.findings else "%d findings" % len(c.findings)))
    return 1 if c.findings else 0


if __name__ == "__main__":
    sys.exit(main())
