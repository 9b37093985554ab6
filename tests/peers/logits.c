/* peer_logits DIR [THREADS]: log-probabilities of chosen ids after each position of some prompts, for check_peers.py.
 *
 * stdin:  N, then for each of N prompts: T K, T ids, and K rows of T ids to ask for
 * stdout: for each prompt K rows of T log-probabilities (%.9g)
 * The engine does not hand out logits: a row of log-probabilities of given targets is what its inference
 * program tells, and each of them contains the sum over the whole vocabulary.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

typedef struct prompt {
    long t, k;
    int32_t *ids, *asked; /* (t), (k,t) */
} prompt;

typedef struct asked_row {
    const prompt *p;
    long row;
} asked_row;

static void need(im_context *ctx, im_status status)
{
    if (status == IM_OK)
        return;
    fprintf(stderr, "peer_logits: %s\n", im_error_text(ctx));
    exit(1);
}

static long read_long(void)
{
    long x;
    if (scanf("%ld", &x) != 1) {
        fprintf(stderr, "peer_logits: stdin ends too early\n");
        exit(2);
    }
    return x;
}

static int32_t *read_ids(long n)
{
    int32_t *ids = calloc((size_t)n, sizeof(*ids));
    if (!ids)
        exit(1);
    for (long i = 0; i < n; i++)
        ids[i] = (int32_t)read_long();
    return ids;
}

static im_status load(void *arg, const im_op_now *now, int64_t first, int64_t B, int64_t T, int32_t *ids, int32_t *targets, int32_t *pos,
                      int32_t *seg)
{
    const asked_row *a = arg;
    (void)first, (void)B, (void)seg;
    memcpy(ids, a->p->ids, sizeof(*ids) * (size_t)T);
    if (targets)
        memcpy(targets, a->p->asked + a->row * T, sizeof(*targets) * (size_t)T);
    for (int64_t t = 0; t < T; t++)
        pos[t] = (int32_t)(now->pos + t);
    return IM_OK;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: peer_logits DIR [THREADS] < prompts\n");
        return 2;
    }
    size_t n = (size_t)read_long();
    long longest = 0;
    prompt *p = calloc(n, sizeof(*p));
    im_program_want *want = calloc(n, sizeof(*want));
    if (!p || !want)
        return 1;
    for (size_t i = 0; i < n; i++) {
        p[i].t = read_long();
        p[i].k = read_long();
        p[i].ids = read_ids(p[i].t);
        p[i].asked = read_ids(p[i].t * p[i].k);
        longest = p[i].t > longest ? p[i].t : longest;
    }
    for (size_t i = 0; i < n; i++)
        want[i] = (im_program_want){.mode = IM_MODE_INFER, .batch = 1, .seq_len = p[i].t, .kv_max = longest, .all_logits = true};

    im_context *ctx;
    im_model *model;
    im_device *device;
    im_comm *world;
    im_engine *engine;
    im_plan plan;
    need(NULL, im_context_create(&ctx));
    need(ctx, im_model_open(ctx, argv[1], NULL, &model));
    im_plan_defaults(&plan, model);
    plan.seq_len = longest;
    plan.micro_batch = plan.global_batch = 1;
    plan.precision = IM_F32;
    plan.threads = argc > 2 ? atoi(argv[2]) : 0;
    need(ctx, im_device_open(ctx, &(im_device_config){.kernels = IM_KERNELS_FAST, .threads = plan.threads}, &device));
    need(ctx, im_comm_self(device, &world));
    need(ctx, im_engine_open(ctx, &(im_engine_config){.plan = &plan, .device = device, .world = world, .want = want, .nwant = n}, &engine));
    need(ctx, im_checkpoint_load_weights(ctx, engine, argv[1]));
    float *row = calloc((size_t)longest, sizeof(*row));
    if (!row)
        return 1;
    for (size_t i = 0; i < n; i++)
        for (long k = 0; k < p[i].k; k++) {
            asked_row a = {&p[i], k};
            im_op_now now = {.kv_len = p[i].t};
            int32_t id;
            float logprob;
            need(ctx, im_engine_run(engine, i, &now, &(im_source){.arg = &a, .load = load}));
            need(ctx, im_engine_sampled(engine, i, &id, &logprob, row));
            for (long t = 0; t < p[i].t; t++)
                printf("%.9g%c", row[t], t + 1 < p[i].t ? ' ' : '\n');
        }
    free(row);
    im_engine_close(engine);
    im_comm_destroy(world);
    im_device_close(device);
    im_model_close(model);
    im_context_destroy(ctx);
    for (size_t i = 0; i < n; i++) {
        free(p[i].ids);
        free(p[i].asked);
    }
    free(p);
    free(want);
    return 0;
}
