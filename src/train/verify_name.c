/* verify: which instruction of a layout that differs was the first to do so. */
#include "train/verify_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const char *im_train_verify_verdict_name(im_train_verify_verdict v)
{
    static const char *const names[] = {"same", "rounding", "differs", "failed"};
    return names[v];
}

/* "block 2", "embedding" */
static void unit_text(const im_model *m, int unit, char *buf, size_t size)
{
    const im_unit *u = &m->unit[unit];
    if (u->type == IM_UNIT_BLOCK)
        snprintf(buf, size, "block %d", u->block);
    else
        snprintf(buf, size, "%s", u->type == IM_UNIT_EMBED ? "embedding" : "head");
}

/* The unit whose BACKWARD gives the bucket its last contribution, after which it is reduced: the first that uses it. */
static int unit_of_bucket(const im_model *m, int bucket)
{
    for (int u = 0; u < (int)m->nunit; u++)
        for (int s = 0; s < IM_SLOT_COUNT; s++)
            if (m->unit[u].param[s] >= 0 && m->param[m->unit[u].param[s]].bucket == bucket)
                return u;
    return 0;
}

double im_train_verify_distance(const im_train_verify_job *j, size_t q)
{
    const im_model *m = j->plan->model;
    const im_train_verify_reference *ref = j->reference;
    bool key_bias = false;
    for (size_t u = 0; u < m->nunit; u++) /* scores plus a number that is the same for all keys: the softmax does not see it */
        key_bias |= m->unit[u].param[IM_SLOT_K_B] == (int32_t)q && !m->arch.rope_dims;
    if (j->tensor[q].seen != im_param_count(&m->param[q]))
        return INFINITY; /* an element that nobody owns, or two do */
    double all = ref->norm[0] * ref->tokens[0], floor = all * (key_bias ? 1e-3 : 1e-5) + 1e-30;
    double d = sqrt(j->tensor[q].squares) / (ref->gradient_norm[q] > floor ? ref->gradient_norm[q] : floor);
    return d < INFINITY ? d : INFINITY;
}

double im_train_verify_limit(double tolerance, double rounding)
{
    return rounding < INFINITY && 10 * rounding > tolerance ? 10 * rounding : tolerance;
}

/* The parameter over its limit whose unit's backward comes first; -1: none. */
static int first_gradient(const im_train_verify_job *j)
{
    const im_model *m = j->plan->model;
    int found = -1, unit = -1;
    for (size_t q = 0; q < m->nparam; q++) {
        int u = unit_of_bucket(m, m->param[q].bucket);
        if (u > unit && !(im_train_verify_distance(j, q) <= im_train_verify_limit(j->tolerance, j->reference->gradient_rounding[q]))) {
            found = (int)q;
            unit = u;
        }
    }
    return found;
}

/* ", after GATHER 0 or 1": the gathers whose weights the unit reads. */
static void gathers_text(const im_model *m, int unit, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, ", after GATHER");
    uint32_t told[IM_SLOT_COUNT];
    int count = 0;
    for (int s = 0; s < IM_SLOT_COUNT; s++) {
        int32_t param = m->unit[unit].param[s];
        bool again = param < 0;
        for (int i = 0; i < count && !again; i++)
            again = told[i] == m->param[param].bucket;
        if (again || n >= size)
            continue;
        told[count] = m->param[param].bucket;
        n += (size_t)snprintf(buf + n, size - n, "%s %u", count ? " or" : "", told[count]);
        count++;
    }
}

static void blame_edge(const im_train_verify_job *j, const im_train_verify_place *at, char *buf, size_t size)
{
    const im_model *m = j->plan->model;
    char unit[32], after[96] = "", step[32] = "";
    unit_text(m, at->unit, unit, sizeof unit);
    if (at->step > 0)
        snprintf(step, sizeof step, ", step %" PRId64, at->step + 1);
    if (at->step > 0 && j->plan->zero && at->verb == IM_FORWARD)
        gathers_text(m, at->unit, after, sizeof after);
    snprintf(buf, size, "%s %d (%s), micro-batch %d%s%s", im_verb_name((im_verb)at->verb), at->unit, unit, at->mb, step, after);
}

void im_train_verify_blame(const im_train_verify_job *j, const im_train_verify_row *row, char *buf, size_t size)
{
    const im_model *m = j->plan->model;
    char unit[32];
    im_train_verify_place at = im_train_verify_first(j->plan, j->reference, j->trace, row->ranks, j->tolerance);
    int q = first_gradient(j);
    if (at.found && at.step == 0) {
        blame_edge(j, &at, buf, size);
    } else if (q >= 0) {
        int bucket = m->param[q].bucket, u = unit_of_bucket(m, bucket);
        bool summed = j->tensor[q].sum != 0;
        unit_text(m, u, unit, sizeof unit);
        bool splits = im_schedule_of(j->plan->schedule)->splits && m->unit[u].type == IM_UNIT_BLOCK;
        im_verb verb = summed ? IM_REDUCE : u + 1 == (int)m->nunit ? IM_LOSS : splits ? IM_BACKWARD_WEIGHT : IM_BACKWARD;
        snprintf(buf, size, "%s %d (%s), %s", im_verb_name(verb), summed ? bucket : u, unit, m->param[q].name);
    } else if (j->loss_step >= 0 && (!at.found || j->loss_step < at.step) && (j->norm_step < 0 || j->loss_step <= j->norm_step)) {
        snprintf(buf, size, "COUNT (the loss), step %" PRId64, j->loss_step + 1);
    } else if (j->norm_step >= 0 && (!at.found || j->norm_step < at.step)) {
        snprintf(buf, size, "CLIP (the gradient norm), step %" PRId64, j->norm_step + 1);
    } else {
        blame_edge(j, &at, buf, size);
    }
}
