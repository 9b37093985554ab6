/* What a layout can get wrong in numbers that are known without a second run: the norm of gradients that are all 1, a step that one shard
 * overflows, first weights, a loss of huge logits over a vocabulary in parts. (PITFALLS B05, B16, B18, B30) */
#include "layout/cases.h"

#include "engine/internal.h"
#include "train/train.h"

#define SIZES "\"hidden_size\":28,\"intermediate_size\":37,\"num_hidden_layers\":2,\"vocab_size\":67,\"max_position_embeddings\":64,"
static const char qwen3[] =
    "{\"model_type\":\"qwen3\"," SIZES "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":6,\"attention_bias\":true}";
static const char olmo2[] = "{\"model_type\":\"olmo2\"," SIZES "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":6,"
                            "\"attention_bias\":true,\"tie_word_embeddings\":true}";
static const char phi3[] = "{\"model_type\":\"phi3\"," SIZES "\"num_attention_heads\":6,\"num_key_value_heads\":3,\"head_dim\":6}";
static const char neox[] = "{\"model_type\":\"gpt_neox\",\"hidden_size\":30,\"num_attention_heads\":5,\"num_hidden_layers\":2,"
                           "\"intermediate_size\":37,\"vocab_size\":67,\"max_position_embeddings\":64,\"rotary_pct\":0.4}";
static const char bloom[] = "{\"model_type\":\"bloom\",\"hidden_size\":30,\"n_head\":5,\"n_layer\":2,\"vocab_size\":67}";

/* {tp, sp, dp, pp, zero, recompute, micro-batch}: each axis alone, and every kind of ZeRO with the others */
static const layout_case mixes[] = {
    {1, 0, 1, 1, 0, 0, 7}, {2, 0, 1, 1, 0, 0, 7}, {2, 1, 1, 1, 0, 0, 7}, {1, 0, 3, 1, 0, 0, 4}, {1, 0, 3, 1, 1, 0, 4},
    {1, 0, 3, 1, 2, 0, 4}, {1, 0, 3, 1, 3, 0, 4}, {1, 0, 1, 2, 0, 0, 4}, {2, 1, 2, 1, 1, 0, 4}, {2, 0, 2, 1, 2, 0, 4},
    {2, 1, 2, 1, 3, 0, 4}, {2, 0, 1, 2, 0, 0, 4}, {1, 0, 2, 2, 1, 0, 4}, {2, 1, 2, 2, 1, 0, 4},
};
/* of families that differ from those in how their parameters are cut */
static const layout_case mixes_few[] = {
    {2, 1, 1, 1, 0, 0, 7}, {1, 0, 3, 1, 2, 0, 4}, {2, 0, 2, 1, 3, 0, 4}, {2, 0, 1, 2, 0, 0, 4}, {1, 0, 2, 2, 1, 0, 4}};
/* of models that are not tied over stages */
static const layout_case mixes_untied[] = {{1, 0, 2, 2, 2, 0, 4}, {1, 0, 2, 2, 3, 0, 4}, {2, 0, 2, 2, 3, 0, 4}};
/* of 8 heads on 2 kv heads: several ranks hold a kv head */
static const layout_case mixes_shared[] = {
    {4, 0, 1, 1, 0, 0, 7}, {8, 1, 1, 1, 0, 0, 7}, {4, 1, 2, 1, 1, 0, 4}, {4, 0, 2, 1, 3, 0, 4}, {4, 1, 1, 2, 0, 0, 4}};

/* ---- what a rank does between steps -------------------------------------------------------------- */

/* Runs the ops of the step from instruction `first` on: of that instruction alone, or all that follow too. */
static im_status run_from(im_engine *e, im_verb first, bool to_the_end)
{
    im_runnable *r = &e->run[0];
    im_op_now now = {0};
    bool begun = false;
    for (uint32_t k = 0; k < r->program->nbound; k++) {
        int verb = r->program->step[r->program->bound[k].step].verb;
        begun |= verb == (int)first;
        if (verb == (int)first || (begun && to_the_end))
            IM_TRY(im_engine_enqueue_op(e, r, k, &now, NULL));
    }
    return begun ? im_device_sync(e->device) : im_fail(e->ctx, IM_ERR_CHECK, "the program has no such instruction");
}

/* Every element of every parameter's gradient that this rank holds becomes 1; padding stays 0. */
static im_status write_ones(im_engine *e)
{
    const im_layout *l = im_engine_layout(e);
    float ones[4096];
    for (size_t i = 0; i < IM_COUNT_OF(ones); i++)
        ones[i] = 1;
    for (size_t b = 0; b < l->model->nbucket; b++) {
        const im_bucket *x = &l->bucket[b];
        for (size_t i = 0; x->held && i < x->nseg; i++)
            for (size_t r = 0; r < x->seg[i].n; r++)
                IM_TRY(im_engine_write(e, IM_STATE_GRAD, b, x->seg[i].local0 + r * x->seg[i].local_stride, x->seg[i].run, ones));
    }
    return IM_OK;
}

/* ---- all gradients 1 (A5, B16) ------------------------------------------------------------------------ */

/* After the only step: gradients of 1, and the norm again. It is the same on all ranks: the root of the number of distinct parameters. */
static im_status norm_of_ones(rig_rank *me, im_context *ctx, im_engine *e, int i)
{
    im_metrics m;
    if (i != 1)
        return IM_OK;
    IM_TRY(write_ones(e));
    IM_TRY(run_from(e, IM_CLIP, false));
    IM_TRY(im_engine_metrics(e, &m));
    double want = sqrt((double)im_model_param_count(me->job->plan->model)), got = m.grad_norm * m.tokens; /* the norm is of the mean's gradient */
    if (!(fabs(got / want - 1) < 1e-12))
        return im_fail(ctx, IM_ERR_CHECK, "the norm of gradients of 1 is the root of %.9g, the model has %lld parameters", got * got,
                       (long long)im_model_param_count(me->job->plan->model));
    return IM_OK;
}

static void try_mixes(const char *config, const layout_case *cases, size_t n, rig_hooks *hooks)
{
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_model *m = open_model(ctx, config);
    for (size_t i = 0; i < n; i++) {
        rig_result got;
        char name[128];
        im_plan p = plan_of(m, &cases[i]);
        name_of(&cases[i], name, sizeof name);
        if (rig_train_with(&p, 1, false, IM_KERNELS_FAST, hooks, &got) != IM_OK)
            fail_msg("%s, %s: %s", m->family, name, got.error);
        rig_free(m, &got);
    }
    im_model_close(m);
    im_context_destroy(ctx);
}

#define TRY(config, cases, hooks) try_mixes(config, cases, IM_COUNT_OF(cases), hooks)

static void test_norm_of_ones(void **state)
{
    (void)state;
    rig_hooks hooks = {.agree = true, .before = norm_of_ones};
    TRY(llama, mixes, &hooks);
    TRY(llama, mixes_untied, &hooks);
    TRY(llama_tied, mixes_few, &hooks);
    TRY(llama_tied, mixes_shared, &hooks);
    TRY(gpt2, mixes_few, &hooks);
    TRY(qwen3, mixes_shared, &hooks);
    TRY(qwen3, mixes_untied, &hooks);
    TRY(olmo2, mixes_shared, &hooks);
    TRY(phi3, mixes_few, &hooks);
    TRY(neox, mixes_few, &hooks);
    TRY(bloom, mixes_few, &hooks);
}

/* ---- one shard overflows (A23, B18) ---------------------------------------------------------------------- */

enum { KINDS = 4 };
static const im_state_kind kinds[KINDS] = {IM_STATE_WEIGHT, IM_STATE_MASTER, IM_STATE_M, IM_STATE_V};

/* A hash of all that a step changes on this rank. */
static im_status state_hash(im_engine *e, uint64_t *out)
{
    const im_layout *l = im_engine_layout(e);
    *out = 0;
    for (int k = 0; k < KINDS; k++)
        for (size_t b = 0; b < l->model->nbucket && im_engine_has_state(e, kinds[k]); b++) {
            const im_bucket *x = &l->bucket[b];
            bool shard = l->zero >= (k ? 1 : 3);
            size_t from = shard ? x->shard[l->place.dp] : 0, to = shard ? x->shard[l->place.dp + 1] : x->count;
            if (!x->held || from == to)
                continue;
            float *v = malloc((to - from) * sizeof *v);
            im_status s = v ? im_engine_read(e, kinds[k], b, from, to - from, v) : IM_ERR_NOMEM;
            if (s == IM_OK)
                *out = im_hash64(v, (to - from) * sizeof *v, *out);
            free(v);
            IM_TRY(s);
        }
    return IM_OK;
}

/* One element of the first gradient that this rank owns. */
static im_status overflow_one(im_engine *e)
{
    const im_layout *l = im_engine_layout(e);
    float inf = INFINITY;
    for (size_t b = 0; b < l->model->nbucket; b++)
        for (size_t i = 0; l->bucket[b].held && i < l->bucket[b].nowned; i++)
            if (l->bucket[b].owned[i].owner)
                return im_engine_write(e, IM_STATE_GRAD, b, l->bucket[b].owned[i].local0, 1, &inf);
    return im_fail(e->ctx, IM_ERR_CHECK, "this rank owns nothing");
}

/* After the only step its end runs twice more: with an infinity in what one rank alone owns nothing changes on any rank, and the count of updates
 * does not; with sound gradients again everything does. */
static im_status overflows(rig_rank *me, im_context *ctx, im_engine *e, int i)
{
    const int *victim = me->job->hooks->arg;
    uint64_t before, after;
    im_metrics m;
    if (i != 1)
        return IM_OK;
    IM_TRY(write_ones(e));
    if (me->rank == *victim)
        IM_TRY(overflow_one(e));
    IM_TRY(state_hash(e, &before));
    IM_TRY(run_from(e, IM_CLIP, true));
    IM_TRY(im_engine_metrics(e, &m));
    IM_TRY(state_hash(e, &after));
    if (m.finite || m.updates != 1 || before != after)
        return im_fail(ctx, IM_ERR_CHECK, "rank %d overflows: finite %d, updates %d, %s", *victim, m.finite, (int)m.updates,
                       before == after ? "nothing changed" : "weights or moments changed");
    IM_TRY(write_ones(e));
    IM_TRY(run_from(e, IM_CLIP, true));
    IM_TRY(im_engine_metrics(e, &m));
    IM_TRY(state_hash(e, &after));
    if (!m.finite || m.updates != 2 || before == after)
        return im_fail(ctx, IM_ERR_CHECK, "the step after it: finite %d, updates %d", m.finite, (int)m.updates);
    return IM_OK;
}

static void test_overflow_in_one_shard(void **state)
{
    (void)state;
    static const layout_case cases[] = {{2, 0, 1, 1, 0, 0, 7}, {1, 0, 1, 2, 0, 0, 4}, {1, 0, 3, 1, 1, 0, 4}, {1, 0, 3, 1, 2, 0, 4},
                                        {1, 0, 3, 1, 3, 0, 4}, {2, 1, 2, 1, 3, 0, 4}, {2, 0, 2, 2, 1, 0, 4}};
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_model *m = open_model(ctx, llama);
    for (size_t c = 0; c < IM_COUNT_OF(cases); c++) {
        im_plan p = plan_of(m, &cases[c]);
        p.precision = c % 2 ? IM_BF16 : IM_F32;
        int ranks = im_mesh_size(&p.mesh), owners = p.zero ? ranks : ranks / p.mesh.dp; /* without ZeRO the first of dp owns all */
        for (int victim = 0; victim<owners; victim += owners> 4 ? owners - 1 : 1) {
            int rank = p.zero ? victim : im_mesh_rank(&p.mesh, (im_place){victim % p.mesh.tp, 0, 0, victim / p.mesh.tp});
            rig_hooks hooks = {.agree = true, .arg = &rank, .before = overflows};
            rig_result got;
            char name[128];
            name_of(&cases[c], name, sizeof name);
            if (rig_train_with(&p, 1, false, IM_KERNELS_FAST, &hooks, &got) != IM_OK)
                fail_msg("%s, %s: %s", name, im_dtype_name(p.precision), got.error);
            rig_free(m, &got);
        }
    }
    im_model_close(m);
    im_context_destroy(ctx);
}

/* ---- first weights (A21, B30) ------------------------------------------------------------------------------ */

static im_status draw(rig_rank *me, im_context *ctx, im_engine *e)
{
    (void)me;
    return im_train_init_weights(ctx, e, 11);
}

/* The same seed gives the same bits of every tensor in every layout, and not the same in every tensor. */
static void test_first_weights(void **state)
{
    (void)state;
    static const char *const configs[] = {llama, llama_tied, gpt2, qwen3, phi3, neox, bloom};
    static const layout_case cases[] = {
        {2, 0, 1, 1, 0, 0, 7}, {4, 1, 1, 1, 0, 0, 7}, {1, 0, 1, 2, 0, 0, 4}, {1, 0, 3, 1, 3, 0, 4}, {2, 1, 2, 2, 1, 0, 4}};
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    for (size_t f = 0; f < IM_COUNT_OF(configs); f++) {
        im_model *m = open_model(ctx, configs[f]);
        rig_hooks hooks = {.agree = true, .start = draw};
        rig_result one, got;
        im_plan p = plan_of(m, &mixes[0]);
        if (rig_train_with(&p, 0, false, IM_KERNELS_FAST, &hooks, &one) != IM_OK)
            fail_msg("one rank: %s", one.error);
        for (size_t c = 0; c < IM_COUNT_OF(cases); c++) {
            char name[128];
            if (cases[c].tp == 4 && m->arch.K % 4 && 4 % m->arch.K)
                continue;
            p = plan_of(m, &cases[c]);
            name_of(&cases[c], name, sizeof name);
            if (rig_train_with(&p, 0, false, IM_KERNELS_FAST, &hooks, &got) != IM_OK)
                fail_msg("%s, %s: %s", m->family, name, got.error);
            for (size_t q = 0; q < m->nparam; q++)
                if (memcmp(got.weight[q], one.weight[q], (size_t)im_param_count(&m->param[q]) * sizeof(float)))
                    fail_msg("%s, %s: the first values of %s are not those of one rank", m->family, name, m->param[q].name);
            rig_free(m, &got);
        }
        double squares = 0;
        size_t drawn = 0;
        for (size_t q = 0; q < m->nparam; q++)
            for (int64_t i = 0; m->param[q].init.kind == IM_INIT_NORMAL && i < im_param_count(&m->param[q]); i++, drawn++)
                squares += one.weight[q][i] / m->param[q].init.std * (one.weight[q][i] / m->param[q].init.std);
        assert_true(drawn > 5000 && fabs(squares / (double)drawn - 1) < 0.05); /* the standard deviation that the family says */
        rig_free(m, &one);
        im_model_close(m);
    }
    im_context_destroy(ctx);
}

/* ---- a vocabulary in parts (A20, B05) ------------------------------------------------------------------------- */

/* As rig_init, and the head's weights times *arg: logits times that. */
static im_status scaled_head(rig_rank *me, im_context *ctx, im_engine *e)
{
    const im_layout *l = im_engine_layout(e);
    const float *scale = me->job->hooks->arg;
    (void)ctx;
    IM_TRY(rig_init(e, me->job->plan));
    for (size_t b = 0; b < l->model->nbucket; b++)
        for (size_t i = 0; l->bucket[b].held && i < l->bucket[b].nseg; i++) {
            const im_segment *s = &l->bucket[b].seg[i];
            float x[256];
            if (strcmp(l->model->param[s->param].name, "lm_head.weight"))
                continue;
            if (s->n != 1 || s->run > IM_COUNT_OF(x))
                return IM_ERR_INTERNAL;
            IM_TRY(im_engine_read(e, IM_STATE_WEIGHT, b, s->local0, s->run, x));
            for (size_t k = 0; k < s->run; k++)
                x[k] *= *scale;
            IM_TRY(im_engine_write(e, IM_STATE_WEIGHT, b, s->local0, s->run, x));
        }
    return IM_OK;
}

static void near(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%.9g where one rank has %.9g", got, want);
}

/* 8 words, 6 positions, smoothing 0 and 0.1, logits times 1 and 1000: finite, and the loss and gradients of one rank, which the golden and conformance
 * tests hold against PyTorch's and the definition in f64. */
static void test_huge_logits(void **state)
{
    (void)state;
    static const char small[] = "{\"model_type\":\"llama\",\"hidden_size\":16,\"intermediate_size\":20,\"num_hidden_layers\":1,"
                                "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"vocab_size\":8,\"max_position_embeddings\":16,"
                                "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";
    static const layout_case cases[] = {{2, 0, 1, 1, 0, 0, 1}, {2, 1, 1, 1, 0, 0, 1}, {3, 0, 1, 1, 0, 0, 1}};
    im_context *ctx;
    assert_int_equal(im_context_create(&ctx), IM_OK);
    im_model *m = open_model(ctx, small);
    for (int flags = 0; flags < 4; flags++) {
        float scale = flags & 1 ? 1000 : 1;
        rig_hooks hooks = {.agree = true, .arg = &scale, .start = scaled_head, .first_step = 5}; /* a sample whose targets count for the most part */
        rig_result one, got;
        im_plan p;
        for (size_t c = 0; c <= IM_COUNT_OF(cases); c++) {
            p = plan_of(m, c ? &cases[c - 1] : &(layout_case){.tp = 1, .dp = 1, .pp = 1, .mbs = 1});
            p.global_batch = 1;
            p.seq_len = 6;
            p.label_smoothing = flags & 2 ? 0.1 : 0;
            rig_result *r = c ? &got : &one;
            if (rig_train_with(&p, 1, false, IM_KERNELS_FAST, &hooks, r) != IM_OK)
                fail_msg("tp %d: %s", p.mesh.tp, r->error);
            assert_true(r->tokens[0] >= 3 && isfinite(r->loss[0]) && isfinite(r->norm[0]) && r->norm[0] > 0);
            if (!c)
                continue;
            /* logits of thousands differ by their last bits, 1e-4; a local vocabulary or mean is off by a part of the whole */
            double tolerance = flags & 1 ? 1e-3 : 1e-5;
            near(got.loss[0], one.loss[0], tolerance);
            near(got.norm[0], one.norm[0], tolerance);
            for (size_t q = 0; q < m->nparam; q++)
                assert_true(rig_distance(got.grad[q], one.grad[q], (size_t)im_param_count(&m->param[q]), 1e-3 * one.norm[0] * one.tokens[0]) <=
                            tolerance);
            rig_free(m, &got);
        }
        assert_true(flags & 1 ? one.loss[0] > 30 : one.loss[0] < 20);
        rig_free(m, &one);
    }
    im_model_close(m);
    im_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_of_ones),
        cmocka_unit_test(test_overflow_in_one_shard),
        cmocka_unit_test(test_first_weights),
        cmocka_unit_test(test_huge_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
