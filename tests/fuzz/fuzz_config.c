/* Any bytes as a config.json: refused with a message, or a model whose table is sound and whose config.json reads back to the same sizes. */
#include "model/model.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static im_status parse(im_context *ctx, const char *text, size_t size, im_model **m)
{
    im_json *doc;
    IM_TRY(im_json_parse(ctx, "fuzz", text, size, &doc));
    im_status status = im_model_parse(ctx, doc, m);
    im_json_free(doc);
    return status;
}

static void check(im_context *ctx, const im_model *m)
{
    if (im_model_param_count(m) <= 0 || m->nunit != (size_t)m->arch.L + 2 || m->nbucket == 0)
        abort();
    for (size_t i = 0; i < m->nparam; i++)
        if (im_param_count(&m->param[i]) <= 0 || m->param[i].bucket >= m->nbucket)
            abort();
    if (!(im_model_flops_per_token(m, 128) > 0))
        abort();
    if (m->planning_only)
        return;
    im_str text = {0};
    im_model *again;
    if (im_model_config_text(ctx, m, IM_F32, &text) != IM_OK || parse(ctx, im_str_text(&text), text.len, &again) != IM_OK)
        abort();
    if (im_model_param_count(again) != im_model_param_count(m))
        abort();
    im_model_close(again);
    im_str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_model *m;
    if (im_context_create(&ctx) != IM_OK)
        return 0;
    if (parse(ctx, (const char *)data, size, &m) == IM_OK) {
        check(ctx, m);
        im_model_close(m);
    } else if (!*im_error_text(ctx)) {
        abort();
    }
    im_context_destroy(ctx);
    return 0;
}
