/* Rule 1: any layout gives one rank's losses, norms, gradients and weights; the same layout twice the same bits. */
#include "layout/try.h"

/* {tp, sp, dp, pp, zero, recompute, micro-batch} */
static const layout_case llama_cases[] = {
    {1, 0, 1, 1, 0, 0, 1}, {1, 0, 1, 1, 0, 2, 3}, {1, 0, 1, 1, 0, 1, 2}, {2, 0, 1, 1, 0, 0, 7}, {2, 1, 1, 1, 0, 0, 4},
    {3, 0, 1, 1, 0, 1, 3}, {3, 1, 1, 1, 0, 2, 2}, {1, 0, 2, 1, 0, 0, 2}, {1, 0, 3, 1, 0, 0, 1}, {1, 0, 2, 1, 1, 0, 3},
    {1, 0, 3, 1, 2, 0, 1}, {1, 0, 2, 1, 3, 0, 2}, {1, 0, 5, 1, 3, 2, 1}, {2, 1, 2, 1, 1, 0, 2}, {2, 0, 2, 1, 3, 1, 1},
    {3, 1, 2, 1, 2, 2, 2}, {2, 1, 3, 1, 3, 0, 2}, {2, 1, 4, 1, 0, 1, 1}, {6, 1, 1, 1, 0, 0, 2},
};
static const layout_case tied_cases[] = {
    {2, 0, 1, 1, 0, 0, 7}, {2, 1, 1, 1, 0, 2, 2}, {4, 0, 1, 1, 0, 0, 3}, {4, 1, 1, 1, 0, 1, 2}, {8, 1, 1, 1, 0, 0, 3},
    {1, 0, 3, 1, 1, 0, 2}, {1, 0, 2, 1, 3, 0, 1}, {4, 1, 2, 1, 3, 2, 2}, {2, 1, 2, 1, 2, 1, 1}, {4, 0, 2, 1, 1, 0, 2},
};
static const layout_case gpt2_cases[] = {
    {2, 0, 1, 1, 0, 0, 7}, {2, 1, 1, 1, 0, 0, 2}, {3, 0, 1, 1, 0, 2, 3}, {5, 1, 1, 1, 0, 1, 2},
    {1, 0, 2, 1, 2, 0, 3}, {1, 0, 3, 1, 3, 0, 1}, {2, 1, 2, 1, 1, 2, 2}, {3, 1, 2, 1, 3, 0, 1},
};

/* the pipeline, with other axes; B10: of several micro-batches each counts, the smaller last one too */
static const layout_case pipe_cases[] = {
    {1, 0, 1, 2, 0, 0, 2}, {1, 0, 1, 3, 0, 0, 1}, {2, 1, 1, 2, 0, 2, 2}, {1, 0, 2, 2, 1, 0, 1},
    {2, 0, 2, 2, 1, 1, 2}, {1, 0, 1, 2, 0, 0, 7}, {3, 1, 1, 2, 0, 0, 3},
};

static void test_pipeline(void **state)
{
    (void)state;
    try_layouts(llama, pipe_cases, IM_COUNT_OF(pipe_cases), false, IM_KERNELS_FAST);
    try_layouts(gpt2, (layout_case[]){{1, 0, 1, 2, 0, 0, 2}, {2, 1, 2, 2, 1, 0, 1}}, 2, false, IM_KERNELS_FAST);
    try_layouts(llama_tied, (layout_case[]){{1, 0, 1, 2, 0, 0, 2}, {4, 1, 1, 2, 0, 2, 2}}, 2, true, IM_KERNELS_PLAIN);
}

static const char deep[] =
    "{\"model_type\":\"llama\",\"hidden_size\":36,\"intermediate_size\":50,\"num_hidden_layers\":7,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":3,\"head_dim\":10,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

/* B24, B25: fewer micro-batches than stages, and as many (of 7, 4, 3 and 2 sequences: 1, 2, 3 and 4 of them, most with a smaller last one) */
static void test_few_micro_batches(void **state)
{
    (void)state;
    static const layout_case cases[] = {{1, 0, 1, 4, 0, 0, 7}, {1, 0, 1, 4, 0, 0, 4}, {1, 0, 1, 4, 0, 0, 3}, {1, 0, 1, 4, 0, 0, 2}};
    for (schedule = IM_SCHEDULE_GPIPE; schedule < IM_SCHEDULE_COUNT; schedule++)
        try_layouts(deep, cases, IM_COUNT_OF(cases), false, IM_KERNELS_FAST);
    schedule = IM_SCHEDULE_INTERLEAVED;
    chunks = 2;
    try_layouts(deep, (layout_case[]){{1, 0, 1, 3, 0, 0, 7}, {1, 0, 1, 3, 0, 0, 4}, {1, 0, 1, 3, 0, 0, 3}}, 3, false, IM_KERNELS_FAST);
    schedule = IM_SCHEDULE_1F1B;
    chunks = 1;
}

/* several runs of blocks a stage */
static void test_interleaved(void **state)
{
    (void)state;
    static const layout_case cases[] = {
        {1, 0, 1, 1, 0, 0, 2}, {1, 0, 1, 2, 0, 0, 1}, {1, 0, 1, 2, 0, 2, 3}, {1, 0, 2, 2, 1, 0, 1},
        {1, 0, 2, 3, 3, 0, 1}, {2, 1, 2, 2, 2, 1, 2}, {3, 0, 1, 2, 0, 0, 7},
    };
    schedule = IM_SCHEDULE_INTERLEAVED;
    for (chunks = 2; chunks <= 3; chunks++)
        try_layouts(deep, cases, IM_COUNT_OF(cases), false, IM_KERNELS_FAST);
    chunks = 2;
    try_layouts(gpt2, (layout_case[]){{1, 0, 1, 1, 0, 0, 2}, {1, 0, 2, 1, 3, 0, 1}}, 2, true, IM_KERNELS_PLAIN);
    schedule = IM_SCHEDULE_1F1B;
    chunks = 1;
}

/* the backward in two parts */
static void test_zero_bubble(void **state)
{
    (void)state;
    static const layout_case cases[] = {
        {1, 0, 1, 1, 0, 0, 2}, {1, 0, 1, 2, 0, 0, 1}, {1, 0, 1, 3, 0, 2, 2}, {1, 0, 2, 2, 3, 1, 1}, {2, 1, 2, 2, 2, 0, 2}, {3, 0, 1, 2, 1, 0, 3},
    };
    schedule = IM_SCHEDULE_ZB_H1;
    try_layouts(llama, cases, IM_COUNT_OF(cases), false, IM_KERNELS_FAST);
    try_layouts(llama_tied, (layout_case[]){{1, 0, 1, 2, 0, 0, 2}, {4, 1, 1, 2, 1, 2, 2}}, 2, true, IM_KERNELS_PLAIN);
    try_layouts(gpt2, (layout_case[]){{1, 0, 1, 2, 0, 0, 1}, {2, 1, 2, 2, 1, 0, 1}}, 2, false, IM_KERNELS_FAST);
    schedule = IM_SCHEDULE_1F1B;
}

static void test_llama(void **state)
{
    (void)state;
    try_layouts(llama, llama_cases, IM_COUNT_OF(llama_cases), false, IM_KERNELS_FAST);
}

static void test_tied(void **state)
{
    (void)state;
    try_layouts(llama_tied, tied_cases, IM_COUNT_OF(tied_cases), false, IM_KERNELS_FAST);
}

static void test_gpt2(void **state)
{
    (void)state;
    try_layouts(gpt2, gpt2_cases, IM_COUNT_OF(gpt2_cases), false, IM_KERNELS_FAST);
}

/* plain kernels, and memory unreadable outside ops */
static void test_deferred(void **state)
{
    (void)state;
    static const layout_case cases[] = {{2, 1, 1, 1, 0, 2, 3}, {1, 0, 2, 1, 3, 0, 2}, {2, 0, 2, 1, 1, 0, 2}};
    try_layouts(llama, cases, IM_COUNT_OF(cases), true, IM_KERNELS_PLAIN);
    try_layouts(gpt2, cases, IM_COUNT_OF(cases), true, IM_KERNELS_PLAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_llama),       cmocka_unit_test(test_tied),
                                       cmocka_unit_test(test_gpt2),        cmocka_unit_test(test_deferred),
                                       cmocka_unit_test(test_pipeline),    cmocka_unit_test(test_interleaved),
                                       cmocka_unit_test(test_zero_bubble), cmocka_unit_test(test_few_micro_batches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
