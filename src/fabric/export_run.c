/* The last step of a training run as metrics, from the end of its metrics.jsonl (docs/metrics.md). */
#include "fabric/export.h"

#include "base/json.h"

#include <math.h>
#define TAIL ((size_t)64 << 10) /* lines of other events may stand behind the last step */

static const struct {
    const char *key, *metric, *help;
} values[] = {
    {"step", "imece_train_steps", "Steps done."},
    {"step_s", "imece_train_step_seconds", "Wall time of the last step."},
    {"tokens_per_s", "imece_train_tokens_per_second", "Tokens a second of the last step, all ranks."},
    {"loss", "imece_train_loss", "Mean loss of the last step, in nats a token."},
    {"mfu", "imece_train_model_flops_utilization_ratio", "Arithmetic of the model over what the machine can do."},
};

/* A line that is a step; false: another event, cut off, or garbage. */
static bool step_line(im_prom *p, im_context *quiet, const char *line, size_t n)
{
    im_json *doc;
    if (im_json_parse(quiet, "line", line, n, &doc) != IM_OK) {
        im_error_clear(quiet);
        return false;
    }
    const im_json_value *root = im_json_root(doc);
    const bool good = !im_json_get(root, "event") && im_json_real(im_json_get(root, "step_s"), -1) >= 0;
    for (size_t i = 0; good && i < IM_COUNT_OF(values); i++) {
        const double v = im_json_real(im_json_get(root, values[i].key), NAN);
        if (v >= 0)
            im_prom_add(p, im_prom_find(p, values[i].metric, IM_PROM_GAUGE, values[i].help), NULL, 0, v);
    }
    im_json_free(doc);
    return good;
}

bool im_export_run_text(im_prom *p, im_context *quiet, const char *text, size_t n)
{
    const size_t least = n > TAIL ? n - TAIL : 0;
    while (n > least) {
        size_t from = n - 1;      /* the line text[from..n) */
        if (text[from] != '\n') { /* its writer is not done */
            n--;
            continue;
        }
        n = from;
        while (from > least && text[from - 1] != '\n')
            from--;
        if (n > from && step_line(p, quiet, text + from, n - from))
            return true;
        n = from;
    }
    return false;
}

im_status im_export_run(im_context *ctx, im_arena *a, im_prom *p, const char *dir)
{
    im_context *quiet;
    im_map map;
    const char *path = im_arena_printf(a, "%s/metrics.jsonl", dir);
    if (!path)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for a name");
    if (!im_path_is_dir(dir))
        return im_fail(ctx, IM_ERR_IO, "%s: no such run directory", dir);
    if (!im_path_exists(path)) /* it has not begun */
        return IM_OK;
    IM_TRY(im_map_open(ctx, path, &map));
    im_status status = im_context_create(&quiet);
    if (status == IM_OK) {
        if (map.len)
            im_export_run_text(p, quiet, (const char *)map.data, map.len);
        im_context_destroy(quiet);
    }
    im_map_close(&map);
    return status;
}
