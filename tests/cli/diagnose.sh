#!/usr/bin/env bash
# imece fabric diagnose: exit codes, files of all kinds, JSON, standard input.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat >"$T/fault.log" <<'END'
nodeA:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error
nodeB:73076:73185 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer nodeA<37948> with error 12, opcode 2, len 1, vendor err 129
END
cat >"$T/good.log" <<'END'
nodeA:924:1152 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.7<0>
nodeA:924:1152 [0] NCCL INFO Using network IB
nodeA:924:1152 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
END
seq -f 'line %g of something else' 1 20000 >"$T/noise"
cat "$T/noise" "$T/fault.log" "$T/noise" >"$T/long.log"
gzip -k "$T/long.log"

expect "a fault: exit 3, its host, what followed" 3 'cause.*likeliest first' '^1\. A link went down' 'on nodeA' "$T/fault.log:1" '-> The peer.s network card does not answer' 'link_downed' \
    -- "$IMECE" fabric diagnose "$T/fault.log"
expect "healthy: exit 0, and the transport" 0 'no fault found' 'yes, RDMA' 'NET/IB/0/GDRDMA x1' 'mlx5_0:1/IB' 'GPUDirect +on' -- "$IMECE" fabric diagnose "$T/good.log"
expect "in noise" 3 'long.log:20001: ' '40002 lines' -- "$IMECE" fabric diagnose "$T/long.log"
expect "gzip" 3 'long.log.gz:20001: ' -- "$IMECE" fabric diagnose "$T/long.log.gz"
expect "several files" 3 '4 logs|in 2 logs' 'good.log: yes, RDMA' -- "$IMECE" fabric diagnose "$T/fault.log" "$T/good.log"
"$IMECE" fabric diagnose - <"$T/long.log" >"$T/out" 2>"$T/err"
check "standard input" test $? = 3 -a -n "$(grep 'standard input:20001' "$T/out")"
expect "JSON" 3 '"id": "port-error"' '"confidence": "sure"' '"leads_to": \["wc-12"\]' '"hosts": \["nodeA"\]' '"line": 1, "host": "nodeA"' -- "$IMECE" fabric diagnose "$T/fault.log" --json
check "JSON is JSON" python3 -c 'import json,sys; d = json.load(open(sys.argv[1])); assert d["faults"] == 1 and d["findings"][0]["next"]' "$T/out"
expect "JSON of a healthy log" 0 '"faults": 0' '"rdma": "yes"' '"gpudirect": "on"' -- "$IMECE" fabric diagnose "$T/good.log" --json

# a pickle is not opened: this one would run a command
python3 -c '
import os, pickle, sys
class Bad:
    def __reduce__(self):
        return (os.system, ("touch " + sys.argv[1] + "/was-run",))
pickle.dump({"entries": Bad()}, open(sys.argv[1] + "/trace_rank_0", "wb"))' "$T"
expect "a pickle is refused, with what to do" 1 'pickle: not read' 'torchfrtrace -j' -- "$IMECE" fabric diagnose "$T/trace_rank_0"
check "and nothing in it ran" test ! -e "$T/was-run"
for rank in 0 1 2; do
    seq=7; [ $rank = 1 ] && seq=5
    cat >"$T/nccl_trace_rank_$rank.json" <<END
{"entries": [{"collective_seq_id": $seq, "profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"], "state": "scheduled", "input_sizes": [[4]]}],
 "pg_config": {}, "pg_status": {"0": {"last_enqueued_collective": $seq, "last_completed_collective": 4}}, "version": "2.4"}
END
done
expect "flight recorders: the rank behind" 3 '^1\. Ranks are out of step' 'Behind are the ranks 1:' -- "$IMECE" fabric diagnose "$T"/nccl_trace_rank_*.json
echo '{"entries": [1,2' >"$T/nccl_trace_rank_4.json"
printf '{"entries": [{"profiling_name": "x' >"$T/nccl_trace_rank_5.json"
expect "a broken recorder is a remark" 1 'nccl_trace_rank_5.json: .*line 1' -- "$IMECE" fabric diagnose "$T/nccl_trace_rank_5.json"

head -c 300 "$T/long.log.gz" >"$T/cut.gz"
expect "a cut gzip: what is there is read, and said" 0 'ends early' -- "$IMECE" fabric diagnose "$T/cut.gz"
expect "a file that is not there" 1 'No such file' 'no fault found' -- "$IMECE" fabric diagnose "$T/nothing.log"
expect "... beside one that is" 3 'No such file' 'A link went down' -- "$IMECE" fabric diagnose "$T/nothing.log" "$T/fault.log"
expect "no logs" 2 'which logs' -- "$IMECE" fabric diagnose
expect "help" 0 'LOG\.\.\.' 'Exit code 3' -- "$IMECE" fabric diagnose --help
expect "the rules" 0 '\| `port-error` \| fault \|' -- "$IMECE" fabric diagnose --rules
"$IMECE" fabric diagnose --rules | grep '^| `' >"$T/rules"
grep '^| `' "$IMECE_SOURCE/docs/diagnose.md" >"$T/page"
check "docs/diagnose.md lists the rules that there are" diff "$T/rules" "$T/page"
expect_not "no control bytes reach a terminal" 3 $'\033|\007' -- "$IMECE" fabric diagnose <(printf '\033]0;x\007 NCCL WARN NET/IB : Got async event : port error \033[31m\n')
finish
