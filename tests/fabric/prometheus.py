#!/usr/bin/env python3
"""prometheus.py rules DASHBOARD       a rule file with one recording rule for each expression of the dashboard, on standard output
prometheus.py scrape DASHBOARD RULES URL DIR
    starts the real Prometheus in DIR, lets it scrape URL every two seconds with the rules loaded, and runs every expression of the
    dashboard and of the rules against it: none may fail, and those not in MAY_BE_EMPTY must give samples.
"""
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

# No such source in the test: DCGM's fields. Quiet in a healthy tree: counters that do not move.
MAY_BE_EMPTY = ["topk(10", "imece_fabric_check_verdict"]


def expressions(dashboard):
    """[(panel's title, expression with Grafana's variables replaced)]"""
    with open(dashboard) as f:
        d = json.load(f)
    ids = [p["id"] for p in d["panels"]]
    assert len(ids) == len(set(ids)), "panels share an id"
    names = {v["name"] for v in d["templating"]["list"]}
    found = []
    for p in d["panels"]:
        at = p["gridPos"]
        assert at["x"] + at["w"] <= 24, p["title"]
        for t in p.get("targets", []):
            e = t["expr"].replace("$__rate_interval", "1m")
            for name in re.findall(r"\$(\w+)", e):
                assert name in names, "%s: no variable $%s" % (p["title"], name)
            found.append((p["title"], re.sub(r"\$\w+", ".*", e)))
    assert found
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(base, path, **query):
    url = base + path + ("?" + urllib.parse.urlencode(query) if query else "")
    try:
        with urllib.request.urlopen(url, timeout=30) as r:
            return json.load(r)
    except urllib.error.HTTPError as e:
        return json.load(e)


def wait_for(what, name, seconds=90):
    last = ""
    end = time.time() + seconds
    while time.time() < end:
        try:
            last = what()
            if last:
                return last
        except OSError as e:
            last = e
        time.sleep(0.3)
    raise SystemExit("nothing came in %d s for %s: %s" % (seconds, name, last))


def scrape(dashboard, rules, url, directory):
    at = urllib.parse.urlsplit(url)
    port = free_port()
    with open(os.path.join(directory, "prometheus.yml"), "w") as f:
        f.write("global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}\nrule_files: [%s]\n"
                "scrape_configs:\n  - job_name: fabric\n    static_configs: [{targets: ['%s']}]\n" % (os.path.abspath(rules), at.netloc))
    log = open(os.path.join(directory, "prometheus.log"), "w")
    server = subprocess.Popen(["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:%d" % port],
                              cwd=directory, stdout=log, stderr=log)
    base = "http://127.0.0.1:%d" % port

    def value(expr):
        answer = get(base, "/api/v1/query", query=expr)
        if answer["status"] != "success":
            raise SystemExit("%s: %s" % (expr, answer))
        return answer["data"]["result"]

    try:
        wait_for(lambda: value('sum_over_time(up{job="fabric"}[2m]) >= 4'), "scrapes")
        asked = 0
        for title, e in expressions(dashboard):
            # rules need a round or two after the first samples
            if not any(e.startswith(m) for m in MAY_BE_EMPTY):
                wait_for(lambda: value(e), e)
            else:
                value(e)
            asked += 1
        wait_for(lambda: all(r["health"] != "unknown" for g in get(base, "/api/v1/rules")["data"]["groups"] for r in g["rules"]), "rules")
        groups = get(base, "/api/v1/rules")["data"]["groups"]
        bad = [(r["name"], r.get("lastError")) for g in groups for r in g["rules"] if r["health"] != "ok"]
        assert not bad, bad
        print("%d expressions, %d rules, %d series" % (asked, sum(len(g["rules"]) for g in groups), len(value('{job="fabric"}'))))
        print(sorted({(a["labels"]["alertname"], a["labels"].get("device", "")) for a in get(base, "/api/v1/alerts")["data"]["alerts"]}))
    finally:
        server.terminate()
        server.wait()


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "rules":
        print("groups: [{name: dashboard, rules: [")
        for i, (_, e) in enumerate(expressions(sys.argv[2])):
            print("  {record: 'panel:%d', expr: %s}," % (i, json.dumps(e)))
        print("]}]")
    elif len(sys.argv) == 6 and sys.argv[1] == "scrape":
        scrape(*sys.argv[2:])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
