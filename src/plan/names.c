/* Names of verbs, roles, values and instructions, for messages, traces and pictures. */
#include "plan/program.h"

const char *im_verb_name(im_verb v)
{
    static const char *const names[IM_VERB_COUNT] = {
        [IM_LOAD] = "LOAD",
        [IM_RECV] = "RECV",
        [IM_SEND] = "SEND",
        [IM_FORWARD] = "FORWARD",
        [IM_LOSS] = "LOSS",
        [IM_SAMPLE] = "SAMPLE",
        [IM_RECOMPUTE] = "RECOMPUTE",
        [IM_BACKWARD] = "BACKWARD",
        [IM_BACKWARD_INPUT] = "BACKWARD_INPUT",
        [IM_BACKWARD_WEIGHT] = "BACKWARD_WEIGHT",
        [IM_GATHER] = "GATHER",
        [IM_RELEASE] = "RELEASE",
        [IM_REDUCE] = "REDUCE",
        [IM_COUNT] = "COUNT",
        [IM_CLIP] = "CLIP",
        [IM_UPDATE] = "UPDATE",
        [IM_SNAPSHOT] = "SNAPSHOT",
    };
    return (unsigned)v < IM_VERB_COUNT ? names[v] : "?";
}

const char *im_role_name(im_role r)
{
    static const char *const names[IM_ROLE_COUNT] = {
        [IM_ROLE_WEIGHT] = "weight", [IM_ROLE_GRAD] = "gradient", [IM_ROLE_OPT] = "optimizer state", [IM_ROLE_EDGE] = "edge",
        [IM_ROLE_SAVED] = "saved",   [IM_ROLE_STASH] = "stash",   [IM_ROLE_TEMP] = "temp",           [IM_ROLE_KV] = "kv cache",
        [IM_ROLE_SCALAR] = "scalar", [IM_ROLE_CARRY] = "carry",
    };
    return (unsigned)r < IM_ROLE_COUNT ? names[r] : "?";
}

const char *im_saved_name(im_saved s)
{
    static const char *const names[IM_SAVED_COUNT] = {
        [IM_SAVED_NORM1] = "first norm",
        [IM_SAVED_STAT1] = "first norm's statistics",
        [IM_SAVED_QKV] = "q, k, v",
        [IM_SAVED_QK] = "normed q, k",
        [IM_SAVED_SQUARES] = "squares of q, k",
        [IM_SAVED_ATTN] = "attention output",
        [IM_SAVED_LSE] = "attention log-sum-exp",
        [IM_SAVED_SUM] = "residual after attention",
        [IM_SAVED_NORM2] = "second norm",
        [IM_SAVED_STAT2] = "second norm's statistics",
        [IM_SAVED_UP] = "feed-forward, before activation",
        [IM_SAVED_ACT] = "feed-forward, after activation",
    };
    return (unsigned)s < IM_SAVED_COUNT ? names[s] : "?";
}

void im_step_print(const im_step *s, im_str *out)
{
    im_str_printf(out, "%s", im_verb_name((im_verb)s->verb));
    if (s->verb != IM_COUNT && s->verb != IM_CLIP && s->verb != IM_SNAPSHOT)
        im_str_printf(out, " %u", s->target);
    if (s->mb >= 0)
        im_str_printf(out, " mb %d", s->mb);
    if (s->chunk)
        im_str_printf(out, " chunk %u", s->chunk);
}

void im_value_print(const im_value *v, im_str *out)
{
    static const char *const scalars[IM_SCALAR_COUNT] = {"loss", "token count", "squares", "clip", "hyper-parameters", "mark of bad weights"};
    static const char *const carries[IM_CARRY_COUNT] = {"ids",
                                                        "targets",
                                                        "positions",
                                                        "segments",
                                                        "rotary table",
                                                        "cache positions",
                                                        "cache blocks",
                                                        "sampled ids",
                                                        "sampled log-probabilities",
                                                        "row log-probabilities"};
    switch ((im_role)v->role) {
    case IM_ROLE_SCALAR: im_str_append(out, scalars[v->index]); break;
    case IM_ROLE_CARRY: im_str_append(out, carries[v->index]); break;
    case IM_ROLE_SAVED: im_str_printf(out, "%s of unit %u", im_saved_name((im_saved)v->index), v->owner); break;
    case IM_ROLE_EDGE: im_str_printf(out, "%s of unit %u", v->index ? "gradient of the output" : "output", v->owner); break;
    case IM_ROLE_WEIGHT:
    case IM_ROLE_GRAD: im_str_printf(out, "%s%s of bucket %u", im_role_name((im_role)v->role), v->index ? " shard" : "", v->owner); break;
    case IM_ROLE_OPT: im_str_printf(out, "optimizer state %u of bucket %u", v->index, v->owner); break;
    default: im_str_printf(out, "%s %u of %u", im_role_name((im_role)v->role), v->index, v->owner); break;
    }
    if (v->mb >= 0)
        im_str_printf(out, ", mb %d", v->mb);
}

bool im_value_equal(const im_value *a, const im_value *b)
{
    return a->role == b->role && a->index == b->index && a->owner == b->owner && a->mb == b->mb;
}

bool im_value_persistent(const im_program *p, const im_value *v)
{
    int zero = p->plan->zero;
    switch ((im_role)v->role) {
    case IM_ROLE_WEIGHT: return v->index == 1 || zero < 3;
    case IM_ROLE_GRAD: return v->index == 1 || zero < 2;
    case IM_ROLE_OPT:
    case IM_ROLE_KV:
    case IM_ROLE_SCALAR:
    case IM_ROLE_CARRY: return true;
    default: return false;
    }
}
