/* Which instruction needs the most of what comes and goes. */
#include "plan/estimate.h"

#include "plan/values.h"

#include <stdlib.h>

typedef struct life {
    uint32_t first, last; /* op numbers */
    size_t bytes;
} life;

static bool note(im_value_map *m, life **lives, uint32_t *cap, const im_bound *x, int k, uint32_t op)
{
    uint32_t v = im_value_map_add(m, &x->value[k]);
    if (v == UINT32_MAX)
        return false;
    if (v >= *cap) {
        uint32_t want = *cap ? *cap * 2 : 1024;
        life *more = realloc(*lives, sizeof *more * want);
        if (!more)
            return false;
        for (uint32_t i = *cap; i < want; i++)
            more[i] = (life){.first = UINT32_MAX};
        *lives = more;
        *cap = want;
    }
    life *l = &(*lives)[v];
    if (l->first == UINT32_MAX)
        l->first = op;
    l->last = op;
    l->bytes = x->hi[k] > l->bytes ? x->hi[k] : l->bytes;
    return true;
}

im_status im_estimate_peak(im_context *ctx, const im_program *p, size_t *bytes, uint32_t *step)
{
    im_value_map m = {0};
    life *lives = NULL;
    uint32_t cap = 0;
    int64_t *change = calloc((size_t)p->nbound + 2, sizeof *change), live = 0, most = 0;
    bool ok = change != NULL;
    for (uint32_t i = 0; ok && i < p->nbound; i++)
        for (int k = 0; ok && k < p->bound[i].op->args.n; k++)
            if (p->bound[i].hi[k] > p->bound[i].lo[k] && !im_value_persistent(p, &p->bound[i].value[k]))
                ok = note(&m, &lives, &cap, &p->bound[i], k, i);
    for (uint32_t v = 0; ok && v < m.n; v++) {
        change[lives[v].first] += (int64_t)lives[v].bytes;
        change[lives[v].last + 1] -= (int64_t)lives[v].bytes;
    }
    *step = 0;
    for (uint32_t i = 0; ok && i < p->nbound; i++) {
        live += change[i];
        if (live > most) {
            most = live;
            *step = p->bound[i].step;
        }
    }
    *bytes = (size_t)most;
    free(change);
    free(lives);
    im_value_map_free(&m);
    return ok ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "no memory to look at the memory of a plan");
}
