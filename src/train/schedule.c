#include "train/train.h"

#include <math.h>

int64_t im_train_total_steps(const im_train_options *o)
{
    int64_t by_tokens = 0;
    if (o->tokens > 0) {
        int64_t a_step = o->global_batch * o->seq_len;
        by_tokens = (o->tokens + a_step - 1) / a_step;
    }
    if (o->steps > 0 && by_tokens > 0)
        return o->steps < by_tokens ? o->steps : by_tokens;
    return o->steps > 0 ? o->steps : by_tokens;
}

/* Share of the time after the warmup that is over, 0..1. */
static double progress(const im_train_options *o, const im_train_clock *c)
{
    double p = 0;
    if (c->total_steps > o->warmup)
        p = (double)(c->step - o->warmup) / (double)(c->total_steps - o->warmup);
    double from = c->warmup_done_s > 0 ? c->warmup_done_s : 0;
    if (c->total_s > from)
        p = fmax(p, (c->elapsed_s - from) / (c->total_s - from));
    return fmin(fmax(p, 0), 1);
}

double im_train_lr(const im_train_options *o, const im_train_clock *c)
{
    if (c->step < o->warmup)
        return o->lr * (double)(c->step + 1) / (double)o->warmup;
    double p = progress(o, c);
    switch ((im_train_schedule)o->schedule) {
    case IM_TRAIN_LINEAR: return o->lr + (o->min_lr - o->lr) * p;
    case IM_TRAIN_COSINE: return o->min_lr + (o->lr - o->min_lr) * 0.5 * (1 + cos(M_PI * p));
    case IM_TRAIN_WSD:
        if (o->decay <= 0 || p <= 1 - o->decay)
            return o->lr;
        return o->lr + (o->min_lr - o->lr) * (p - (1 - o->decay)) / o->decay;
    case IM_TRAIN_CONSTANT: break;
    }
    return o->lr;
}
