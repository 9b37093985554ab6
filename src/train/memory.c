/* Memory as it was predicted and as it came: by class, of every rank. */
#include "train/internal.h"

#include "engine/agree.h"

static void tell(const im_train_run *r, const im_observe_memory *m)
{
    im_class_bytes classes[IM_COUNT_OF(m->by_class)];
    size_t n = 0;
    for (size_t c = 0; c < m->n; c++)
        if (m->by_class[c].predicted > 0 || m->by_class[c].measured > 0)
            classes[n++] = m->by_class[c];
    if (r->env->memory)
        r->env->memory(r->env->arg, m->rank, classes, n);
}

im_status im_train_measure_memory(im_train_run *r)
{
    for (int rank = 0; rank < r->ranks; rank++) {
        im_observe_memory m;
        IM_TRY(im_engine_rank_memory(r->engine, rank, &m));
        tell(r, &m);
        if (r->metrics && im_observe_put_memory(r->metrics, r->meta.step, &m) != IM_OK) {
            r->metrics_failed = true;
            im_error_clear(r->ctx);
        }
        if (rank == r->heaviest)
            r->summary.memory = m;
    }
    return IM_OK;
}
