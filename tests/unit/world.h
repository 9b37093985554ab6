/* world.h: what tests of costs, steps and searches have: a cluster and a model, in memory. */
#ifndef IM_TEST_WORLD_H
#define IM_TEST_WORLD_H

#include "model/model.h"
#include "topology/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct world {
    im_context *ctx;
    im_cluster *c;
    im_model *m;
} world;

static inline im_status world_model(im_context *ctx, const char *model, im_model **out)
{
    im_json *doc;
    if (model[0] != '{')
        return im_model_open(ctx, model, IM_SOURCE_MODELS_DIR, out);
    IM_TRY(im_json_parse(ctx, "test.json", model, strlen(model), &doc));
    im_status status = im_model_parse(ctx, doc, out);
    im_json_free(doc);
    return status;
}

/* cluster: YAML; model: a config as JSON, or the name of a shape. */
static inline int make_world(void **state, const char *cluster, const char *model)
{
    world *w = calloc(1, sizeof *w);
    if (!w || im_context_create(&w->ctx) != IM_OK || im_cluster_parse(w->ctx, "test.yaml", cluster, strlen(cluster), &w->c) != IM_OK ||
        world_model(w->ctx, model, &w->m) != IM_OK)
        return -1;
    *state = w;
    return 0;
}

static inline int close_world(void **state)
{
    world *w = *state;
    im_model_close(w->m);
    im_cluster_close(w->c);
    im_context_destroy(w->ctx);
    free(w);
    return 0;
}

#endif
