/* Readers of smpquery's tables and of OpenSM's QoS settings. */
#include "fabric/lanes.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void im_lanes_init(im_lanes *out)
{
    *out = (im_lanes){.qos = -1};
    for (int i = 0; i < IM_LANES_SL; i++)
        out->vl[i] = -1;
}

static const char *next_line(const char *p)
{
    p = strchr(p, '\n');
    return p ? p + 1 : NULL;
}

/* Numbers between bars: "| 0| 1|0x4 |". Returns how many there were, `most` at most; a cell that is no number ends it. */
static int cells(const char *p, int *out, int most)
{
    int n = 0;
    p = strchr(p, '|');
    while (p && n < most) {
        char *end;
        const char *from = p + 1 + strspn(p + 1, " \t");
        if (!isdigit((unsigned char)*from))
            break;
        const long v = strtol(from, &end, strncmp(from, "0x", 2) == 0 ? 16 : 10);
        if (v < 0 || v > 255)
            break;
        out[n++] = (int)v;
        end += strspn(end, " \t");
        p = *end == '|' ? end : NULL;
    }
    return n;
}

bool im_lanes_sl2vl(const char *text, im_lanes *out)
{
    for (const char *p = text; p && *p; p = next_line(p)) {
        int v[IM_LANES_SL];
        if (strncmp(p, "ports:", 6) != 0)
            continue;
        const char *end = strchr(p, '\n'), *bar = strchr(p, '|');
        if (!bar || (end && bar > end) || cells(bar, v, IM_LANES_SL) != IM_LANES_SL)
            continue;
        for (int i = 0; i < IM_LANES_SL; i++)
            out->vl[i] = v[i] <= 15 ? v[i] : -1;
        return out->map_known = true;
    }
    return false;
}

bool im_lanes_vlarb(const char *text, im_lanes *out)
{
    int lane[64], n = 0;
    int *into = NULL;
    bool any = false;
    for (const char *p = text; p && *p; p = next_line(p)) {
        if (strncmp(p, "# Low priority", 14) == 0 || strncmp(p, "# High priority", 15) == 0) {
            into = p[2] == 'L' ? out->low : out->high;
            n = 0;
        } else if (strncmp(p, "VL", 2) == 0 && isspace((unsigned char)p[2])) {
            n = cells(p, lane, 64);
        } else if (strncmp(p, "WEIGHT", 6) == 0 && into && n) {
            int weight[64];
            const int w = cells(p, weight, 64);
            for (int i = 0; i < w && i < n; i++)
                into[lane[i] & 15] += weight[i];
            any = any || w > 0;
            n = 0;
        }
    }
    out->weights_known = out->weights_known || any;
    return any;
}

/* ---- OpenSM ---------------------------------------------------------------------------------- */

/* The word behind `key` at the start of a line; "" where it is "(null)" or not there. */
static void setting(const char *text, const char *key, char *out, size_t most)
{
    const size_t len = strlen(key);
    out[0] = '\0';
    for (const char *p = text; p && *p; p = next_line(p)) {
        p += strspn(p, " \t");
        if (strncmp(p, key, len) != 0 || !isspace((unsigned char)p[len]))
            continue;
        const char *from = p + len + strspn(p + len, " \t");
        const size_t n = strcspn(from, " \t\r\n");
        if (n && n < most && *from != '(') {
            memcpy(out, from, n);
            out[n] = '\0';
        }
    }
}

static void both(const char *text, const char *what, char *out, size_t most)
{
    char key[64];
    snprintf(key, sizeof key, "qos_ca_%s", what);
    setting(text, key, out, most);
    snprintf(key, sizeof key, "qos_%s", what);
    if (!*out)
        setting(text, key, out, most);
}

/* "0:4,1:0": lanes and weights. */
static void weights(const char *list, int *into)
{
    for (const char *p = list; p && *p;) {
        char *end;
        const long vl = strtol(p, &end, 0);
        if (end == p || *end != ':' || vl < 0 || vl > 15)
            return;
        const char *from = end + 1;
        const long w = strtol(from, &end, 0);
        if (end == from || w < 0 || w > 255)
            return;
        into[vl] += (int)w;
        p = *end == ',' ? end + 1 : NULL;
    }
}

void im_lanes_opensm(const char *text, im_lanes *out)
{
    char v[512];
    setting(text, "qos", v, sizeof v);
    if (*v)
        out->qos = strcmp(v, "TRUE") == 0 || strcmp(v, "true") == 0;
    if (out->qos != 1)
        return; /* OpenSM leaves the tables alone */
    both(text, "sl2vl", v, sizeof v);
    int n = 0;
    for (const char *p = v; *p && n < IM_LANES_SL; n++) {
        char *end;
        const long vl = strtol(p, &end, 0);
        if (end == p)
            break;
        out->vl[n] = vl >= 0 && vl <= 15 ? (int)vl : -1;
        p = *end == ',' ? end + 1 : end;
    }
    if (!n) /* OpenSM's default */
        for (; n < IM_LANES_SL; n++)
            out->vl[n] = n < 15 ? n : 7;
    out->map_known = true;
    both(text, "vlarb_high", v, sizeof v);
    weights(*v ? v : "0:4", out->high);
    both(text, "vlarb_low", v, sizeof v);
    weights(*v ? v : "0:0,1:4,2:4,3:4,4:4,5:4,6:4,7:4,8:4,9:4,10:4,11:4,12:4,13:4,14:4", out->low);
    out->weights_known = true;
}

/* RDMA CM's service ids are 0x0000000001060000 + TCP port: 987 Lustre, 3260 iSER, 4420 NVMe-oF, 20049 NFS. */
static bool is_storage(const char *ulp)
{
    if (strncmp(ulp, "srp", 3) == 0 || strncmp(ulp, "iser", 4) == 0)
        return true;
    const char *id = strstr(ulp, "service-id");
    if (!id)
        return false;
    const unsigned long long v = strtoull(id + 10, NULL, 0);
    const unsigned port = (unsigned)(v & 0xffff);
    return v >> 16 == 0x106 && (port == 987 || port == 3260 || port == 4420 || port == 20049);
}

void im_lanes_policy_parse(const char *text, im_lanes_policy *out)
{
    bool inside = false;
    *out = (im_lanes_policy){.fallback = -1, .storage = -1};
    for (const char *p = text; p && *p; p = next_line(p)) {
        char line[256];
        p += strspn(p, " \t");
        snprintf(line, sizeof line, "%.*s", (int)(strcspn(p, "\r\n#") > 255 ? 255 : strcspn(p, "\r\n#")), p);
        if (strncmp(line, "qos-ulps", 8) == 0)
            inside = true;
        else if (strncmp(line, "end-qos-ulps", 12) == 0)
            inside = false;
        char *colon = inside ? strrchr(line, ':') : NULL;
        if (!colon)
            continue;
        char *end;
        const char *from = colon + 1 + strspn(colon + 1, " \t");
        const long sl = strtol(from, &end, 0);
        if (end == from || sl < 0 || sl > 15)
            continue;
        if (strncmp(line, "default", 7) == 0) {
            out->fallback = (int)sl;
        } else if (out->storage < 0 && is_storage(line)) {
            out->storage = (int)sl;
            while (end > line && (end[-1] == ' ' || end[-1] == '\t'))
                end--;
            snprintf(out->storage_rule, sizeof out->storage_rule, "%.*s", (int)(end - line > 79 ? 79 : end - line), line);
        }
    }
}

int im_lanes_free_sl(int storage_sl)
{
    return storage_sl == 1 ? 2 : 1;
}

void im_lanes_fragment(int training_sl, int storage_sl, im_str *out)
{
    im_str_printf(
        out,
        "# opensm.conf, on the host (or switch) of the subnet manager; then restart it. SL %d is training's, on VL 1; all others stay on VL 0.\n"
        "qos TRUE\nqos_max_vls 2\nqos_sl2vl ",
        training_sl);
    for (int i = 0; i < IM_LANES_SL; i++)
        im_str_printf(out, "%s%d", i ? "," : "", i == training_sl);
    im_str_printf(out, "\nqos_vlarb_high 1:64\nqos_vlarb_low 0:64,1:64\n"
                       "# VL 1 goes first, and after 8 x 4 KiB of it VL 0 has a turn: storage is slower, and not starved\nqos_high_limit 8\n"
                       "# qos-policy.conf\nqos-ulps\n    default : 0\n");
    if (storage_sl >= 0)
        im_str_printf(out, "    srp : %d\n    iser : %d\n", storage_sl == training_sl ? 0 : storage_sl, storage_sl == training_sl ? 0 : storage_sl);
    im_str_printf(out, "end-qos-ulps\n# the job\nexport NCCL_IB_SL=%d UCX_IB_SL=%d", training_sl, training_sl);
}
