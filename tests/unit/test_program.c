/* Programs: built, placed, linked and checked for layouts that run and that do not run yet; and the check's own
 * test: deleting any instruction, or swapping two dependent ones, must be noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/program.h"
#include "tensor/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char llama_tied[] =
    "{\"model_type\":\"llama\",\"hidden_size\":24,\"intermediate_size\":20,\"num_hidden_layers\":3,\"num_attention_heads\":3,"
    "\"num_key_value_heads\":1,\"head_dim\":8,\"vocab_size\":33,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true}";
static const char llama_untied[] =
    "{\"model_type\":\"llama\",\"hidden_size\":24,\"intermediate_size\":20,\"num_hidden_layers\":5,\"num_attention_heads\":3,"
    "\"num_key_value_heads\":3,\"vocab_size\":33,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";
/* 6 heads on 3 kv heads: tp 4 is refused, tp 6 replicates; here 8 heads on 2: tp 3 refused, tp 4 replicates */
static const char llama_kv[] =
    "{\"model_type\":\"llama\",\"hidden_size\":24,\"intermediate_size\":50,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":6,\"vocab_size\":101,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":false}";
static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"n_embd\":20,\"n_head\":5,\"n_layer\":3,\"vocab_size\":29,\"n_positions\":40,\"n_inner\":50,"
    "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";

/* one of each way a block can be: windows, norms of q and k, norms behind the branches, fused weights, side by side, ALiBi */
#define SMALL \
    "\"vocab_size\":29,\"hidden_size\":24,\"intermediate_size\":20,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2"
static const char qwen2[] =
    "{\"model_type\":\"qwen2\"," SMALL ",\"head_dim\":6,\"use_sliding_window\":true,\"sliding_window\":3,\"max_window_layers\":1}";
static const char qwen3[] = "{\"model_type\":\"qwen3\"," SMALL ",\"head_dim\":6}";
static const char olmo2[] = "{\"model_type\":\"olmo2\"," SMALL ",\"head_dim\":6,\"attention_dropout\":0.1}";
static const char phi3[] = "{\"model_type\":\"phi3\"," SMALL ",\"head_dim\":6,\"resid_pdrop\":0.1}";
static const char neox[] = "{\"model_type\":\"gpt_neox\",\"vocab_size\":29,\"hidden_size\":24,\"intermediate_size\":20,\"num_hidden_layers\":3,"
                           "\"num_attention_heads\":4,\"rotary_pct\":0.34,\"rotary_emb_base\":10000}";
static const char bloom[] = "{\"model_type\":\"bloom\",\"vocab_size\":29,\"hidden_size\":24,\"n_layer\":3,\"n_head\":4,\"hidden_dropout\":0.1}";

enum { MAX_RANKS = 8 };

typedef struct world {
    im_context *ctx;
    im_model *model;
    im_plan plan;
    int ranks;
    im_layout *layout[MAX_RANKS];
    im_program *program[MAX_RANKS];
    im_program_spec spec;
} world;

static im_status make(world *w, int r, const im_step *steps, uint32_t n, im_program **out)
{
    IM_TRY(im_program_build(w->ctx, &w->plan, w->layout[r], &w->spec, steps, n, out));
    im_status s = im_program_place(w->ctx, out, 1);
    if (s == IM_OK)
        s = im_program_link(w->ctx, *out);
    return s;
}

static void open_chunks(world *w, const char *config, int tp, bool sp, im_recompute recompute, int dp, int pp, int zero, im_schedule schedule,
                        int chunks, int64_t mbs, int64_t batch)
{
    *w = (world){.spec = {.mode = IM_PROGRAM_TRAIN}};
    assert_int_equal(im_context_create(&w->ctx), IM_OK);
    im_json *doc;
    assert_int_equal(im_json_parse(w->ctx, "test.json", config, strlen(config), &doc), IM_OK);
    assert_int_equal(im_model_parse(w->ctx, doc, &w->model), IM_OK);
    im_json_free(doc);
    im_plan_defaults(&w->plan, w->model);
    w->plan.mesh = (im_mesh){tp, 1, dp, pp};
    w->plan.sequence_parallel = sp;
    w->plan.recompute = recompute;
    w->plan.zero = zero;
    w->plan.schedule = schedule;
    w->plan.chunks = chunks;
    w->plan.seq_len = 7;
    w->plan.micro_batch = mbs;
    w->plan.global_batch = batch;
    w->plan.dropout = -1;
    w->ranks = tp * dp * pp;
    int stage[64];
    im_plan_stages(&w->plan, stage);
    for (int r = 0; r < w->ranks; r++) {
        assert_int_equal(im_layout_create(w->ctx, w->model, w->plan.mesh, r, zero, w->plan.sequence_parallel, stage, &w->layout[r]), IM_OK);
        if (make(w, r, NULL, 0, &w->program[r]) != IM_OK)
            fail_msg("%s", im_error_text(w->ctx));
    }
}

static void open_layout(world *w, const char *config, int tp, bool sp, im_recompute recompute, int dp, int pp, int zero, im_schedule schedule,
                        int64_t mbs, int64_t batch)
{
    open_chunks(w, config, tp, sp, recompute, dp, pp, zero, schedule, 1, mbs, batch);
}

static void open_world(world *w, const char *config, int dp, int pp, int zero, im_schedule schedule, int64_t mbs, int64_t batch)
{
    open_layout(w, config, 1, false, IM_RECOMPUTE_NONE, dp, pp, zero, schedule, mbs, batch);
}

static im_status check(world *w)
{
    im_error_clear(w->ctx);
    return im_program_check(w->ctx, (const im_program *const *)w->program, w->ranks);
}

static void close_world(world *w)
{
    for (int r = 0; r < w->ranks; r++) {
        im_program_destroy(w->program[r]);
        im_layout_destroy(w->layout[r]);
    }
    im_model_close(w->model);
    im_context_destroy(w->ctx);
}

static void expect_good(world *w)
{
    if (check(w) != IM_OK)
        fail_msg("tp %d sp %d dp %d pp %d zero %d %s x %d: %s", w->plan.mesh.tp, w->plan.sequence_parallel, w->plan.mesh.dp, w->plan.mesh.pp,
                 w->plan.zero, im_schedule_of(w->plan.schedule)->name, w->plan.chunks, im_error_text(w->ctx));
}

/* Every element of every parameter lies in exactly one owned segment over all ranks. */
static void cover(world *w)
{
    for (size_t q = 0; q < w->model->nparam; q++) {
        size_t n = (size_t)im_param_count(&w->model->param[q]), seen = 0;
        uint8_t *hit = calloc(n, 1);
        for (int r = 0; r < w->ranks; r++) {
            const im_bucket *b = &w->layout[r]->bucket[w->model->param[q].bucket];
            for (size_t s = 0; b->held && s < b->nowned; s++) {
                if (b->owned[s].param != q || !b->owned[s].owner)
                    continue;
                for (size_t i = 0; i < b->owned[s].n * b->owned[s].run; i++) {
                    size_t g = b->owned[s].global0 + i / b->owned[s].run * b->owned[s].global_stride + i % b->owned[s].run;
                    assert_true(g < n);
                    assert_int_equal(hit[g], 0);
                    hit[g] = 1;
                    seen++;
                }
            }
        }
        assert_int_equal(seen, n);
        free(hit);
    }
}

/* ---- the check accepts what is right ------------------------------------------------ */

static void test_layouts(void **state)
{
    (void)state;
    const char *configs[] = {llama_tied, llama_untied, gpt2};
    for (size_t c = 0; c < 3; c++)
        for (int pp = 1; pp <= 3; pp++)
            for (int dp = 1; dp <= 2; dp++)
                for (int zero = 0; zero <= 3; zero++)
                    for (int schedule = 0; schedule < 2; schedule++) {
                        world w;
                        if (pp > 1 && zero >= 2 && c != 1)
                            continue; /* tied over stages: refused, see test_refused */
                        open_world(&w, configs[c], dp, pp, zero, (im_schedule)schedule, 2, 9);
                        expect_good(&w);
                        close_world(&w);
                    }
}

/* A stage with several runs of blocks; llama_untied has 5. */
static void test_interleaved(void **state)
{
    (void)state;
    for (int pp = 1; pp <= 3; pp++)
        for (int v = 1; v * pp <= 5; v++)
            for (int dp = 1; dp <= 2; dp++)
                for (int zero = 0; zero <= 3; zero++)
                    for (int batch = 1; batch <= 5; batch += 2) {
                        world w;
                        open_chunks(&w, llama_untied, 1, false, zero == 2 ? IM_RECOMPUTE_FULL : IM_RECOMPUTE_NONE, dp, pp, zero,
                                    IM_SCHEDULE_INTERLEAVED, v, 1, dp * batch);
                        expect_good(&w);
                        close_world(&w);
                    }
    world w;
    open_chunks(&w, llama_untied, 2, true, IM_RECOMPUTE_SELECTIVE, 2, 2, 1, IM_SCHEDULE_INTERLEAVED, 2, 1, 6);
    expect_good(&w);
    close_world(&w);
}

/* The backward in two parts, with everything else. */
static void test_zero_bubble(void **state)
{
    (void)state;
    const char *configs[] = {llama_tied, llama_untied, gpt2};
    for (size_t c = 0; c < 3; c++)
        for (int pp = 1; pp <= 3; pp++)
            for (int zero = 0; zero <= 3; zero++)
                for (int rc = 0; rc < 3; rc++) {
                    world w;
                    if (pp > 1 && zero >= 2 && c != 1)
                        continue;
                    open_chunks(&w, configs[c], 1, false, (im_recompute)rc, 2, pp, zero, IM_SCHEDULE_ZB_H1, 1, 1, 9);
                    expect_good(&w);
                    close_world(&w);
                }
    for (int sp = 0; sp < 2; sp++) {
        world w;
        open_chunks(&w, llama_kv, 2, sp, IM_RECOMPUTE_SELECTIVE, 2, 2, 1, IM_SCHEDULE_ZB_H1, 1, 2, 6);
        expect_good(&w);
        close_world(&w);
    }
}

static void test_eval_and_infer(void **state)
{
    (void)state;
    const im_program_spec specs[] = {{.mode = IM_PROGRAM_EVAL, .batch = 3, .seq_len = 7},
                                     {.mode = IM_PROGRAM_INFER, .batch = 1, .seq_len = 5, .kv_max = 20},
                                     {.mode = IM_PROGRAM_INFER, .batch = 2, .seq_len = 1, .kv_max = 20, .all_logits = true}};
    for (size_t i = 0; i < IM_COUNT_OF(specs); i++) {
        world w;
        open_world(&w, i ? gpt2 : llama_tied, 1, 1, 0, IM_SCHEDULE_1F1B, 2, 4);
        im_program_destroy(w.program[0]);
        w.spec = specs[i];
        assert_int_equal(make(&w, 0, NULL, 0, &w.program[0]), IM_OK);
        expect_good(&w);
        close_world(&w);
    }
}

static void test_tensor_parallel(void **state)
{
    (void)state;
    const char *configs[] = {llama_kv, llama_untied, gpt2};
    for (size_t c = 0; c < 3; c++)
        for (int tp = 1; tp <= 4; tp++)
            for (int sp = 0; sp < 2; sp++)
                for (int recompute = 0; recompute < 3; recompute++)
                    for (int other = 0; other < 5; other++) {
                        static const int dp[] = {1, 2, 2, 1, 2}, pp[] = {1, 1, 1, 2, 1}, zero[] = {0, 1, 3, 0, 2};
                        world w;
                        if (tp * dp[other] * pp[other] > MAX_RANKS || (c == 1 && tp == 4) || (c == 0 && tp == 3))
                            continue;
                        open_layout(&w, configs[c], tp, sp, (im_recompute)recompute, dp[other], pp[other], zero[other], IM_SCHEDULE_1F1B, 2, 5);
                        expect_good(&w);
                        close_world(&w);
                    }
}

/* What validation refuses is what the check would find: a deadlock. */
static void test_refused(void **state)
{
    (void)state;
    world w;
    open_world(&w, llama_tied, 1, 2, 2, IM_SCHEDULE_1F1B, 1, 3);
    assert_int_equal(check(&w), IM_ERR_CHECK);
    assert_non_null(strstr(im_error_text(w.ctx), "deadlock"));
    im_error_clear(w.ctx);
    assert_int_equal(im_plan_validate(w.ctx, &w.plan), IM_ERR_UNSUPPORTED);
    close_world(&w);
}

/* ---- the check refuses what is wrong -------------------------------------------------- */

/* A mark that each UPDATE may set: their order is free. */
static bool is_mark(const im_value *v)
{
    return v->role == IM_ROLE_SCALAR && v->index == IM_SCALAR_BAD;
}

static bool same_bytes_touched(const im_program *p, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < p->nbound; i++) {
        if (p->bound[i].step != a)
            continue;
        for (uint32_t k = 0; k < p->nbound; k++) {
            if (p->bound[k].step != b)
                continue;
            for (int x = 0; x < p->bound[i].op->args.n; x++)
                for (int y = 0; y < p->bound[k].op->args.n; y++) {
                    const im_bound *m = &p->bound[i], *n = &p->bound[k];
                    if (m->hi[x] == m->lo[x] || n->hi[y] == n->lo[y] || !im_value_equal(&m->value[x], &n->value[y]) ||
                        (is_mark(&m->value[x]) && m->op->use[x].access == n->op->use[y].access))
                        continue;
                    if (m->op->use[x].access != IM_READ || n->op->use[y].access != IM_READ)
                        return true;
                }
        }
    }
    return false;
}

static bool is_message(const im_step *s)
{
    return s->verb == IM_SEND || s->verb == IM_RECV;
}

/* One writes what the other touches, or both use one channel. Two GATHERs (or RELEASEs) of one bucket are the same instruction. */
static bool dependent(const im_program *p, uint32_t a, uint32_t b)
{
    const im_step *s = &p->step[a], *t = &p->step[b];
    if (s->verb == t->verb && s->target == t->target && (s->verb == IM_GATHER || s->verb == IM_RELEASE))
        return false;
    if (is_message(s) && is_message(t) && s->target == t->target)
        return true;
    return same_bytes_touched(p, a, b);
}

static int mutate(world *w, int r, const im_step *steps, uint32_t n, const char *what, uint32_t a, uint32_t b)
{
    im_program *good = w->program[r], *bad = NULL;
    if (make(w, r, steps, n, &bad) != IM_OK)
        fail_msg("%s", im_error_text(w->ctx));
    w->program[r] = bad;
    if (check(w) != IM_ERR_CHECK) {
        im_str s = {0};
        im_step_print(&good->step[a], &s);
        im_str_append(&s, " / ");
        im_step_print(&good->step[b], &s);
        fail_msg("rank %d of %d: %s of steps %u, %u (%s) is not noticed", r, w->ranks, what, a, b, im_str_text(&s));
    }
    assert_true(strlen(im_error_text(w->ctx)) > 0);
    im_program_destroy(bad);
    w->program[r] = good;
    return 1;
}

static void mutate_all(world *w)
{
    expect_good(w);
    int deletions = 0, swaps = 0;
    for (int r = 0; r < w->ranks; r++) {
        uint32_t n = w->program[r]->nstep;
        im_step *steps = malloc(n * sizeof *steps);
        for (uint32_t i = 0; i < n; i++) {
            memcpy(steps, w->program[r]->step, i * sizeof *steps);
            memcpy(steps + i, w->program[r]->step + i + 1, (n - 1 - i) * sizeof *steps);
            deletions += mutate(w, r, steps, n - 1, "deletion", i, i);
        }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = i + 1; k < n; k++) {
                if (!dependent(w->program[r], i, k))
                    continue;
                memcpy(steps, w->program[r]->step, n * sizeof *steps);
                steps[i] = w->program[r]->step[k];
                steps[k] = w->program[r]->step[i];
                swaps += mutate(w, r, steps, n, "swap", i, k);
            }
        free(steps);
    }
    print_message("dp %d pp %d zero %d: %d deletions and %d swaps noticed\n", w->plan.mesh.dp, w->plan.mesh.pp, w->plan.zero, deletions, swaps);
    assert_true(deletions > 10 && swaps > 10);
    close_world(w);
}

static void test_mutate_trainer(void **state)
{
    (void)state;
    world w;
    open_world(&w, llama_tied, 1, 1, 0, IM_SCHEDULE_1F1B, 2, 5);
    mutate_all(&w);
    open_world(&w, gpt2, 1, 1, 0, IM_SCHEDULE_GPIPE, 1, 2);
    mutate_all(&w);
}

static void test_mutate_1f1b(void **state)
{
    (void)state;
    world w;
    open_world(&w, llama_tied, 1, 2, 0, IM_SCHEDULE_1F1B, 1, 3);
    mutate_all(&w);
    open_world(&w, llama_untied, 1, 2, 0, IM_SCHEDULE_1F1B, 1, 2);
    mutate_all(&w);
}

static void test_mutate_interleaved(void **state)
{
    (void)state;
    world w;
    open_chunks(&w, llama_untied, 1, false, IM_RECOMPUTE_NONE, 1, 2, 0, IM_SCHEDULE_INTERLEAVED, 2, 1, 2);
    mutate_all(&w);
}

static void test_mutate_zero_bubble(void **state)
{
    (void)state;
    world w;
    open_chunks(&w, llama_tied, 1, false, IM_RECOMPUTE_NONE, 1, 2, 0, IM_SCHEDULE_ZB_H1, 1, 1, 3);
    mutate_all(&w);
}

static void test_mutate_zero(void **state)
{
    (void)state;
    for (int zero = 1; zero <= 3; zero++) {
        world w;
        open_world(&w, zero == 3 ? gpt2 : llama_untied, 2, 1, zero, IM_SCHEDULE_1F1B, 1, 4);
        mutate_all(&w);
    }
}

static void test_mutate_tensor_parallel(void **state)
{
    (void)state;
    world w;
    open_layout(&w, llama_kv, 2, true, IM_RECOMPUTE_FULL, 1, 1, 0, IM_SCHEDULE_1F1B, 2, 4);
    mutate_all(&w);
    open_layout(&w, llama_kv, 4, false, IM_RECOMPUTE_SELECTIVE, 1, 1, 1, IM_SCHEDULE_1F1B, 2, 2);
    mutate_all(&w);
}

/* An op that is left out within an instruction: a missing sum is noticed as a partial value. */
static void miss_sums(const char *config, int tp, bool sp, im_group_id group)
{
    {
        world w;
        open_layout(&w, config, tp, sp, IM_RECOMPUTE_NONE, 1, 1, 0, IM_SCHEDULE_1F1B, 2, 2);
        expect_good(&w);
        int noticed = 0;
        for (uint32_t i = 0; i < w.program[0]->nbound; i++) {
            uint8_t old[MAX_RANKS];
            if (w.program[0]->bound[i].op->collective != IM_COLL_ALL_REDUCE && w.program[0]->bound[i].op->collective != IM_COLL_REDUCE_SCATTER)
                continue;
            if (w.program[0]->bound[i].op->group != group)
                continue;
            for (int r = 0; r < tp; r++) { /* on all ranks alike: nothing hangs, the sum is just missing */
                im_op *op = (im_op *)(uintptr_t)w.program[r]->bound[i].op;
                old[r] = op->collective;
                op->collective = IM_COLL_RELEASE;
            }
            assert_int_equal(check(&w), IM_ERR_CHECK);
            noticed++;
            for (int r = 0; r < tp; r++)
                ((im_op *)(uintptr_t)w.program[r]->bound[i].op)->collective = old[r];
        }
        assert_true(noticed > (group == IM_GROUP_TP ? 10 : 2));
        expect_good(&w);
        close_world(&w);
    }
}

static void test_missing_sum(void **state)
{
    (void)state;
    miss_sums(llama_untied, 3, false, IM_GROUP_TP);
    miss_sums(llama_untied, 3, true, IM_GROUP_TP);
    miss_sums(olmo2, 2, true, IM_GROUP_TP);
    miss_sums(olmo2, 4, false, IM_GROUP_TP);
    miss_sums(qwen3, 2, false, IM_GROUP_TP);
    miss_sums(bloom, 2, true, IM_GROUP_TP);
    miss_sums(olmo2, 4, false, IM_GROUP_KV);
    miss_sums(phi3, 4, true, IM_GROUP_KV);
}

static const char *const families[] = {qwen2, qwen3, olmo2, phi3, neox, bloom};

static void test_families(void **state)
{
    (void)state;
    for (size_t c = 0; c < IM_COUNT_OF(families); c++)
        for (int tp = 1; tp <= 4; tp *= 2)
            for (int sp = 0; sp < 2; sp++)
                for (int recompute = 0; recompute < 3; recompute++)
                    for (int other = 0; other < 5; other++) {
                        static const int dp[] = {1, 2, 2, 1, 2}, pp[] = {1, 1, 1, 2, 1}, zero[] = {0, 1, 3, 0, 2};
                        world w;
                        if (tp * dp[other] * pp[other] > MAX_RANKS || (tp == 4 && other > 1))
                            continue;
                        open_layout(&w, families[c], tp, sp, (im_recompute)recompute, dp[other], pp[other], zero[other], IM_SCHEDULE_1F1B, 2, 4);
                        expect_good(&w);
                        if (recompute == 0)
                            cover(&w);
                        close_world(&w);
                    }
}

/* Every instruction is needed, and every sum within one. */
static void test_mutate_families(void **state)
{
    (void)state;
    for (size_t c = 0; c < IM_COUNT_OF(families); c++) {
        world w;
        open_layout(&w, families[c], 2, true, (im_recompute)(c % 3), 1, 1, 0, IM_SCHEDULE_1F1B, 1, 2);
        mutate_all(&w);
        open_layout(&w, families[c], 1, false, IM_RECOMPUTE_NONE, 2, 1, 3, IM_SCHEDULE_1F1B, 1, 2);
        mutate_all(&w);
    }
}

/* Which memory is used again depends on the sizes: no size may make a message wait for the one that it is the answer to. */
static void test_sizes_of_pipelines(void **state)
{
    (void)state;
    static const char *const types[] = {"llama", "olmo2"};
    static const im_schedule schedules[] = {IM_SCHEDULE_1F1B, IM_SCHEDULE_ZB_H1, IM_SCHEDULE_GPIPE};
    for (size_t t = 0; t < IM_COUNT_OF(types); t++)
        for (int D = 16; D <= 40; D += 8)
            for (int recompute = 0; recompute < 3; recompute++)
                for (int other = 0; other < 6; other++)
                    for (size_t k = 0; k < IM_COUNT_OF(schedules); k++) {
                        static const int tp[] = {1, 2, 2, 1, 1, 1}, sp[] = {0, 0, 1, 0, 0, 0}, dp[] = {1, 1, 1, 1, 2, 1}, pp[] = {2, 2, 2, 3, 2, 2};
                        static const int mbs[] = {1, 2, 1, 2, 1, 2};
                        char config[512];
                        world w;
                        snprintf(config, sizeof config,
                                 "{\"model_type\":\"%s\",\"vocab_size\":61,\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":3,"
                                 "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":6}",
                                 types[t], D, 84 - D);
                        open_layout(&w, config, tp[other], sp[other], (im_recompute)recompute, dp[other], pp[other], 0, schedules[k], mbs[other], 7);
                        expect_good(&w);
                        close_world(&w);
                    }
}

static void mutate_mode(const char *config, im_program_spec spec)
{
    world w;
    open_world(&w, config, 1, 1, 0, IM_SCHEDULE_1F1B, 2, 4);
    im_program_destroy(w.program[0]);
    w.spec = spec;
    assert_int_equal(make(&w, 0, NULL, 0, &w.program[0]), IM_OK);
    expect_good(&w);
    uint32_t n = w.program[0]->nstep;
    im_step steps[64];
    for (uint32_t i = 0; i < n; i++) {
        memcpy(steps, w.program[0]->step, i * sizeof *steps);
        memcpy(steps + i, w.program[0]->step + i + 1, (n - 1 - i) * sizeof *steps);
        mutate(&w, 0, steps, n - 1, "deletion", i, i);
    }
    close_world(&w);
}

static void test_mutate_eval_and_infer(void **state)
{
    (void)state;
    const char *configs[] = {llama_tied, qwen2, qwen3, olmo2, phi3, neox, bloom};
    for (size_t i = 0; i < IM_COUNT_OF(configs); i++) {
        mutate_mode(configs[i], (im_program_spec){.mode = IM_PROGRAM_EVAL, .batch = 3, .seq_len = 7});
        mutate_mode(configs[i], (im_program_spec){.mode = IM_PROGRAM_INFER, .batch = 1, .seq_len = 5, .kv_max = 20});
    }
}

/* A wait that is left out, and a buffer that is moved onto a live one, are faults too. */
static void test_links_and_addresses(void **state)
{
    (void)state;
    world w;
    open_world(&w, llama_tied, 1, 1, 0, IM_SCHEDULE_1F1B, 2, 5);
    expect_good(&w);
    im_program *p = w.program[0];
    int waits = 0, moved = 0;
    for (uint32_t i = 0; i < p->nbound; i++) {
        for (int k = 0; k < p->bound[i].nwait; k++) {
            uint32_t keep = p->bound[i].wait[k];
            p->bound[i].wait[k] = keep ? 0 : keep; /* op 0 is the first LOAD: too early to wait for */
            if (keep != 0 && check(&w) == IM_ERR_CHECK)
                waits++;
            p->bound[i].wait[k] = keep;
        }
    }
    for (uint32_t i = 0; i < p->nbound; i++)
        for (int o = 0; o < p->bound[i].op->args.n; o++) {
            if (p->bound[i].buf[o].arena != IM_CLASS_ACTIVATIONS || p->bound[i].hi[o] == p->bound[i].lo[o] ||
                p->bound[i].op->use[o].access != IM_READ)
                continue;
            size_t behind = (p->bound[i].hi[o] + 63) / 64 * 64; /* at least one byte of another value, or of none */
            p->bound[i].buf[o].offset += behind;
            if (check(&w) == IM_ERR_CHECK)
                moved++;
            else
                fail_msg("op %u operand %d reads beyond its value and nobody notices", i, o);
            p->bound[i].buf[o].offset -= behind;
        }
    assert_true(waits >= 3);
    assert_true(moved > 50);
    expect_good(&w);
    close_world(&w);
}

/* ---- ZeRO: what is whole is there for a while only --------------------------------------- */

static size_t whole_bytes(int blocks, int zero, im_recompute recompute, int64_t batch)
{
    char config[512];
    world w;
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":24,\"intermediate_size\":20,\"num_hidden_layers\":%d,\"num_attention_heads\":3,"
             "\"num_key_value_heads\":3,\"vocab_size\":33,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
             "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true}",
             blocks);
    open_layout(&w, config, 1, false, recompute, 2, 1, zero, IM_SCHEDULE_1F1B, 1, batch);
    expect_good(&w);
    size_t nbytes = w.program[0]->arena_bytes[IM_CLASS_COMM];
    close_world(&w);
    return nbytes;
}

/* Gathered weights and unreduced gradients do not add up with the blocks, nor with the micro-batches. */
static void test_zero_memory(void **state)
{
    (void)state;
    static const im_recompute recompute[] = {IM_RECOMPUTE_NONE, IM_RECOMPUTE_SELECTIVE, IM_RECOMPUTE_FULL};
    for (int zero = 2; zero <= 3; zero++)
        for (size_t r = 0; r < 3; r++) {
            size_t few = whole_bytes(4, zero, recompute[r], 2);
            assert_true(few > 0);
            assert_int_equal(whole_bytes(24, zero, recompute[r], 2), few);
            assert_int_equal(whole_bytes(24, zero, recompute[r], 8), few);
        }
}

/* Each unit's weights are asked for before the unit in front of it computes, and two units' are whole at a time. */
static void test_gathers_ahead(void **state)
{
    (void)state;
    world w;
    open_world(&w, llama_untied, 2, 1, 3, IM_SCHEDULE_1F1B, 1, 4);
    expect_good(&w);
    const im_program *p = w.program[0];
    int whole = 0, gathers = 0, alone = 0;
    for (uint32_t i = 0; i < p->nstep; i++) {
        const im_step *s = &p->step[i];
        bool reads = s->verb == IM_FORWARD || s->verb == IM_LOSS || (s->verb == IM_BACKWARD && s->target > 0);
        whole += s->verb == IM_GATHER ? 1 : s->verb == IM_RELEASE ? -1 : 0;
        gathers += s->verb == IM_GATHER;
        assert_in_range(whole, 0, 2);
        alone += reads && whole == 1; /* nothing is on its way meanwhile */
    }
    assert_int_equal(whole, 0);
    assert_int_equal(gathers, 2 * (6 + 1 + 4)); /* a micro-batch: embedding, 5 blocks, head, and 4 blocks again: the last one stays */
    assert_int_equal(alone, 2);                 /* the last backward of each micro-batch */
    close_world(&w);
}

/* ---- layouts and batches ---------------------------------------------------------------- */

/* B23 */
static void test_stages(void **state)
{
    (void)state;
    im_model m = {.nunit = 0};
    im_unit unit[64];
    for (int64_t L = 1; L <= 40; L++)
        for (int pp = 1; pp <= 8 && pp <= L; pp++) {
            int stage[64], blocks[8] = {0};
            m.arch.L = L;
            m.unit = unit;
            m.nunit = (size_t)L + 2;
            for (size_t u = 0; u < m.nunit; u++)
                unit[u].block = (int32_t)u - 1;
            im_plan p = {.model = &m, .mesh = {1, 1, 1, pp}};
            im_plan_stages(&p, stage);
            for (size_t u = 1; u < m.nunit; u++)
                assert_true(stage[u] >= stage[u - 1]);
            for (size_t u = 1; u + 1 < m.nunit; u++)
                blocks[stage[u]]++;
            int least = 99, most = 0;
            for (int s = 0; s < pp; s++) {
                least = blocks[s] < least ? blocks[s] : least;
                most = blocks[s] > most ? blocks[s] : most;
            }
            assert_true(least >= 1 && most - least <= 1);
        }
}

static void test_micro_batches(void **state)
{
    (void)state;
    im_model m = {.nunit = 0};
    for (int dp = 1; dp <= 5; dp++)
        for (int64_t batch = dp; batch <= 23; batch++)
            for (int64_t mbs = 1; mbs <= 9; mbs++) {
                im_plan p = {.model = &m, .mesh = {1, 1, dp, 1}, .micro_batch = mbs, .global_batch = batch};
                int64_t next = 0;
                for (int r = 0; r < dp; r++)
                    for (int mb = 0; mb < im_plan_micro_batches(&p, r); mb++) {
                        assert_int_equal(im_plan_first_sample(&p, r, mb), next);
                        assert_true(im_plan_micro_batch_size(&p, r, mb) <= mbs);
                        next += im_plan_micro_batch_size(&p, r, mb);
                    }
                assert_int_equal(next, batch);
            }
}

static void test_shards_cover(void **state)
{
    (void)state;
    for (int dp = 1; dp <= 7; dp++)
        for (int zero = 0; zero <= 3; zero++) {
            world w;
            open_world(&w, llama_untied, dp, 1, zero, IM_SCHEDULE_1F1B, 2, 14);
            cover(&w);
            close_world(&w);
        }
    for (int tp = 1; tp <= 4; tp++)
        for (int zero = 0; zero <= 3; zero++)
            for (int c = 0; c < 3; c++) {
                world w;
                if ((c == 1 && tp == 4) || (c == 0 && tp == 3))
                    continue;
                open_layout(&w, c == 0 ? llama_kv : c == 1 ? llama_untied : gpt2, tp, tp % 2, IM_RECOMPUTE_NONE, 2, 1, zero, IM_SCHEDULE_1F1B, 2, 4);
                cover(&w);
                close_world(&w);
            }
}

/* B15: a tied table of 800 elements lies on the first and the last stage: in a norm of gradients that are all 1 it counts as 28.284, not 40. */
static void test_tied_norm(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"gpt2\",\"n_embd\":20,\"n_head\":5,\"n_layer\":3,\"vocab_size\":40,\"n_positions\":40,\"n_inner\":50}";
    static const struct {
        int tp, dp, pp, zero;
    } mesh[] = {{1, 1, 2, 0}, {1, 1, 3, 0}, {1, 2, 2, 0}, {1, 2, 2, 1}, {2, 1, 2, 0}, {2, 2, 2, 1}};
    for (size_t i = 0; i < IM_COUNT_OF(mesh); i++) {
        world w;
        open_layout(&w, config, mesh[i].tp, false, IM_RECOMPUTE_NONE, mesh[i].dp, mesh[i].pp, mesh[i].zero, IM_SCHEDULE_1F1B, 2, 4);
        int32_t table = im_model_find_param(w.model, "transformer.wte.weight");
        assert_true(table >= 0 && im_param_count(&w.model->param[table]) == 800);
        double squares = 0;
        int holders = 0;
        for (int r = 0; r < w.ranks; r++) {
            const im_program *p = w.program[r];
            holders += p->layout->bucket[w.model->param[table].bucket].held;
            for (uint32_t k = 0; k < p->nbound; k++)
                if (p->bound[k].op->kind == &im_op_sumsq && p->bound[k].op->bucket == (int32_t)w.model->param[table].bucket)
                    squares += (double)im_view_count(&p->bound[k].args->v[0]);
        }
        assert_int_equal(holders, 2 * mesh[i].tp * mesh[i].dp);
        if (squares != 800)
            fail_msg("tp %d dp %d pp %d zero %d: %g squares of the table's 800 elements", mesh[i].tp, mesh[i].dp, mesh[i].pp, mesh[i].zero, squares);
        cover(&w);
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_mutate_tensor_parallel),
        cmocka_unit_test(test_missing_sum),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_sizes_of_pipelines),
        cmocka_unit_test(test_mutate_families),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_eval_and_infer),
        cmocka_unit_test(test_mutate_trainer),
        cmocka_unit_test(test_mutate_1f1b),
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_zero_bubble),
        cmocka_unit_test(test_mutate_zero_bubble),
        cmocka_unit_test(test_mutate_interleaved),
        cmocka_unit_test(test_mutate_zero),
        cmocka_unit_test(test_mutate_eval_and_infer),
        cmocka_unit_test(test_links_and_addresses),
        cmocka_unit_test(test_zero_memory),
        cmocka_unit_test(test_gathers_ahead),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_shards_cover),
        cmocka_unit_test(test_tied_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
