/* try.h: a model trained under several layouts, each compared with one rank (rule 1); some twice, for the same bits. */
#ifndef IM_TEST_LAYOUT_TRY_H
#define IM_TEST_LAYOUT_TRY_H

#include "layout/cases.h"

static void try_layouts(const char *config, const layout_case *cases, size_t n, bool deferred, im_kernels kernels)
{
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_model *m = open_model(ctx, config);
    layout_case single = {.tp = 1, .dp = 1, .pp = 1, .mbs = 7};
    im_plan p = plan_of(m, &single);
    rig_result one, got, again;
    if (rig_train(&p, STEPS, false, kernels, &one) != IM_OK)
        fail_msg("one rank: %s", one.error);
    for (size_t i = 0; i < n; i++) {
        char name[128], why[512];
        name_of(&cases[i], name, sizeof name);
        p = plan_of(m, &cases[i]);
        if (rig_train(&p, STEPS, deferred, kernels, &got) != IM_OK)
            fail_msg("%s: %s", name, got.error);
        if (differs(m, &cases[i], &got, &one, why, sizeof why))
            fail_msg("%s", why);
        if (i % 3 == 0) {
            if (rig_train(&p, STEPS, deferred, kernels, &again) != IM_OK)
                fail_msg("%s: %s", name, again.error);
            if (differs_in_bits(m, &cases[i], &again, &got, why, sizeof why))
                fail_msg("%s", why);
            rig_free(m, &again);
        }
        rig_free(m, &got);
    }
    rig_free(m, &one);
    im_model_close(m);
    im_context_destroy(ctx);
}

#endif
