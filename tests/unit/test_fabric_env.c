/* fabric env: values as NCCL reads them, files and scripts, who wins, verdicts on machines that are made here, suggestions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fabric/env.h"
#include "fabric/env_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rig {
    im_context *ctx;
    im_arena *a;
    im_env_set set;
} rig;

static rig begin(void)
{
    rig r;
    assert_int_equal(im_context_create(&r.ctx), IM_OK);
    assert_int_equal(im_arena_create(r.ctx, &r.a), IM_OK);
    im_env_set_init(r.ctx, r.a, &r.set);
    return r;
}

static void end(rig *r)
{
    assert_false(r->set.failed);
    im_arena_destroy(r->a);
    im_context_destroy(r->ctx);
}

/* ---- numbers, lists, levels -------------------------------------------------------------------------- */

static void integers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
        bool digits, octal, hex, overflow;
        const char *trailing;
    } rows[] = {
        {"22", 22, true, false, false, false, ""},
        {"010", 8, true, true, false, false, ""},
        {"08", 0, true, true, false, false, "8"},
        {"0x1f", 31, true, false, true, false, ""},
        {"4M", 4, true, false, false, false, "M"},
        {"abc", 0, false, false, false, false, "abc"},
        {"41abc", 41, true, false, false, false, "abc"},
        {" 7", 7, true, false, false, false, ""},
        {"-1", -1, true, false, false, false, ""},
        {"0", 0, true, false, false, false, ""},
        {"true", 0, false, false, false, false, "true"},
        {"3 ", 3, true, false, false, false, " "},
        {"99999999999999999999", INT64_MAX, true, false, false, true, ""},
        {"-0x10", -16, true, false, true, false, ""},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        im_env_number n = im_env_nccl_int(rows[i].text);
        assert_int_equal(n.value, rows[i].value);
        assert_int_equal(n.digits, rows[i].digits);
        assert_int_equal(n.octal, rows[i].octal);
        assert_int_equal(n.hex, rows[i].hex);
        assert_int_equal(n.overflow, rows[i].overflow);
        assert_string_equal(n.trailing, rows[i].trailing);
    }
}

static const char *const interfaces[] = {"lo", "docker0", "eth0", "eth1", "ib0", "bond0", "bond0.2093", "bond0.2093.1", "veth12"};

/* What a list takes of the interfaces above, joined by blanks. */
static void taken(const char *list, char *out, size_t n)
{
    im_env_list l;
    im_env_nccl_list(list, &l);
    *out = '\0';
    for (size_t i = 0; i < IM_COUNT_OF(interfaces); i++)
        if (im_env_nccl_list_takes(&l, interfaces[i], -1))
            snprintf(out + strlen(out), n - strlen(out), "%s%s", *out ? " " : "", interfaces[i]);
}

static void lists(void **state)
{
    (void)state;
    static const struct {
        const char *list, *takes;
    } rows[] = {
        {"eth", "eth0 eth1"},
        {"=eth0", "eth0"},
        {"=eth", ""},
        {"^docker0", "lo eth0 eth1 ib0 bond0 bond0.2093 bond0.2093.1 veth12"},
        {"^lo,docker", "eth0 eth1 ib0 bond0 bond0.2093 bond0.2093.1 veth12"},
        {"^=docker", "lo docker0 eth0 eth1 ib0 bond0 bond0.2093 bond0.2093.1 veth12"},
        {"bond0", "bond0 bond0.2093 bond0.2093.1"},
        {"=bond0,eth1", "eth1 bond0"},
        {"eno1,eth0", "eth0"},
        {"eth0, eth1", "eth0"},
        {"=^docker0", ""},
        {"^", ""},
        {"", "lo docker0 eth0 eth1 ib0 bond0 bond0.2093 bond0.2093.1 veth12"},
        {",,eth0,", "eth0"},
    };
    char got[200];
    im_env_list l;
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        taken(rows[i].list, got, sizeof got);
        assert_string_equal(got, rows[i].takes);
    }
    im_env_nccl_list("mlx5_1:1", &l);
    assert_true(im_env_nccl_list_takes(&l, "mlx5_11", 1));
    assert_false(im_env_nccl_list_takes(&l, "mlx5_1", 2));
    im_env_nccl_list("=mlx5_1:1", &l);
    assert_false(im_env_nccl_list_takes(&l, "mlx5_11", 1));
    im_env_nccl_list("=mlx5_1", &l);
    assert_true(im_env_nccl_list_takes(&l, "mlx5_1", 2));
    im_env_nccl_list("=^docker0", &l);
    assert_true(l.turned);
}

static void levels(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int level;
        bool legacy;
    } rows[] = {
        {"LOC", IM_ENV_LOC, false},
        {"PXB", IM_ENV_PXB, false},
        {"P2C", IM_ENV_P2C, false},
        {"SYS", IM_ENV_SYS, false},
        {"0", IM_ENV_LOC, true},
        {"1", IM_ENV_PIX, true},
        {"2", IM_ENV_PXB, true},
        {"3", IM_ENV_PHB, true},
        {"4", IM_ENV_SYS, true},
        {"9", IM_ENV_SYS, true},
        {"pxb", -1, false},
        {"PXB ", -1, false},
        {"", -1, false},
        {"2x", IM_ENV_PXB, true},
        {"-1", -1, false},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        bool legacy;
        assert_int_equal(im_env_nccl_level(rows[i].text, &legacy), rows[i].level);
        assert_int_equal(legacy, rows[i].legacy);
    }
}

/* ---- tables -------------------------------------------------------------------------------------------- */

static void tables(void **state)
{
    (void)state;
    for (size_t i = 0; i < im_env_nccl_history_count; i++) {
        const im_env_history *h = &im_env_nccl_history[i];
        assert_true(h->nstep > 0 && h->nstep <= IM_ENV_HISTORY_STEPS);
        for (int k = 1; k < h->nstep; k++)
            assert_true(h->step[k].minor > h->step[k - 1].minor);
    }
    for (size_t i = 0; i < im_env_nccl_history_count; i++)
        assert_ptr_equal(im_env_find_history(im_env_nccl_history[i].name), &im_env_nccl_history[i]);
    for (size_t i = 0; i < im_env_nccl_vars_count; i++)
        assert_ptr_equal(im_env_find(im_env_nccl_vars[i].name), &im_env_nccl_vars[i]);
    for (size_t i = 0; i < im_env_other_vars_count; i++)
        assert_ptr_equal(im_env_find(im_env_other_vars[i].name), &im_env_other_vars[i]);
    for (size_t i = 0; i < im_env_nccl_vars_count; i++) /* a variable of the manual that is not obsolete is in the source */
        if (!im_env_nccl_vars[i].instead && !im_env_find_history(im_env_nccl_vars[i].name))
            fail_msg("%s has no history", im_env_nccl_vars[i].name);
    assert_int_equal(im_env_at("NCCL_IB_TIMEOUT", 20700)->number, 14);
    assert_int_equal(im_env_at("NCCL_IB_TIMEOUT", 20400)->number, 14);
    assert_int_equal(im_env_at("NCCL_IB_TIMEOUT", 22205)->number, 18);
    assert_int_equal(im_env_at("NCCL_IB_TIMEOUT", 22301)->number, 20);
    assert_int_equal(im_env_at("NCCL_IB_GID_INDEX", 22005)->number, 0);
    assert_int_equal(im_env_at("NCCL_IB_GID_INDEX", 22105)->number, -1);
    assert_null(im_env_at("NCCL_IB_OOO_RQ", 22900));
    assert_int_equal(im_env_at("NCCL_P2P_NET_CHUNKSIZE", 23000)->number, 131072);
    assert_null(im_env_at("NCCL_WORK_FIFO_DEPTH", 22200));
    assert_non_null(im_env_at("NCCL_DEBUG", 23000)); /* moved to another mechanism, not gone */
    assert_int_equal(im_env_version_parse("2.21.5"), 22105);
    assert_int_equal(im_env_version_parse("2.21"), 22100);
    assert_int_equal(im_env_version_parse("v2.21.5-1"), 22105);
    assert_int_equal(im_env_version_parse("22105"), 22105);
    static const char *const bad[] = {"", "2", "3.1", "two", "2.21.5x", "-2.1", "2.200"};
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++)
        assert_int_equal(im_env_version_parse(bad[i]), 0);
}

static void nearest(void **state)
{
    (void)state;
    rig r = begin();
    static const struct {
        const char *name, *near;
    } rows[] = {
        {"NCCL_IB_DISBALE", "NCCL_IB_DISABLE"},
        {"NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"},
        {"NCCL_IB_QP_PER_CONNECTION", "NCCL_IB_QPS_PER_CONNECTION"},
        {"UCX_NET_DEVICE", "UCX_NET_DEVICES"},
        {"NCCL_DEUBG", "NCCL_DEBUG"},
        {"NCLL_DEBUG", "NCCL_DEBUG"},
        {"NCCL_MIN_NCHANNEL", "NCCL_MIN_NCHANNELS"},
        {"NCCL_COFFEE_MACHINE", NULL},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        const char *near = im_env_nearest(r.a, rows[i].name);
        if (rows[i].near)
            assert_string_equal(near ? near : "(none)", rows[i].near);
        else
            assert_null(near);
    }
    end(&r);
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static const im_env_finding *found(const rig *r, const char *id, const char *name)
{
    for (size_t i = 0; i < r->set.nfinding; i++) {
        const im_env_finding *f = &r->set.finding[i];
        if (!strcmp(f->id, id) && (!name || (f->name && !strcmp(f->name, name))))
            return f;
    }
    return NULL;
}

static void read_as(rig *r, const char *file, im_env_layer layer, const char *text)
{
    im_env_read_text(&r->set, file, IM_ENV_FORMAT_AUTO, layer, text, strlen(text));
    im_env_resolve(&r->set);
}

static const char *value(const rig *r, const char *name)
{
    const im_env_item *x = im_env_used(&r->set, name);
    return !x ? "(absent)" : !x->exported ? "(not exported)" : x->value ? x->value : "(unknown)";
}

static void conf(void **state)
{
    (void)state;
    rig r = begin();
    read_as(&r, "/etc/nccl.conf", IM_ENV_LAYER_SYSTEM,
            "# a comment\nNCCL_DEBUG=INFO\nNCCL_DEBUG=WARN\nexport NCCL_IB_TC=106\n NCCL_IB_SL=1\nNCCL_SOCKET_IFNAME==ens1\nNCCL_NET=\"IB\"\n"
            "NCCL_ALGO=Ring # why\nNCCL_IB_HCA mlx5_0\nNCCL_PROTO=Simple \nNCCL_IB_TIMEOUT=22\r\nNCCL_TOPO_FILE=$HOME/x\nUCX_TLS=rc");
    assert_string_equal(value(&r, "NCCL_DEBUG"), "INFO"); /* the first line stays */
    assert_string_equal(value(&r, "NCCL_SOCKET_IFNAME"), "=ens1");
    assert_string_equal(value(&r, "NCCL_IB_TC"), "(absent)");
    assert_string_equal(value(&r, "NCCL_IB_SL"), "(absent)");
    assert_string_equal(value(&r, "NCCL_NET"), "\"IB\"");
    assert_string_equal(value(&r, "NCCL_ALGO"), "Ring # why");
    assert_string_equal(found(&r, "conf-name", "NCCL_IB_TC")->fix, "NCCL_IB_TC=106");
    assert_int_equal(found(&r, "conf-name", "NCCL_IB_TC")->line, 4);
    assert_non_null(found(&r, "conf-name", "NCCL_IB_SL"));
    assert_string_equal(found(&r, "conf-quotes", "NCCL_NET")->fix, "NCCL_NET=IB");
    assert_non_null(found(&r, "conf-comment", "NCCL_ALGO"));
    assert_int_equal(found(&r, "conf-no-equals", NULL)->line, 9);
    assert_non_null(found(&r, "conf-blanks", "NCCL_PROTO"));
    assert_non_null(found(&r, "conf-blanks", "NCCL_IB_TIMEOUT"));
    assert_non_null(found(&r, "conf-expansion", "NCCL_TOPO_FILE"));
    assert_non_null(found(&r, "conf-foreign", "UCX_TLS"));
    assert_null(found(&r, "conf-blanks", "NCCL_DEBUG"));
    end(&r);
}

static void scripts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name, *value;
    } rows[] = {
        {"export NCCL_DEBUG=INFO\n", "NCCL_DEBUG", "INFO"},
        {"export NCCL_A_B=1 NCCL_DEBUG=\"IN\"FO # NCCL_NET=IB\n", "NCCL_DEBUG", "INFO"},
        {"#export NCCL_DEBUG=INFO\n", "NCCL_DEBUG", "(absent)"},
        {"echo NCCL_DEBUG=INFO\necho 'export NCCL_DEBUG=INFO'\n", "NCCL_DEBUG", "(absent)"},
        {"NCCL_DEBUG=INFO\npython x.py", "NCCL_DEBUG", "(not exported)"},
        {"NCCL_DEBUG=INFO\nexport NCCL_DEBUG\n", "NCCL_DEBUG", "INFO"},
        {"export NCCL_DEBUG\nNCCL_DEBUG=INFO\n", "NCCL_DEBUG", "INFO"},
        {"set -a\nNCCL_DEBUG=INFO\nset +a", "NCCL_DEBUG", "INFO"},
        {"NCCL_DEBUG=INFO NCCL_NET=IB python train.py", "NCCL_NET", "IB"},
        {"env NCCL_DEBUG=INFO python train.py", "NCCL_DEBUG", "INFO"},
        {"declare -x NCCL_DEBUG=INFO", "NCCL_DEBUG", "INFO"},
        {"setenv NCCL_DEBUG INFO", "NCCL_DEBUG", "INFO"},
        {"ENV NCCL_DEBUG=INFO NCCL_NET=IB", "NCCL_NET", "IB"},
        {"ENV NCCL_DEBUG INFO", "NCCL_DEBUG", "INFO"},
        {"export NCCL_DEBUG=WARN\nexport NCCL_DEBUG=INFO", "NCCL_DEBUG", "INFO"},
        {"export NCCL_DEBUG=WARN\nunset NCCL_DEBUG", "NCCL_DEBUG", "(absent)"},
        {"export NCCL_DEBUG=WARN\nmpirun -np 8 -x NCCL_DEBUG=INFO ./a", "NCCL_DEBUG", "INFO"},
        {"export NCCL_DEBUG=WARN\nmpirun -x NCCL_DEBUG ./a", "NCCL_DEBUG", "WARN"},
        {"mpirun \\\n  -np 8 \\\n  -x NCCL_IB_HCA=mlx5_0\\,mlx5_1 \\\n  ./a", "NCCL_IB_HCA", "mlx5_0,mlx5_1"},
        {"mpirun --mca pml ob1 ./a", "OMPI_MCA_pml", "ob1"},
        {"mpirun -mca btl '^openib' ./a", "OMPI_MCA_btl", "^openib"},
        {"mpiexec -genv NCCL_DEBUG INFO -genv NCCL_NET=IB ./a", "NCCL_DEBUG", "INFO"},
        {"mpiexec -genv NCCL_DEBUG INFO -genv NCCL_NET=IB ./a", "NCCL_NET", "IB"},
        {"srun --export=ALL,NCCL_DEBUG=INFO ./a", "NCCL_DEBUG", "INFO"},
        {"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --export=ALL,NCCL_NET=IB\nsrun ./a", "NCCL_NET", "IB"},
        {"docker run --rm -e NCCL_DEBUG=INFO --env NCCL_NET=IB image", "NCCL_NET", "IB"},
        {"docker run --env=NCCL_NET=IB image", "NCCL_NET", "IB"},
        {"docker run -e \"NCCL_NET=IB\" image", "NCCL_NET", "IB"},
        {"if true; then export NCCL_NET=IB; fi", "NCCL_NET", "IB"},
        {"export NCCL_IB_TIMEOUT=${NCCL_IB_TIMEOUT:-22}", "NCCL_IB_TIMEOUT", "22"},
        {"T=23\nexport NCCL_IB_TIMEOUT=$T", "NCCL_IB_TIMEOUT", "23"},
        {"T=mlx5\nexport NCCL_IB_HCA=\"=${T}_0,${T}_1\"", "NCCL_IB_HCA", "=mlx5_0,mlx5_1"},
        {"export NCCL_SOCKET_IFNAME=$(ip route | awk '{print $5}')", "NCCL_SOCKET_IFNAME", "(unknown)"},
        {"export NCCL_SOCKET_IFNAME=$IF", "NCCL_SOCKET_IFNAME", "(unknown)"},
        {"CMD=\"NCCL_DEBUG=INFO NCCL_NET=IB nohup python x.py\"", "NCCL_NET", "IB"},
        {"bash -c 'export NCCL_NET=IB && python x.py'", "NCCL_NET", "IB"},
        {"ARGS=(-x NCCL_NET=IB -x NCCL_DEBUG=WARN)", "NCCL_NET", "IB"},
        {"ssh host NCCL_NET=IB ./a", "NCCL_NET", "IB"},
        {"import os\nos.environ[\"NCCL_NET\"] = \"IB\"\n", "NCCL_NET", "IB"},
        {"import os\nos.environ['NCCL_NET']='IB'\n", "NCCL_NET", "IB"},
        {"print(os.environ['NCCL_NET'])\n", "NCCL_NET", "(absent)"},
        {"if os.environ['NCCL_NET'] == 'IB':\n", "NCCL_NET", "(absent)"},
        {"cat > /etc/nccl.conf <<EOF\nNCCL_NET=IB\nEOF\nexport NCCL_DEBUG=WARN", "NCCL_NET", "IB"},
        {"cat > /etc/nccl.conf <<EOF\nNCCL_NET=IB\nEOF\nexport NCCL_DEBUG=WARN", "NCCL_DEBUG", "WARN"},
        {"echo it's\nexport NCCL_NET=IB\n", "NCCL_NET", "IB"},
        {"A=${x\nexport NCCL_NET=IB\n", "NCCL_NET", "IB"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        rig r = begin();
        im_env_read_text(&r.set, "job.sh", IM_ENV_FORMAT_AUTO, IM_ENV_LAYER_PROCESS, rows[i].text, strlen(rows[i].text));
        im_env_resolve(&r.set);
        if (strcmp(value(&r, rows[i].name), rows[i].value) != 0)
            fail_msg("%s: %s is %s, not %s", rows[i].text, rows[i].name, value(&r, rows[i].name), rows[i].value);
        end(&r);
    }
    rig r = begin();
    read_as(&r, "job.sh", IM_ENV_LAYER_PROCESS, "\n\nsrun --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1,PATH ./a\n");
    assert_string_equal(value(&r, "NCCL_IB_HCA"), "mlx5_0");
    assert_int_equal(found(&r, "export-comma", "NCCL_IB_HCA")->line, 3);
    read_as(&r, "job2.sh", IM_ENV_LAYER_PROCESS, "unset NCCL_IB_HCA\n");
    assert_int_equal(r.set.nfinding, 0);
    end(&r);
}

static void yaml(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name, *value;
    } rows[] = {
        {"    env:\n    - name: NCCL_DEBUG\n      value: \"INFO\"\n    - name: NCCL_NET\n      value: IB # guard\n", "NCCL_NET", "IB"},
        {"    env:\n    - name: NCCL_DEBUG\n      value: \"INFO\"\n    - name: NCCL_NET\n      value: IB\n", "NCCL_DEBUG", "INFO"},
        {"env:\n  - value: 'INFO'\n    name: NCCL_DEBUG\n", "NCCL_DEBUG", "INFO"},
        {"env: \n  - {name: NCCL_DEBUG, value: \"INFO\"}\n", "NCCL_DEBUG", "INFO"},
        {"env:\n- name: NCCL_SOCKET_IFNAME\n  valueFrom:\n    fieldRef: {fieldPath: x}\n", "NCCL_SOCKET_IFNAME", "(unknown)"},
        {"services:\n  a:\n    environment:\n      - NCCL_DEBUG=INFO\n      - \"NCCL_NET=IB\"\n", "NCCL_NET", "IB"},
        {"services:\n  a:\n    environment:\n      NCCL_DEBUG: INFO\n", "NCCL_DEBUG", "INFO"},
        {"kind: ConfigMap\ndata:\n  NCCL_IB_TC: \"106\"\n---\nkind: Pod\n", "NCCL_IB_TC", "106"},
        {"kind: Pod\nargs:\n  - |\n    export NCCL_NET=IB\n    python x.py\n", "NCCL_NET", "IB"},
        {"kind: Pod\ncommand: [\"bash\", \"-c\", \"export NCCL_NET=IB && python x.py\"]\n", "NCCL_NET", "IB"},
        {"kind: Pod\ncommand:\n  - mpirun\n  - -x\n  - NCCL_NET=IB\n", "NCCL_NET", "IB"},
        {"kind: Pod\ncommand:\n  - mpirun\n  - --mca\n  - pml\n  - \"ob1\"\n  - -x\n  - NCCL_NET=IB\n", "OMPI_MCA_pml", "ob1"},
        {"kind: Pod\ncommand:\n  - mpirun\n  - --mca\n  - pml\n  - \"ob1\"\n  - -x\n  - NCCL_NET=IB\n", "NCCL_NET", "IB"},
        {"{\n  \"environment\": [\n    {\n      \"name\": \"NCCL_DEBUG\",\n      \"value\": \"INFO\"\n    },\n    {\"name\": \"NCCL_NET\", "
         "\"value\": \"IB\"}\n  ]\n}\n",
         "NCCL_DEBUG", "INFO"},
        {"{\n  \"environment\": [\n    {\n      \"name\": \"NCCL_DEBUG\",\n      \"value\": \"INFO\"\n    },\n    {\"name\": \"NCCL_NET\", "
         "\"value\": \"IB\"}\n  ]\n}\n",
         "NCCL_NET", "IB"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(rows); i++) {
        rig r = begin();
        read_as(&r, "pod.yaml", IM_ENV_LAYER_PROCESS, rows[i].text);
        if (strcmp(value(&r, rows[i].name), rows[i].value) != 0)
            fail_msg("%s: %s is %s, not %s", rows[i].text, rows[i].name, value(&r, rows[i].name), rows[i].value);
        assert_null(found(&r, "yaml-not-string", NULL));
        end(&r);
    }
    rig r = begin();
    read_as(&r, "pod.yaml", IM_ENV_LAYER_PROCESS, "env:\n- name: NCCL_IB_TC\n  value: 106\n- name: NCCL_NET\n  value: IB\n");
    assert_string_equal(found(&r, "yaml-not-string", "NCCL_IB_TC")->fix, "value: \"106\"");
    assert_null(found(&r, "yaml-not-string", "NCCL_NET"));
    end(&r);
}

static void who_wins(void **state)
{
    (void)state;
    rig r = begin();
    char *const env[] = {(char[]){"NCCL_DEBUG=INFO"}, (char[]){"PATH=/bin"}, NULL};
    im_env_lint_options o = {0};
    im_env_read_text(&r.set, "/etc/nccl.conf", IM_ENV_FORMAT_AUTO, IM_ENV_LAYER_SYSTEM, "NCCL_DEBUG=TRACE\nNCCL_NET=Socket\nNCCL_ALGO=Tree\n", 47);
    im_env_read_text(&r.set, "/root/.nccl.conf", IM_ENV_FORMAT_AUTO, IM_ENV_LAYER_USER, "NCCL_NET=IB\nNCCL_DEBUG=WARN\n", 28);
    im_env_read_environ(&r.set, "the environment", env);
    im_env_lint(&r.set, NULL, &o);
    assert_string_equal(value(&r, "NCCL_DEBUG"), "INFO");
    assert_string_equal(value(&r, "NCCL_NET"), "IB");
    assert_string_equal(value(&r, "NCCL_ALGO"), "Tree");
    assert_int_equal(r.set.n, 6);
    assert_non_null(strstr(found(&r, "overruled", "NCCL_DEBUG")->text, "the environment sets it to INFO"));
    assert_non_null(strstr(found(&r, "overruled", "NCCL_NET")->text, "/root/.nccl.conf:1 sets it to IB"));
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers), cmocka_unit_test(lists),   cmocka_unit_test(levels), cmocka_unit_test(tables),   cmocka_unit_test(nearest),
        cmocka_unit_test(conf),     cmocka_unit_test(scripts), cmocka_unit_test(yaml),   cmocka_unit_test(who_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
