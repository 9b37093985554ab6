/* Looking into the tables of variables. */
#include "fabric/env_table.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Both tables of NCCL are in the order of names. */
static int by_var(const void *name, const void *row)
{
    return strcmp(name, ((const im_env_var *)row)->name);
}

static int by_history(const void *name, const void *row)
{
    return strcmp(name, ((const im_env_history *)row)->name);
}

const im_env_var *im_env_find(const char *name)
{
    const im_env_var *v = bsearch(name, im_env_nccl_vars, im_env_nccl_vars_count, sizeof *v, by_var);
    for (size_t i = 0; !v && i < im_env_other_vars_count; i++)
        if (!strcmp(im_env_other_vars[i].name, name))
            v = &im_env_other_vars[i];
    return v;
}

const im_env_history *im_env_find_history(const char *name)
{
    return bsearch(name, im_env_nccl_history, im_env_nccl_history_count, sizeof(im_env_history), by_history);
}

static bool begins(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

bool im_env_is_ours(const char *name)
{
    static const char *const prefix[] = {"NCCL_",     "TORCH_NCCL_", "RCCL_", "UCX_",      "OMPI_MCA_",
                                         "PRTE_MCA_", "PMIX_MCA_",   "FI_",   "OFI_NCCL_", "SHARP_"};
    for (size_t i = 0; i < IM_COUNT_OF(prefix); i++)
        if (begins(name, prefix[i]))
            return true;
    return im_env_find(name) != NULL;
}

const char *im_env_open_family(const char *name)
{
    static const struct {
        const char *prefix, *owner;
    } open[] = {
        {"NCCL_FASTRAK_", "Google's FasTrak plug-in"},
        {"NCCL_GPUDIRECTTCPX_", "Google's GPUDirect-TCPX plug-in"},
        {"NCCL_SHIM_", "Google's plug-in"},
        {"NCCL_INSPECTOR_", "NCCL's inspector plug-in"},
        {"NCCL_PROFILE_", "NCCL's example profiler plug-in"},
        {"NCCL_UCX_", "the UCX plug-in"},
        {"NCCL_IBEXT_", "HPC-X's plug-in"},
        {"NCCL_SHARP_", "the SHARP plug-in"},
        {"NCCL_TESTS_", "nccl-tests"},
        {"NCCL_OFI_", "the libfabric plug-in"},
        {"RCCL_", "RCCL"},
        {"SHARP_", "SHARP"},
        {"OFI_NCCL_", "the libfabric plug-in"},
        {"TORCH_NCCL_", "PyTorch"},
        {"OMPI_MCA_", "Open MPI"},
        {"PRTE_MCA_", "Open MPI's launcher"},
        {"PMIX_MCA_", "PMIx"},
        {"FI_", "libfabric"},
    };
    for (size_t i = 0; i < IM_COUNT_OF(open); i++)
        if (begins(name, open[i].prefix))
            return open[i].owner;
    return NULL;
}

const char *im_env_nearest(im_arena *a, const char *name)
{
    size_t n = 0, most = im_env_nccl_vars_count + im_env_other_vars_count + im_env_nccl_history_count;
    const char **names = IM_ARENA_NEW(a, const char *, most);
    if (!names || strlen(name) > 100)
        return NULL;
    for (size_t i = 0; i < im_env_nccl_vars_count; i++)
        if (!im_env_nccl_vars[i].instead)
            names[n++] = im_env_nccl_vars[i].name;
    for (size_t i = 0; i < im_env_other_vars_count; i++)
        names[n++] = im_env_other_vars[i].name;
    for (size_t i = 0; i < im_env_nccl_history_count; i++)
        names[n++] = im_env_nccl_history[i].name;
    /* what stands behind the common prefix must be near by itself: NCCL_ alone makes nothing near */
    const char *best = NULL, *under = strchr(name, '_');
    size_t least = 0, own = under ? strlen(under + 1) : strlen(name), whole = strlen(name);
    for (size_t i = 0; i < n; i++) {
        size_t k = strlen(names[i]);
        if ((k > whole ? k - whole : whole - k) > 1 + own / 4)
            continue; /* no nearer than its length differs */
        size_t d = im_edit_distance(name, names[i]);
        if (!best || d < least) {
            best = names[i];
            least = d;
        }
    }
    return best && least <= 1 + own / 4 ? best : NULL;
}

const im_env_step *im_env_at(const char *name, int version)
{
    const im_env_history *h = im_env_find_history(name);
    const im_env_step *at = NULL;
    int minor = version < IM_ENV_NCCL_OLDEST ? IM_ENV_NCCL_OLDEST / 100 % 100 : version / 100 % 100;
    for (int i = 0; h && i < h->nstep; i++)
        if (h->step[i].minor <= minor)
            at = &h->step[i];
    return at && at->text ? at : NULL;
}

int im_env_since(const char *name, int *gone)
{
    const im_env_history *h = im_env_find_history(name);
    const im_env_var *v = im_env_find(name);
    *gone = 0;
    if (!h)
        return v && v->since ? 20000 + 100 * v->since : 0;
    if (h->nstep && !h->step[h->nstep - 1].text)
        *gone = 20000 + 100 * h->step[h->nstep - 1].minor;
    int first = h->step[0].minor;
    if (v && v->since && v->since < first)
        first = v->since; /* a variable of a manual older than the oldest source that was searched */
    return 20000 + 100 * first;
}

int im_env_version_parse(const char *text)
{
    int a = 0, b = 0, c = 0, used = 0;
    if (*text == 'v')
        text++;
    if (sscanf(text, "%d.%d.%d%n", &a, &b, &c, &used) == 3 || ((used = 0), (c = 0), sscanf(text, "%d.%d%n", &a, &b, &used) == 2)) {
        bool rest = text[used] == '\0' || text[used] == '-' || text[used] == '+';
        return rest && a == 2 && b >= 0 && b < 100 && c >= 0 && c < 100 ? a * 10000 + b * 100 + c : 0;
    }
    if (sscanf(text, "%d%n", &a, &used) == 1 && text[used] == '\0' && a >= 20000 && a < 30000)
        return a;
    return 0;
}

const char *im_env_version_text(int version, char buf[16])
{
    snprintf(buf, 16, "2.%d", version / 100 % 100);
    return buf;
}

void im_env_describe_default(const char *name, im_str *out)
{
    const im_env_history *h = im_env_find_history(name);
    if (!h)
        return;
    for (int i = h->nstep - 1; i >= 0; i--) {
        const im_env_step *s = &h->step[i];
        if (!s->text)
            continue;
        im_str_printf(out, "%s%s", out->len ? ", " : "", s->text);
        bool first = i == 0, last = i + 1 == h->nstep;
        if (first && last)
            continue;
        if (last)
            im_str_printf(out, " from 2.%d on", s->minor);
        else if (first)
            im_str_printf(out, " before 2.%d", h->step[i + 1].minor);
        else
            im_str_printf(out, " from 2.%d to 2.%d", s->minor, h->step[i + 1].minor - 1);
    }
}
