/* Memory as it was predicted and as it came: by class, of every rank. */
#include "train/internal.h"

#include "engine/agree.h"

im_status im_train_measure_memory(im_train_run *r)
{
    for (int rank = 0; rank < r->ranks; rank++) {
        im_observe_memory m;
        IM_TRY(im_engine_rank_memory(r->engine, rank, &m));
        if (r->env->memory)
            im_observe_memory_pass(&m, r->env->memory, r->env->arg);
        if (r->metrics && im_observe_put_memory(r->metrics, r->meta.step, &m) != IM_OK) {
            r->metrics_failed = true;
            im_error_clear(r->ctx);
        }
        if (rank == r->heaviest)
            r->summary.memory = m;
    }
    return IM_OK;
}
