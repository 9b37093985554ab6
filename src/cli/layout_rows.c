#include "cli/layout_rows.h"

#include "checkpoint/checkpoint.h"
#include "topology/cluster.h"
#include "train/planned.h"

#include <string.h>

/* What an option is called in both tables. */
static void take(const im_cli_layout *from, const im_option *rows, size_t nrows, const bool *given, bool all, im_train_options *o)
{
#define TAKE(key, field)                                     \
    for (size_t i = 0; i < nrows; i++)                       \
        if (!strcmp(rows[i].name, key) && (all || given[i])) \
            o->field = from->field;
    TAKE("model", model)
    TAKE("tp", tp)
    TAKE("dp", dp)
    TAKE("pp", pp)
    TAKE("zero", zero)
    TAKE("sequence-parallel", sequence_parallel)
    TAKE("recompute", recompute)
    TAKE("pipeline", pipeline)
    TAKE("chunks", chunks)
    TAKE("stages", stages)
    TAKE("seq-len", seq_len)
    TAKE("micro-batch", micro_batch)
    TAKE("global-batch", global_batch)
    TAKE("precision", precision)
#undef TAKE
}

static im_status read_plan(im_cli *cli, const char *path, im_train_options *o)
{
    char *file = im_path_is_dir(path) ? im_arena_printf(cli->arena, "%s/plan.yaml", path) : im_arena_strdup(cli->arena, path);
    char flag[] = "--config";
    if (!file)
        return im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for a name");
    char *argv[] = {flag, file};
    return im_train_options_parse(cli->ctx, cli->arena, 2, argv, o);
}

im_status im_cli_layout_options(im_cli *cli, const im_option_list *words, const im_option *rows, size_t nrows, const im_cli_layout *from,
                                const bool *given, im_train_options *out)
{
    if (words->n > 1)
        return im_fail(cli->ctx, IM_ERR_ARG, "one plan at a time, not %s too", words->item[1]);
    const char *path = words->n ? words->item[0] : NULL;
    if (path)
        IM_TRY(read_plan(cli, path, out));
    else
        IM_TRY(im_option_defaults(cli->ctx, im_train_rows, IM_TRAIN_ROWS, cli->arena, out));
    take(from, rows, nrows, given, !path, out);
    return IM_OK;
}

im_status im_cli_layout_plan(im_cli *cli, const im_train_options *t, im_model **model, im_plan *plan)
{
    char dir[4096];
    if (!t->model)
        return im_fail(cli->ctx, IM_ERR_ARG, "which plan? A run, a plan.yaml, or --model with a layout");
    double ranks = (double)t->tp * (double)t->cp * (double)t->dp * (double)t->pp;
    if (ranks > IM_CLUSTER_MAX_DEVICES)
        return im_fail(cli->ctx, IM_ERR_ARG, "tp %lld x cp %lld x dp %lld x pp %lld: at most %d ranks", (long long)t->tp, (long long)t->cp,
                       (long long)t->dp, (long long)t->pp, IM_CLUSTER_MAX_DEVICES);
    IM_TRY(im_checkpoint_resolve(cli->ctx, t->model, dir, sizeof dir));
    IM_TRY(im_model_open(cli->ctx, dir, cli->models_dir, model));
    int64_t *cut = IM_ARENA_NEW(cli->arena, int64_t, IM_TRAIN_CUTS);
    im_status status = cut ? IM_OK : im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the stages");
    if (status == IM_OK)
        status = im_train_plan(cli->ctx, t, *model, cut, plan);
    if (status != IM_OK)
        im_model_close(*model);
    return status;
}
