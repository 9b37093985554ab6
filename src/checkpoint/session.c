#include "checkpoint/session.h"
#include "checkpoint/internal.h"

#include <stdio.h>

bool im_checkpoint_has_weights(const char *dir)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char path[IM_CHECKPOINT_PATH];
    for (size_t i = 0; dir && i < IM_COUNT_OF(names); i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) < (int)sizeof path && im_path_exists(path))
            return true;
    return false;
}

im_status im_checkpoint_session_open(im_context *ctx, const char *what, const char *models_dir, im_checkpoint_session *out)
{
    char dir[IM_CHECKPOINT_PATH];
    im_checkpoint_session s = {0};
    if (!what)
        return im_fail(ctx, IM_ERR_ARG, "--model is missing: a model directory, a checkpoint or a run directory");
    IM_TRY(im_checkpoint_resolve(ctx, what, dir, sizeof dir));
    IM_TRY(im_model_open(ctx, dir, models_dir, &s.model));
    im_status status;
    IM_TRY_GOTO(im_model_need_runnable(ctx, s.model), close_model);
    if (!im_checkpoint_has_weights(s.model->dir)) {
        status = im_fail(ctx, IM_ERR_NOT_FOUND,
                         "%s: no weights (model.safetensors, or model.safetensors.index.json with its shards); a named shape or a config alone has "
                         "none: train it first",
                         dir);
        goto close_model;
    }
    IM_TRY_GOTO(im_checkpoint_check_weights(ctx, s.model->dir), close_model);
    im_plan_defaults(&s.plan, s.model);
    s.plan.dropout = 0;
    s.plan.threads = im_machine_cores();
    *out = s;
    return IM_OK;
close_model:
    im_model_close(s.model);
    return status;
}

im_status im_checkpoint_session_start(im_context *ctx, im_checkpoint_session *s, bool deferred, im_kernels kernels, const im_program_want *want,
                                      size_t nwant)
{
    im_checkpoint_session_stop(s);
    IM_TRY(im_plan_validate(ctx, &s->plan));
    im_device_config device = {.deferred = deferred, .threads = s->plan.threads, .kernels = kernels};
    im_status status;
    IM_TRY_GOTO(im_device_open(ctx, &device, &s->device), stop);
    IM_TRY_GOTO(im_comm_self(s->device, &s->world), stop);
    im_engine_config engine = {.plan = &s->plan, .device = s->device, .world = s->world, .want = want, .nwant = nwant};
    IM_TRY_GOTO(im_engine_open(ctx, &engine, &s->engine), stop);
    IM_TRY_GOTO(im_checkpoint_load_weights(ctx, s->engine, s->model->dir), stop);
    return IM_OK;
stop:
    im_checkpoint_session_stop(s);
    return status;
}

void im_checkpoint_session_stop(im_checkpoint_session *s)
{
    im_engine_close(s->engine);
    im_comm_destroy(s->world);
    im_device_close(s->device);
    s->engine = NULL;
    s->world = NULL;
    s->device = NULL;
}

void im_checkpoint_session_close(im_checkpoint_session *s)
{
    im_checkpoint_session_stop(s);
    im_model_close(s->model);
    *s = (im_checkpoint_session){0};
}
