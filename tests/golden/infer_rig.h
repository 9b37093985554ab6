/* infer_rig: a golden model opened to generate, and ids to begin with. */
#ifndef IM_TESTS_GOLDEN_INFER_RIG_H
#define IM_TESTS_GOLDEN_INFER_RIG_H

#include "golden/rig.h"

#include "infer/infer.h"

#define DIR(name) IM_TEST_DIR "/golden/" name

static im_infer *open_model(im_context **ctx, const char *dir)
{
    im_infer *g;
    RIG_OK(NULL, im_context_create(ctx));
    im_context_set_log(*ctx, rig_log, NULL, IM_LOG_WARN);
    RIG_OK(*ctx, im_infer_open(*ctx, dir, NULL, &g));
    return g;
}

/* Some ids below V that do not repeat in short cycles. */
static void some_ids(int32_t *ids, size_t n, int64_t V, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t w[4];
        im_philox(seed, i, 0, w);
        ids[i] = (int32_t)(w[0] % (uint64_t)V);
    }
}

#endif
