/* Memory as it was predicted and as it came: by class, of every rank. */
#include "train/internal.h"

#include "engine/agree.h"

_Static_assert((int)IM_CLASS_COUNT <= (int)IM_AGREE_VALUES, "one all-reduce tells a rank's classes");

/* The rank's bytes by class on every rank. */
static im_status gather(im_train_run *r, int rank, double predicted[IM_CLASS_COUNT], double touched[IM_CLASS_COUNT])
{
    im_memory m;
    im_engine_memory(r->engine, &m);
    for (int c = 0; c < IM_CLASS_COUNT; c++) {
        bool mine = rank == im_engine_rank(r->engine);
        predicted[c] = mine ? (double)m.by_class[c] : 0;
        touched[c] = mine ? (double)im_engine_touched(r->engine, (im_class)c) : 0;
    }
    IM_TRY(im_engine_combine(r->engine, predicted, IM_CLASS_COUNT, IM_SUM));
    return im_engine_combine(r->engine, touched, IM_CLASS_COUNT, IM_SUM);
}

static void tell(const im_train_run *r, int rank, const char *const *name, const double *predicted, const double *touched)
{
    im_class_bytes classes[IM_CLASS_COUNT];
    size_t n = 0;
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        if (predicted[c] > 0 || touched[c] > 0)
            classes[n++] = (im_class_bytes){.name = name[c], .predicted = predicted[c], .measured = touched[c]};
    if (r->env->memory)
        r->env->memory(r->env->arg, rank, classes, n);
}

im_status im_train_measure_memory(im_train_run *r)
{
    const char *name[IM_CLASS_COUNT];
    im_observe_summary *s = &r->summary;
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        name[c] = im_class_name((im_class)c);
    for (int rank = 0; rank < r->ranks; rank++) {
        double predicted[IM_CLASS_COUNT], touched[IM_CLASS_COUNT];
        IM_TRY(gather(r, rank, predicted, touched));
        tell(r, rank, name, predicted, touched);
        if (r->metrics && im_observe_put_memory(r->metrics, r->meta.step, rank, name, predicted, touched, IM_CLASS_COUNT) != IM_OK) {
            r->metrics_failed = true;
            im_error_clear(r->ctx);
        }
        if (rank != r->heaviest)
            continue;
        s->memory_rank = rank;
        s->nrank_memory = 0;
        for (int c = 0; c < IM_CLASS_COUNT; c++)
            if (predicted[c] > 0 || touched[c] > 0) {
                s->memory[s->nrank_memory].name = name[c];
                s->memory[s->nrank_memory].predicted = (size_t)predicted[c];
                s->memory[s->nrank_memory++].measured = (size_t)touched[c];
            }
    }
    return IM_OK;
}
