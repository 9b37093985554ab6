/* Generation shared out over ranks that are threads: ids and log-probabilities are one rank's, for every family, whatever the layout; blocks of the
 * cache go back and are taken again; bytes are as planned; what one rank meets, all hear. */
#include "golden/infer_rig.h"

#include "tensor/ops.h"

enum { PROMPT = 9, NEW = 8, MOST_IDS = 160 };

typedef struct run {
    int32_t id[NEW], drawn[NEW];
    float logprob[NEW], of_prompt[MOST_IDS];
    size_t nprompt;
} run;

typedef struct layout {
    int tp, pp;
    bool deferred;
    im_kernels kernels;
} layout;

static im_infer_config config_of(const layout *l)
{
    return (im_infer_config){
        .top_p = 1, .threads = 1, .kernels = l->kernels, .deferred = l->deferred, .tp = l->tp, .pp = l->pp, .deadline = 60, .precision = IM_F32};
}

/* Greedy ids behind `nprompt` given ones, and drawn ones. Between them the sequence is given up once: its blocks come back in another order. */
static run generate(const char *dir, const layout *l, size_t nprompt)
{
    im_context *ctx;
    im_infer *g = open_model(&ctx, dir);
    run r = {.nprompt = nprompt};
    int32_t ids[MOST_IDS];
    some_ids(ids, nprompt, im_infer_model(g)->arch.V, 3);
    im_infer_config cfg = config_of(l);
    cfg.positions = (int64_t)nprompt + NEW;
    cfg.prompt_logprobs = true;
    cfg.first_feed = nprompt > PROMPT ? 0 : (int64_t)nprompt;
    RIG_OK(ctx, im_infer_start(g, &cfg));
    RIG_OK(ctx, im_infer_feed(g, ids, 4, NULL));
    im_infer_rewind(g);
    RIG_OK(ctx, im_infer_feed(g, ids, nprompt, r.of_prompt));
    for (int i = 0; i < NEW; i++)
        RIG_OK(ctx, im_infer_next(g, &r.id[i], &r.logprob[i]));
    im_infer_rewind(g);
    RIG_OK(ctx, im_infer_feed(g, ids, nprompt, NULL));
    int32_t again;
    RIG_OK(ctx, im_infer_next(g, &again, NULL));
    assert_int_equal(again, r.id[0]);
    cfg.temperature = 1.5;
    cfg.top_p = 0.95;
    cfg.seed = 11;
    cfg.prompt_logprobs = false;
    RIG_OK(ctx, im_infer_start(g, &cfg));
    RIG_OK(ctx, im_infer_feed(g, ids, nprompt - 2, NULL));
    RIG_OK(ctx, im_infer_feed(g, ids + nprompt - 2, 2, NULL));
    for (int i = 0; i < NEW; i++)
        RIG_OK(ctx, im_infer_next(g, &r.drawn[i], NULL));
    im_infer_close(g);
    im_context_destroy(ctx);
    return r;
}

static void same(const char *dir, const layout *l, const run *one, const run *many)
{
    for (int i = 0; i < NEW; i++) {
        if (one->id[i] != many->id[i])
            fail_msg("%s tp %d pp %d: id %d is %d, on one rank %d", dir, l->tp, l->pp, i, many->id[i], one->id[i]);
        if (one->drawn[i] != many->drawn[i])
            fail_msg("%s tp %d pp %d: drawn id %d is %d, on one rank %d", dir, l->tp, l->pp, i, many->drawn[i], one->drawn[i]);
        RIG_CLOSE(many->logprob[i], one->logprob[i], 1e-5, dir);
    }
    for (size_t i = 1; i < one->nprompt; i++)
        RIG_CLOSE(many->of_prompt[i], one->of_prompt[i], 1e-5, dir);
    assert_true(isnan(many->of_prompt[0]));
}

static const layout alone = {1, 1, false, IM_KERNELS_FAST};

static void try_layouts(const char *dir, const layout *l, size_t n, size_t nprompt)
{
    run one = generate(dir, &alone, nprompt);
    for (size_t i = 0; i < n; i++) {
        run many = generate(dir, &l[i], nprompt);
        same(dir, &l[i], &one, &many);
    }
}

#define TRY(dir, layouts, nprompt) try_layouts(DIR(dir), layouts, IM_COUNT_OF(layouts), nprompt)

/* Fused and side-by-side weights, windows, ALiBi, norms of q and k, tied tables, kv heads that tp does not divide: all families. */
static void every_family(void **state)
{
    (void)state;
    static const layout usual[] = {{2, 1, false, IM_KERNELS_FAST}, {1, 2, false, IM_KERNELS_FAST}, {2, 2, false, IM_KERNELS_FAST}};
    static const char *const dirs[] = {DIR("bloom"),           DIR("bloom-untied"), DIR("gpt2-erf"),     DIR("gpt2-tanh"),      DIR("llama-tied"),
                                       DIR("llama-untied"),    DIR("llama3-bias"),  DIR("mistral-tied"), DIR("mistral-window"), DIR("neox"),
                                       DIR("neox-sequential"), DIR("olmo2"),        DIR("olmo2-bias"),   DIR("phi3"),           DIR("phi3-long"),
                                       DIR("qwen2"),           DIR("qwen2-window"), DIR("qwen3"),        DIR("qwen3-bias")};
    for (size_t i = 0; i < IM_COUNT_OF(dirs); i++)
        try_layouts(dirs[i], usual, IM_COUNT_OF(usual), PROMPT);
}

/* kv heads fewer than tp; three heads on two ranks; as many stages as blocks; memory that cannot be read outside ops. */
static void uneven(void **state)
{
    (void)state;
    static const layout more[] = {{4, 1, false, IM_KERNELS_FAST}, {4, 2, false, IM_KERNELS_PLAIN}};
    static const layout deep[] = {{1, 3, false, IM_KERNELS_FAST}, {3, 1, true, IM_KERNELS_FAST}, {3, 3, false, IM_KERNELS_FAST}};
    static const layout later[] = {{2, 2, true, IM_KERNELS_PLAIN}};
    TRY("llama3-bias", more, PROMPT);
    TRY("olmo2", more, PROMPT);
    TRY("gpt2-tanh", deep, PROMPT);
    TRY("llama-untied", deep, PROMPT);
    TRY("qwen2-window", later, PROMPT);
}

/* Sequences of several blocks: three at the end, in the order in which they became free. */
static void long_sequences(void **state)
{
    (void)state;
    static const layout l[] = {{2, 1, false, IM_KERNELS_FAST}, {2, 2, false, IM_KERNELS_FAST}, {1, 2, true, IM_KERNELS_FAST}};
    assert_true(140 > 2 * IM_KV_BLOCK);
    TRY("bloom", l, 140);
}

/* Each rank has its kv heads of its blocks, no more; touched is what was predicted, and pages of what the sequence used. */
static void memory_is_as_planned(void **state)
{
    (void)state;
    static const layout layouts[] = {{1, 1, false, IM_KERNELS_FAST}, {2, 1, false, IM_KERNELS_FAST}, {1, 3, false, IM_KERNELS_FAST}};
    double kv[3][3] = {{0}}, columns = 0; /* of a head */
    for (size_t i = 0; i < IM_COUNT_OF(layouts); i++) {
        im_context *ctx;
        im_infer *g = open_model(&ctx, DIR("llama-untied")); /* 3 blocks, 3 kv heads of 6 */
        im_infer_config cfg = config_of(&layouts[i]);
        im_observe_memory m[3];
        int32_t ids[PROMPT], id;
        cfg.positions = IM_KV_BLOCK;
        columns = (double)im_infer_model(g)->arch.E;
        some_ids(ids, PROMPT, im_infer_model(g)->arch.V, 3);
        RIG_OK(ctx, im_infer_start(g, &cfg));
        RIG_OK(ctx, im_infer_feed(g, ids, PROMPT, NULL));
        RIG_OK(ctx, im_infer_next(g, &id, NULL));
        RIG_OK(ctx, im_infer_memory(g, m));
        assert_int_equal(im_infer_ranks(g), layouts[i].tp * layouts[i].pp);
        for (int r = 0; r < im_infer_ranks(g); r++) {
            assert_int_equal(m[r].rank, r);
            for (size_t c = 0; c < m[r].n; c++) {
                const im_class_bytes *x = &m[r].by_class[c];
                bool exact = !strcmp(x->name, "weights") || !strcmp(x->name, "activations") || !strcmp(x->name, "kv cache");
                if (exact && !(x->measured > 0 && x->measured <= x->predicted + 8192))
                    fail_msg("rank %d, %s: %.0f bytes predicted, %.0f touched", r, x->name, x->predicted, x->measured);
                if (!strcmp(x->name, "kv cache"))
                    kv[i][r] = x->predicted;
            }
        }
        im_infer_close(g);
        im_context_destroy(ctx);
    }
    double each = 2.0 * IM_KV_BLOCK * columns * sizeof(float); /* keys and values of a kv head of a block */
    assert_true(kv[0][0] == 9 * each);
    assert_true(kv[1][0] == 6 * each && kv[1][1] == 3 * each);
    assert_true(kv[2][0] == 3 * each && kv[2][1] == 3 * each && kv[2][2] == 3 * each);
}

static void refuse(const layout *l, const char *part)
{
    im_context *ctx;
    im_infer *g;
    RIG_OK(NULL, im_context_create(&ctx));
    RIG_OK(ctx, im_infer_open(ctx, DIR("llama3-bias"), NULL, &g));
    im_infer_config cfg = config_of(l);
    assert_int_not_equal(im_infer_start(g, &cfg), IM_OK);
    if (!strstr(im_error_text(ctx), part))
        fail_msg("tp %d pp %d: \"%s\", where \"%s\" was expected", l->tp, l->pp, im_error_text(ctx), part);
    im_error_clear(ctx);
    cfg.tp = 2; /* and it can be used after that */
    cfg.pp = 1;
    RIG_OK(ctx, im_infer_start(g, &cfg));
    int32_t id, fed = 1;
    RIG_OK(ctx, im_infer_feed(g, &fed, 1, NULL));
    RIG_OK(ctx, im_infer_next(g, &id, NULL));
    im_infer_close(g);
    im_context_destroy(ctx);
}

static void refused_with_what_works(void **state)
{
    (void)state;
    refuse(&(layout){3, 1, false, IM_KERNELS_FAST},
           "num_key_value_heads); nearest: 2, 4; no layout of 3 ranks is possible; layouts of 2 ranks: tp 2, pp 2");
    refuse(&(layout){1, 4, false, IM_KERNELS_FAST}, "pp 4 stages, but ");
    refuse(&(layout){1, 4, false, IM_KERNELS_FAST}, "; layouts of 4 ranks: tp 2 x pp 2, tp 4");
    refuse(&(layout){64, 2, false, IM_KERNELS_FAST}, "= 128 ranks: at most 64 as threads of one process");
}

/* A weight that is no number, on the last stage alone: rank 0 hears whose it was, and nobody waits for ever. */
static void failure_of_another_rank(void **state)
{
    (void)state;
    char dir[] = "/tmp/imece-generate-XXXXXX", command[1024];
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command, "cp %s/* %s/", DIR("llama-untied"), dir);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "%s/model.safetensors", dir);
    FILE *f = fopen(command, "r+b");
    assert_non_null(f);
    im_context *ctx;
    im_weights *w;
    RIG_OK(NULL, im_context_create(&ctx));
    RIG_OK(ctx, im_weights_open(ctx, dir, &w));
    const im_st_tensor *t = NULL;
    for (size_t i = 0; i < im_weights_count(w); i++)
        if (!strcmp(im_weights_at(w, i)->name, "model.norm.weight"))
            t = im_weights_at(w, i);
    assert_non_null(t);
    const float bad = NAN;
    assert_int_equal(fseek(f, (long)t->offset, SEEK_SET), 0);
    assert_int_equal(fwrite(&bad, sizeof bad, 1, f), 1);
    fclose(f);
    im_weights_close(w);
    static const layout layouts[] = {{1, 3, false, IM_KERNELS_FAST}, {3, 1, false, IM_KERNELS_FAST}};
    for (size_t i = 0; i < IM_COUNT_OF(layouts); i++) {
        im_infer *g;
        int32_t id, fed[2] = {1, 2};
        RIG_OK(ctx, im_infer_open(ctx, dir, NULL, &g));
        im_infer_config cfg = config_of(&layouts[i]);
        RIG_OK(ctx, im_infer_start(g, &cfg));
        im_status status = im_infer_feed(g, fed, 2, NULL);
        if (status == IM_OK)
            status = im_infer_next(g, &id, NULL);
        status = im_infer_end(g, status);
        assert_int_equal(status, IM_ERR_NONFINITE);
        assert_non_null(strstr(im_error_text(ctx), "the logit of id"));
        assert_int_equal(strncmp(im_error_text(ctx), "rank 2: ", 8) == 0, layouts[i].pp == 3);
        im_error_clear(ctx);
        im_infer_close(g);
    }
    im_context_destroy(ctx);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),
        cmocka_unit_test(uneven),
        cmocka_unit_test(long_sequences),
        cmocka_unit_test(memory_is_as_planned),
        cmocka_unit_test(refused_with_what_works),
        cmocka_unit_test(failure_of_another_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
