#!/usr/bin/env bash
# imece fabric check and bundle: every check on its broken twin, bundles in and out, other hosts, the page.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$IMECE_SOURCE/tests/fabric
export PYTHONDONTWRITEBYTECODE=1
unset $(compgen -e | grep -E '^(NCCL|UCX|OMPI|FI)_') 2>/dev/null

# either NAME REGEX COMMAND...: what this machine is like is not known: exit code 0 or 3
either() {
    local name=$1 regex=$2
    shift 2
    run "$@"
    if { [ "$code" = 0 ] || [ "$code" = 3 ]; } && grep -Eq -- "$regex" "$T/out"; then ok "$name"; else
        fail "$name" "exit code $code, or no /$regex/: $*"
        show out
        show err
    fi
}

# ---- the table ----
check "each check fires on its broken twin alone" python3 "$here/twins.py" "$IMECE" "$T/twins"
"$IMECE" fabric check --list --json >"$T/list.json"
check "the page has the table" python3 "$here/check_page.py" "$T/list.json" "$IMECE_SOURCE/docs/fabric-check.md"
sed 's/| `acs` | ACS/| `acs` | acs/' "$IMECE_SOURCE/docs/fabric-check.md" >"$T/page.md"
expect "a page that differs is seen" 1 'not in the page: .*acs' -- python3 "$here/check_page.py" "$T/list.json" "$T/page.md"

# ---- text ----
python3 "$here/make_tree.py" "$T/t" roce8 --break port-down --break pcie-narrow --break acs
expect "what is wrong stands first" 3 '^roce01 .*: 3 fail, ' '^FAIL  every port .*\[port-down\]' 'why: NCCL uses active ports only' 'mlx5_7/1: down' \
    'seen: .*/ports/1/state = 1: DOWN' 'type: for b in 0000:10:01.0 .*; do setpci -s .b ECAP_ACS\+0x6.w=0000' '^\?\?\?\?  ' '^ok ' -- "$IMECE" fabric check --root "$T/t"
check "findings come before what is not known" awk '/^FAIL/ {f = NR} /^\?\?\?\?/ {if (!f || NR < f) exit 1; u = NR} /^FAIL/ && u {exit 1} END {exit !u}' "$T/out"
expect "a page" 3 -- "$IMECE" fabric check --root "$T/t" --html "$T/page.html"
check "the page has the findings" python3 - "$T/page.html" <<'END'
import html.parser, sys
text = open(sys.argv[1]).read()
class P(html.parser.HTMLParser):
    open = []
    def handle_starttag(self, tag, a):
        if tag != "meta": self.open.append(tag)
    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag
P().feed(text)
assert not P.open, P.open
assert text.index('class="fail"') < text.index('class="ok"') and "for b in 0000:10:01.0" in text and "<script" not in text
END
either "this machine" 'fail, ' "$IMECE" fabric check --interval 0
expect "usage" 2 'bundles .*one or the other' -- "$IMECE" fabric check --root "$T/t" "$T/t"
expect "nothing to look at" 1 'nowhere' -- "$IMECE" fabric check "$T/nowhere"
mkdir "$T/empty"
expect "no bundle" 1 'neither sys, proc nor commands' -- "$IMECE" fabric check "$T/empty"

# ---- lanes: the fragment ----
python3 - "$here" "$T" <<'END'
import json, subprocess, sys
sys.argv, here, out = ["twins.py", "x", sys.argv[2]], sys.argv[1], sys.argv[2]
sys.path.insert(0, here)
import twins, make_tree
def shared(m):
    twins.lanes(m, [0] * 16, [(0, 4)], [(0, 4)])
make_tree.write(out + "/lanes", twins.broken(twins.ib_lanes, shared)())
END
expect "the fragment that puts training ahead" 0 'SL 3, /etc/opensm/qos-policy.conf: any, ' 'qos_sl2vl 0,1,0,0' 'qos_vlarb_high 1:64' 'export NCCL_IB_SL=1' -- \
    "$IMECE" fabric check --root "$T/lanes"

# ---- bundles ----
same() { # the checks say the same of a machine and of its bundle
    "$IMECE" fabric check --json "$1" | sed 's|"source": "[^"]*"||' >"$T/a"
    "$IMECE" fabric check --json "$2" | sed 's|"source": "[^"]*"||' >"$T/b"
    cmp "$T/a" "$T/b"
}
expect "a bundle in a directory" 0 'bundle: [0-9]+ files of ndr01' -- "$IMECE" fabric bundle --root "$T/lanes" "$T/bundle"
check "the directory says what the machine says" same "$T/lanes" "$T/bundle"
expect "not over another" 2 'is there already' -- "$IMECE" fabric bundle --root "$T/lanes" "$T/bundle"
for out in full full.tar.gz; do # files may have 1 KiB: as a full disk
    expect "no room for $out" 1 'cannot be (written|ended)' -- bash -c "trap '' XFSZ; ulimit -f 1; exec \"\$0\" fabric bundle --root \"\$1\" \"\$2\"" "$IMECE" "$T/t" "$T/$out"
    check "nothing is left of $out" test -z "$(ls -d "$T"/full* 2>/dev/null)"
done
expect "a bundle in an archive" 0 'files of roce01' -- "$IMECE" fabric bundle --root "$T/t" "$T/roce01.tar.gz"
check "the archive says what the machine says" same "$T/t" "$T/roce01.tar.gz"
check "tar reads the archive" sh -c "tar tzf $T/roce01.tar.gz | grep -q '^sys/bus/pci/devices/0000:10:01.0$'"
(cd "$T" && tar czf packed.tgz t)
check "an archive that was packed from outside" same "$T/t" "$T/packed.tgz"
expect "this machine's bundle" 0 'files of ' -- "$IMECE" fabric bundle --interval 0 "$T/own.tar.gz"
check "with the limits of the process" sh -c "tar xOzf $T/own.tar.gz proc/self/limits | grep -q 'Max locked memory'"
either "and what is wrong in it" 'fail, ' "$IMECE" fabric check "$T/own.tar.gz"

# ---- hostile archives ----
python3 - "$T" <<'END'
import io, sys, tarfile
out = sys.argv[1]
def make(name, entries):
    with tarfile.open(out + "/" + name, "w:gz") as t:
        for path, kind, body in entries:
            i = tarfile.TarInfo(path)
            i.type = kind
            if kind == tarfile.SYMTYPE: i.linkname = body
            else: i.size = len(body)
            t.addfile(i, io.BytesIO(body) if kind == tarfile.REGTYPE else None)
F, L = tarfile.REGTYPE, tarfile.SYMTYPE
make("up.tar.gz", [("sys/../../../escaped", F, b"x")])
make("link.tar.gz", [("sys", L, out), ("sys/escaped", F, b"x")])
make("device.tar.gz", [("sys/x", F, b"x"), ("dev/null", tarfile.CHRTYPE, b"")])
with open(out + "/cut.tar.gz", "wb") as f: f.write(open(out + "/roce01.tar.gz", "rb").read()[:3000])
with open(out + "/garbage.tar.gz", "wb") as f: f.write(b"no archive at all" * 100)
END
expect "names that lead out" 1 'a name with \.\.' -- "$IMECE" fabric check "$T/up.tar.gz"
expect "links on the way" 1 'no directory' -- "$IMECE" fabric check "$T/link.tar.gz"
expect "devices are left out" 3 'no RDMA device' -- "$IMECE" fabric check "$T/device.tar.gz"
expect "an archive that was cut" 1 'cut.tar.gz: byte [0-9]+' -- "$IMECE" fabric check "$T/cut.tar.gz"
expect "no archive" 1 'no tar header|damaged' -- "$IMECE" fabric check "$T/garbage.tar.gz"
check "nothing escaped" test ! -e "$T/escaped" -a ! -e "$T/../escaped"

# ---- other hosts: a program in ssh's place ----
cat >"$T/rsh" <<END
#!/bin/sh
host=\$1; shift; shift 4
case \$host in
    node2) echo "Welcome to \$host" ;;
esac
case \$host in
    node9) echo "no route to host" >&2; exit 255 ;;
    *) exec "$IMECE" fabric bundle - --root "$T/\$host" "\$@" ;;
esac
END
chmod +x "$T/rsh"
mv "$T/t" "$T/node1"
python3 "$here/make_tree.py" "$T/node2" roce8 --break firmware
printf 'node1 slots=8 # the first\n\nnode2\n' >"$T/hosts"
expect "hosts of a file" 3 '^between the hosts  .*hosts-firmware' 'firmware of mlx5_7 .*28.35.2000' -- "$IMECE" fabric check --hosts "$T/hosts" --via "$T/rsh {host}" --interval 0
echo node9 >>"$T/hosts"
expect "a host that does not answer" 3 'node9 is left out: no bundle came from it .exit code 255' 'hosts-firmware' -- \
    "$IMECE" fabric check --hosts "$T/hosts" --via "$T/rsh" --interval 0
either "a peer" '^between the hosts' "$IMECE" fabric check --peer node2 --via "$T/rsh" --interval 0
echo '-oProxyCommand=x' >"$T/hosts"
expect "a name that is an option" 2 'is no host name' -- "$IMECE" fabric check --hosts "$T/hosts" --via "$T/rsh"
finish
