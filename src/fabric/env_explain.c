/* What is known of one variable. */
#include "fabric/env.h"

#include <stdio.h>
#include <string.h>

static const char *const family_names[] = {"NCCL", "a plug-in of NCCL", "PyTorch", "UCX", "Open MPI", "libfabric"};

void im_env_kind_text(const im_env_var *v, im_str *out)
{
    switch (v->kind) {
    case IM_ENV_INT:
        im_str_append(out, "integer");
        if (v->choices)
            im_str_printf(out, ": %s", v->choices);
        else if (v->min || v->max)
            im_str_printf(out, ", %lld to %lld", (long long)v->min, (long long)v->max);
        break;
    case IM_ENV_SWITCH: im_str_append(out, v->min < 0 ? "0 or 1 (a negative number: by itself)" : "0 or 1"); break;
    case IM_ENV_CHOICE: im_str_printf(out, "one of %s%s", v->choices, v->flags & IM_ENV_CASELESS ? ", in any case" : ", in this case"); break;
    case IM_ENV_CHOICES:
        im_str_printf(out, "a list of %s%s%s", v->choices, v->flags & IM_ENV_CASELESS ? ", in any case" : "",
                      v->flags & IM_ENV_CARET ? "; ^ before it: all but these" : "");
        break;
    case IM_ENV_LEVEL: im_str_append(out, "LOC, NVL, PIX, PXB, PHB or SYS, in capitals; 0 to 4 of an old table (LOC PIX PXB PHB SYS)"); break;
    case IM_ENV_HCAS: im_str_append(out, "[^][=]device[:port],...: ^ leaves out, = takes whole names"); break;
    case IM_ENV_INTERFACES:
        im_str_append(out, v->family == IM_ENV_NCCL ? "[^][=]name,...: ^ leaves out, = takes whole names"
                                                    : "names of interfaces, or networks (a.b.c.d/n)");
        break;
    case IM_ENV_PATH: im_str_append(out, "a path; ~ is not expanded"); break;
    case IM_ENV_NUMBER:
        im_str_append(out, "integer");
        if (v->min || v->max)
            im_str_printf(out, ", %lld to %lld", (long long)v->min, (long long)v->max);
        if (v->choices)
            im_str_printf(out, ", or %s", v->choices);
        break;
    case IM_ENV_SIZE: im_str_append(out, "bytes, with K, M, G"); break;
    case IM_ENV_TERNARY: im_str_append(out, "y, n, try or auto"); break;
    case IM_ENV_NAMES: im_str_append(out, "names with commas; ^ before the list: all but these"); break;
    default: im_str_append(out, "text"); break;
    }
}

static void reading(const im_env_var *v, im_str *out)
{
    if (v->family == IM_ENV_NCCL && (v->kind == IM_ENV_INT || v->kind == IM_ENV_SWITCH))
        im_str_append(out,
                      "strtoll with base 0: 0x.. is hexadecimal, a leading 0 octal; what stands behind the digits is ignored (4M is 4), a word is 0");
    else if (v->kind == IM_ENV_LEVEL)
        im_str_append(out, "whole, case matters; what is no level is ignored without a word");
    else if (v->kind == IM_ENV_HCAS || (v->kind == IM_ENV_INTERFACES && v->family == IM_ENV_NCCL))
        im_str_append(out, "^ first, then =, for the whole list; without = each name is the beginning of names; blanks are a part of names");
}

static void versions(const char *name, im_str *out)
{
    int gone, since = im_env_since(name, &gone);
    char a[16];
    if (!since)
        return;
    im_str_printf(out, "%s%s", since <= IM_ENV_NCCL_OLDEST ? "2.7 or before" : im_env_version_text(since, a),
                  gone ? "" : " to 2.30 (the newest looked at)");
    if (gone)
        im_str_printf(out, " to 2.%d", gone / 100 % 100 - 1);
}

static im_status find(im_context *ctx, im_arena *a, const char *name, const im_env_var **v, const im_env_history **h)
{
    *v = im_env_find(name);
    *h = im_env_find_history(name);
    if (*v || *h)
        return IM_OK;
    const char *near = im_env_nearest(a, name), *owner = im_env_open_family(name);
    if (near)
        return im_fail(ctx, IM_ERR_NOT_FOUND, "%.100s: no such variable in the tables here; did you mean %s?", name, near);
    return im_fail(ctx, IM_ERR_NOT_FOUND, "%.100s: no such variable in the tables here%s%s", name, owner ? ", which do not have all of " : "",
                   owner ? owner : "");
}

typedef struct row {
    const char *key, *label;
    im_str text;
} row;
enum { KIND, READING, DEFAULT, VERSIONS, WHERE, USE, NOTE, ROWS };

static void fill(const char *name, const im_env_var *v, row *r)
{
    static const char *const key[ROWS] = {"type", "read_as", "default", "versions", "where", "use", "note"};
    static const char *const label[ROWS] = {"type", "read as", "default", "versions", "where", "use", "note"};
    for (int i = 0; i < ROWS; i++)
        r[i] = (row){.key = key[i], .label = label[i]};
    if (v) {
        im_env_kind_text(v, &r[KIND].text);
        reading(v, &r[READING].text);
    }
    if (v && v->fallback)
        im_str_append(&r[DEFAULT].text, v->fallback);
    else
        im_env_describe_default(name, &r[DEFAULT].text);
    versions(name, &r[VERSIONS].text);
    if (v && v->flags & IM_ENV_ON_ROCE)
        im_str_append(&r[WHERE].text, "Ethernet (RoCE) ports; without effect on InfiniBand");
    if (v && v->flags & IM_ENV_ON_IB)
        im_str_append(&r[WHERE].text, "InfiniBand ports; without effect on RoCE");
    if (v && v->flags & IM_ENV_TUNES)
        im_str_append(&r[USE].text, "for experiments: NCCL's manual advises against keeping it in scripts");
    if (v && v->instead)
        im_str_append(&r[NOTE].text, v->instead);
}

im_status im_env_explain(im_context *ctx, im_arena *a, const char *name, im_str *out)
{
    const im_env_var *v;
    const im_env_history *h;
    row r[ROWS];
    IM_TRY(find(ctx, a, name, &v, &h));
    fill(name, v, r);
    im_str_printf(out, "%s (%s)\n  %s\n", name, family_names[v ? v->family : IM_ENV_NCCL],
                  v ? v->what : "No description here: it is not in NCCL's manual.");
    for (int i = 0; i < ROWS; i++) {
        if (r[i].text.len)
            im_str_printf(out, "  %-9s %s\n", r[i].label, im_str_text(&r[i].text));
        im_str_free(&r[i].text);
    }
    return IM_OK;
}

im_status im_env_explain_json(im_context *ctx, im_arena *a, const char *name, im_str *out)
{
    const im_env_var *v;
    const im_env_history *h;
    row r[ROWS];
    IM_TRY(find(ctx, a, name, &v, &h));
    fill(name, v, r);
    im_str_printf(out, "{\"name\": \"%s\", \"of\": \"%s\"", name, family_names[v ? v->family : IM_ENV_NCCL]);
    if (v) {
        im_str_append(out, ", \"what\": ");
        im_str_json_string(out, v->what, strlen(v->what));
    }
    for (int i = 0; i < ROWS; i++) {
        if (r[i].text.len) {
            im_str_printf(out, ", \"%s\": ", r[i].key);
            im_str_json_string(out, im_str_text(&r[i].text), r[i].text.len);
        }
        im_str_free(&r[i].text);
    }
    if (h) {
        im_str_append(out, ", \"defaults\": [");
        for (int i = 0; i < h->nstep; i++) {
            im_str_printf(out, "%s{\"since\": \"2.%d\", \"default\": ", i ? ", " : "", h->step[i].minor);
            if (h->step[i].text)
                im_str_json_string(out, h->step[i].text, strlen(h->step[i].text));
            else
                im_str_append(out, "null");
            im_str_append(out, "}");
        }
        im_str_append(out, "]");
    }
    im_str_append(out, "}\n");
    return IM_OK;
}
