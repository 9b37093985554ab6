/* From options to a plan, for runs and for commands that only look at it. */
#include "train/train.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "8,8,6": as many numbers as there are runs of blocks. */
static im_status parse_cut(im_context *ctx, const char *text, int want, int64_t *cut)
{
    const char *at = text;
    int n = 0;
    for (;; at++) {
        char *end;
        errno = 0;
        long long v = strtoll(at, &end, 10);
        if (end == at || errno || v < 1 || (*end && *end != ','))
            return im_fail(ctx, IM_ERR_ARG, "stages \"%s\": even, balanced, or the blocks of each stage such as 8,8,6", text);
        if (n < want)
            cut[n] = v;
        n++;
        at = end;
        if (!*end)
            break;
    }
    if (n != want)
        return im_fail(ctx, IM_ERR_ARG, "stages \"%s\" has %d numbers; pp x chunks = %d are needed", text, n, want);
    return IM_OK;
}

static im_status stages(im_context *ctx, const im_train_options *o, im_plan *p, int64_t *cut)
{
    if (!strcmp(o->stages, "even")) {
        p->stages = IM_STAGES_EVEN;
    } else if (!strcmp(o->stages, "balanced")) {
        p->stages = IM_STAGES_BALANCED;
    } else {
        int64_t want = (int64_t)p->mesh.pp * im_plan_chunks(p);
        if (want > IM_TRAIN_CUTS)
            return im_fail(ctx, IM_ERR_ARG, "stages: at most %d of them", IM_TRAIN_CUTS);
        p->stages = IM_STAGES_GIVEN;
        p->cut = cut;
        return parse_cut(ctx, o->stages, (int)want, cut);
    }
    return IM_OK;
}

im_status im_train_plan(im_context *ctx, const im_train_options *o, const im_model *m, int64_t *cut, im_plan *p)
{
    im_plan_defaults(p, m);
    int64_t batch = o->global_batch ? o->global_batch : o->micro_batch * o->dp;
    p->seq_len = o->seq_len;
    p->micro_batch = o->micro_batch < batch ? o->micro_batch : batch;
    p->global_batch = batch;
    p->precision = o->precision == IM_TRAIN_BF16 ? IM_BF16 : IM_F32;
    p->dropout = o->dropout;
    p->label_smoothing = o->label_smoothing;
    p->beta1 = o->beta1;
    p->beta2 = o->beta2;
    p->eps = o->eps;
    p->weight_decay = o->weight_decay;
    p->seed = (uint64_t)o->seed;
    p->mesh = (im_mesh){(int)o->tp, (int)o->cp, (int)o->dp, (int)o->pp};
    p->zero = (int)o->zero;
    p->sequence_parallel = o->sequence_parallel;
    p->recompute = (im_recompute)o->recompute;
    p->schedule = (im_schedule)o->pipeline;
    p->chunks = o->chunks ? (int)o->chunks : p->schedule == IM_SCHEDULE_INTERLEAVED && m->arch.L >= 2 * o->pp ? 2 : 1;
    return stages(ctx, o, p, cut);
}
