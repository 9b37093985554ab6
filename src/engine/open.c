/* engine: programs of a run, memory, prepared ops. */
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- programs ------------------------------------------------------------------- */

static im_program_spec spec_of(const im_program_want *w)
{
    return (im_program_spec){.mode = w->mode == IM_MODE_TRAIN  ? IM_PROGRAM_TRAIN
                                     : w->mode == IM_MODE_EVAL ? IM_PROGRAM_EVAL
                                                               : IM_PROGRAM_INFER,
                             .batch = w->batch,
                             .seq_len = w->seq_len,
                             .kv_max = w->kv_max,
                             .all_logits = w->all_logits,
                             .temperature = w->temperature,
                             .top_p = w->top_p,
                             .top_k = w->top_k,
                             .seed = w->seed};
}

static im_status check_want(im_context *ctx, const im_plan *plan, const im_program_want *w)
{
    const im_arch *a = &plan->model->arch;
    if (w->mode == IM_MODE_TRAIN)
        return IM_OK;
    if (w->batch < 1 || w->seq_len < 1 || w->batch > INT32_MAX / w->seq_len)
        return im_fail(ctx, IM_ERR_ARG, "a program of %lld sequences of %lld tokens: both are 1 or more, at most 2^31 tokens", (long long)w->batch,
                       (long long)w->seq_len);
    int64_t most = w->mode == IM_MODE_INFER ? w->kv_max : w->seq_len;
    if (w->mode == IM_MODE_INFER && w->kv_max < w->seq_len)
        return im_fail(ctx, IM_ERR_ARG, "a key/value cache of %lld positions for %lld new tokens", (long long)w->kv_max, (long long)w->seq_len);
    if (a->P && most > a->P)
        return im_fail(ctx, IM_ERR_ARG, "%lld positions are beyond the model's %lld (%s); at most that many", (long long)most, (long long)a->P,
                       plan->model->source);
    return IM_OK;
}

/* Layout, and build, place and link of every program. */
static im_status build_all(im_context *ctx, const im_plan *plan, int rank, const im_program_want *want, size_t nwant, im_layout **layout,
                           im_program **program)
{
    im_status status;
    IM_TRY(im_plan_validate(ctx, plan));
    if (!nwant)
        return im_fail(ctx, IM_ERR_ARG, "a run without a program");
    int *stage = calloc(plan->model->nunit, sizeof *stage);
    if (!stage)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the stages");
    im_plan_stages(plan, stage);
    im_layout *l = NULL;
    status = im_layout_create(ctx, plan->model, plan->mesh, rank, plan->zero, plan->sequence_parallel, stage, &l);
    free(stage);
    if (status != IM_OK)
        return status;
    size_t built = 0;
    for (; built < nwant; built++) {
        im_program_spec spec = spec_of(&want[built]);
        IM_TRY_GOTO(check_want(ctx, plan, &want[built]), programs);
        IM_TRY_GOTO(im_program_build(ctx, plan, l, &spec, NULL, 0, &program[built]), programs);
    }
    IM_TRY_GOTO(im_program_place(ctx, program, nwant), programs);
    for (size_t i = 0; i < nwant; i++)
        IM_TRY_GOTO(im_program_link(ctx, program[i]), programs);
    *layout = l;
    return IM_OK;
programs:
    while (built)
        im_program_destroy(program[--built]);
    im_layout_destroy(l);
    return status;
}

im_status im_engine_predict(im_context *ctx, const im_plan *plan, int rank, const im_program_want *want, size_t nwant, im_memory *out)
{
    im_program **program = calloc(nwant + 1, sizeof(im_program *));
    im_layout *layout = NULL;
    if (!program)
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu programs", nwant);
    im_status status = build_all(ctx, plan, rank, want, nwant, &layout, program);
    if (status == IM_OK) {
        im_engine_memory_of(program, nwant, out);
        for (size_t i = 0; i < nwant; i++)
            im_program_destroy(program[i]);
        im_layout_destroy(layout);
    }
    free(program);
    return status;
}

/* ---- memory ------------------------------------------------------------------------ */

im_status im_engine_copy_in(im_engine *e, im_buffer b, const void *src, size_t nbytes)
{
    im_queue *q = im_device_queue(e->device, IM_QUEUE_COPY);
    if (!q)
        return im_error_code(e->ctx);
    IM_TRY(im_queue_upload(q, b, src, nbytes));
    return im_event_wait(e->device, im_queue_last(q));
}

im_status im_engine_copy_out(im_engine *e, void *dst, im_buffer b, size_t nbytes)
{
    im_queue *q = im_device_queue(e->device, IM_QUEUE_COPY);
    if (!q)
        return im_error_code(e->ctx);
    IM_TRY(im_queue_download(q, dst, b, nbytes));
    return im_event_wait(e->device, im_queue_last(q));
}

im_buffer im_engine_value(const im_engine *e, size_t program, im_role role, int index, int mb)
{
    const im_program *p = e->run[program].program;
    im_buffer found = {.nbytes = 0};
    for (uint32_t i = 0; i < p->nbound; i++)
        for (int o = 0; o < p->bound[i].op->args.n; o++) {
            const im_value *v = &p->bound[i].value[o];
            if (!p->bound[i].op->args.v[o].ndim || v->role != role || v->index != index || (mb >= 0 && v->mb != mb))
                continue;
            im_buffer b = p->bound[i].buf[o];
            size_t start = b.offset + b.nbytes - p->bound[i].hi[o]; /* where the value itself begins */
            if (p->bound[i].hi[o] > found.nbytes)
                found = (im_buffer){.arena = b.arena, .offset = start, .nbytes = p->bound[i].hi[o]};
        }
    return found;
}

/* ---- tables -------------------------------------------------------------------------- */

static im_status write_rope(im_engine *e)
{
    const im_arch *a = &e->plan.model->arch;
    im_buffer table = {0};
    for (size_t i = 0; i < e->nrun; i++) {
        im_buffer b = im_engine_value(e, i, IM_ROLE_CARRY, IM_CARRY_ROPE, -1);
        if (b.nbytes > table.nbytes)
            table = b;
    }
    if (!table.nbytes)
        return IM_OK;
    void *values;
    IM_TRY(im_alloc(e->ctx, table.nbytes, 1, &values));
    int64_t rows = (int64_t)(table.nbytes / 4) / a->rope_dims; /* the longest sequence of any program of this run */
    im_rope_table(a, rows, 0, rows, values);
    im_status status = im_engine_copy_in(e, table, values, table.nbytes);
    free(values);
    return status;
}

static im_status write_kv_positions(im_engine *e)
{
    for (size_t i = 0; i < e->nrun; i++) {
        im_buffer b = im_engine_value(e, i, IM_ROLE_CARRY, IM_CARRY_KV_POS, -1);
        if (!b.nbytes)
            continue;
        void *memory;
        IM_TRY(im_alloc(e->ctx, b.nbytes, 1, &memory));
        int32_t *pos = memory;
        for (size_t k = 0; k < b.nbytes / 4; k++)
            pos[k] = (int32_t)((int64_t)k % e->want[i].kv_max);
        im_status status = im_engine_copy_in(e, b, pos, b.nbytes);
        free(memory);
        IM_TRY(status);
    }
    return IM_OK;
}

/* Each sequence's blocks in their order. */
static im_status write_kv_table(im_engine *e)
{
    for (size_t i = 0; i < e->nrun && !e->kv_table.nbytes; i++)
        e->kv_table = im_engine_value(e, i, IM_ROLE_CARRY, IM_CARRY_KV_TABLE, -1);
    if (!e->kv_table.nbytes)
        return IM_OK;
    void *memory;
    IM_TRY(im_alloc(e->ctx, e->kv_table.nbytes, 1, &memory));
    int32_t *block = memory;
    for (size_t k = 0; k < e->kv_table.nbytes / sizeof *block; k++)
        block[k] = (int32_t)k;
    im_status status = im_engine_copy_in(e, e->kv_table, block, e->kv_table.nbytes);
    free(memory);
    return status;
}

/* ---- prepared ops ----------------------------------------------------------------------- */

/* The state for a bound op: one for each different (kind, args). */
static im_status state_of(im_engine *e, const im_bound *x, im_op_state **out)
{
    uint64_t key = im_hash64(x->args, sizeof *x->args, (uint64_t)(uintptr_t)x->op->kind);
    for (size_t i = e->ncache; i-- > 0;)
        if (e->cache_key[i] == key && e->cache_of[i]->op->kind == x->op->kind && !memcmp(e->cache_of[i]->args, x->args, sizeof *x->args)) {
            *out = e->cache[i];
            return IM_OK;
        }
    if (e->ncache == e->cap_cache) {
        size_t cap = e->cap_cache ? e->cap_cache * 2 : 256;
        void *a = realloc(e->cache, cap * sizeof *e->cache);
        if (a)
            e->cache = a;
        void *b = realloc(e->cache_key, cap * sizeof *e->cache_key);
        if (b)
            e->cache_key = b;
        void *c = realloc(e->cache_of, cap * sizeof *e->cache_of);
        if (c)
            e->cache_of = c;
        if (!a || !b || !c)
            return im_fail(e->ctx, IM_ERR_NOMEM, "no memory to prepare ops");
        e->cap_cache = cap;
    }
    IM_TRY(im_op_prepare(e->device, x->op->kind, x->args, &e->cache[e->ncache]));
    e->cache_key[e->ncache] = key;
    e->cache_of[e->ncache] = x;
    *out = e->cache[e->ncache++];
    return IM_OK;
}

static im_status make_labels(im_engine *e, im_runnable *r, im_mode mode)
{
    im_str text = {0};
    bool good = true;
    r->label = IM_ARENA_NEW(e->arena, const char *, r->program->nstep + 1);
    for (uint32_t i = 0; good && r->label && i < r->program->nstep; i++) {
        text.len = 0;
        im_str_append(&text, mode == IM_MODE_EVAL ? "evaluation, " : "");
        im_step_print(&r->program->step[i], &text);
        r->label[i] = im_arena_strdup(e->arena, im_str_text(&text));
        good = r->label[i] && !text.failed;
    }
    im_str_free(&text);
    return r->label && good ? IM_OK : im_fail(e->ctx, IM_ERR_NOMEM, "no memory to prepare ops");
}

static im_status prepare(im_engine *e, im_runnable *r, im_mode mode)
{
    r->state = IM_ARENA_NEW(e->arena, im_op_state *, r->program->nbound + 1);
    r->done = IM_ARENA_NEW(e->arena, im_event, r->program->nbound + 1);
    if (!r->state || !r->done)
        return im_fail(e->ctx, IM_ERR_NOMEM, "no memory to prepare ops");
    IM_TRY(make_labels(e, r, mode));
    for (uint32_t i = 0; i < r->program->nbound; i++)
        if (r->program->bound[i].op->kind)
            IM_TRY(state_of(e, &r->program->bound[i], &r->state[i]));
    return IM_OK;
}

static im_status make_staging(im_engine *e)
{
    size_t most;
    im_engine_staging_of(e->programs, e->nrun, &e->nstaging, &most);
    e->staging = IM_ARENA_NEW(e->arena, im_staging, e->nstaging + 1);
    if (!e->staging)
        return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for batches");
    for (size_t i = 0; i < e->nstaging; i++) {
        e->staging[i] = (im_staging){.host = IM_ARENA_NEW(e->arena, int32_t, most * IM_STAGED + 1), .count = most};
        if (!e->staging[i].host)
            return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for batches of %zu tokens", most);
    }
    return IM_OK;
}

/* ---- groups ------------------------------------------------------------------------------- */

/* The ranks of a group that holds this rank, ascending. */
static int group_ranks(const im_layout *l, im_group_id g, int *ranks)
{
    int n = 0, size = im_mesh_size(&l->mesh);
    for (int r = 0; r < size; r++) {
        im_place p = im_mesh_place(&l->mesh, r), me = l->place;
        bool same_tp = p.tp == me.tp, same_cp = p.cp == me.cp, same_dp = p.dp == me.dp, same_pp = p.pp == me.pp;
        bool in = g == IM_GROUP_WORLD || (g == IM_GROUP_TP && same_cp && same_dp && same_pp) || (g == IM_GROUP_CP && same_tp && same_dp && same_pp) ||
                  (g == IM_GROUP_DP && same_tp && same_cp && same_pp) || (g == IM_GROUP_PP && same_tp && same_cp && same_dp) ||
                  (g == IM_GROUP_TIED && same_tp && same_cp && same_dp && (p.pp == 0 || p.pp == l->mesh.pp - 1)) ||
                  (g == IM_GROUP_KV && same_cp && same_dp && same_pp && p.tp / l->share.replicas == me.tp / l->share.replicas);
        if (in)
            ranks[n++] = r;
    }
    return n;
}

/* Queues on which some program uses a group, as bits. Messages and scalars go over whatever ranks there are: all ranks of a group must make the
 * same communicators in the same order, so the set is a fixed one and not what this rank's programs happen to use. */
static uint32_t queues_of(im_group_id g)
{
    switch (g) {
    case IM_GROUP_TP: return 1u << IM_QUEUE_TP | 1u << IM_QUEUE_REDUCE;
    case IM_GROUP_DP: return 1u << IM_QUEUE_REDUCE | 1u << IM_QUEUE_GATHER;
    case IM_GROUP_KV:
    case IM_GROUP_TIED:
    case IM_GROUP_WORLD: return 1u << IM_QUEUE_REDUCE;
    default: return 0;
    }
}

/* Between two neighbouring stages (with chunks the first is also behind the last): one communicator for activations and one for gradients, each used on
 * one queue by either of them. */
static im_status make_channels(im_engine *e, int earlier)
{
    im_place p = e->layout->place;
    bool here_first = p.pp == earlier;
    int ranks[2];
    p.pp = earlier;
    ranks[0] = im_mesh_rank(&e->layout->mesh, p);
    p.pp = (earlier + 1) % e->layout->mesh.pp;
    ranks[1] = im_mesh_rank(&e->layout->mesh, p);
    IM_TRY(im_comm_split(e->world, ranks, 2, &e->group[IM_GROUP_PP][IM_QUEUE_PIPE + (here_first ? IM_CH_ACT_OUT : IM_CH_ACT_IN)]));
    return im_comm_split(e->world, ranks, 2, &e->group[IM_GROUP_PP][IM_QUEUE_PIPE + (here_first ? IM_CH_GRAD_IN : IM_CH_GRAD_OUT)]);
}

static im_status make_groups(im_engine *e)
{
    const im_mesh *m = &e->layout->mesh;
    int *ranks = IM_ARENA_NEW(e->arena, int, im_mesh_size(m) + 1);
    if (!ranks)
        return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for the groups");
    for (int g = 0; g < IM_GROUP_COUNT; g++) {
        bool used = g == IM_GROUP_WORLD || g == IM_GROUP_DP || (g == IM_GROUP_TP && m->tp > 1) ||
                    (g == IM_GROUP_TIED && m->pp > 1 && (e->layout->place.pp == 0 || e->layout->place.pp == m->pp - 1)) ||
                    (g == IM_GROUP_KV && e->layout->share.replicas > 1);
        int n = group_ranks(e->layout, (im_group_id)g, ranks);
        for (int q = 0; used && q < IM_QUEUE_MAX; q++)
            if (queues_of((im_group_id)g) >> q & 1)
                IM_TRY(im_comm_split(e->world, ranks, n, &e->group[g][q]));
    }
    /* ascending, so that nobody waits in a circle */
    int links = im_plan_chunks(&e->plan) > 1 && m->pp > 1 ? m->pp : m->pp - 1;
    for (int link = 0; link < links; link++)
        if (link == e->layout->place.pp || (link + 1) % m->pp == e->layout->place.pp)
            IM_TRY(make_channels(e, link));
    return IM_OK;
}

/* ---- open, close ----------------------------------------------------------------------------- */

enum { IM_CHECK_RANKS = 16 }; /* up to here rank 0 builds the programs of all ranks and proves them together */

/* Rank 0 checks that the ranks' programs meet; every rank checks its own. */
static im_status check_programs(im_engine *e)
{
    int n = im_mesh_size(&e->layout->mesh);
    for (size_t i = 0; i < e->nrun; i++)
        IM_TRY(im_program_check_rank(e->ctx, e->run[i].program));
    if (n == 1 || n > IM_CHECK_RANKS || e->layout->rank != 0)
        return IM_OK;
    im_program **of_rank[IM_CHECK_RANKS] = {e->programs};
    im_layout *layout[IM_CHECK_RANKS] = {e->layout};
    im_status status = IM_OK;
    int built = 1;
    for (; built < n && status == IM_OK; built++) {
        of_rank[built] = IM_ARENA_NEW(e->arena, im_program *, e->nrun + 1);
        status = of_rank[built] ? build_all(e->ctx, &e->plan, built, e->want, e->nrun, &layout[built], of_rank[built])
                                : im_fail(e->ctx, IM_ERR_NOMEM, "no memory to check the programs");
        if (status != IM_OK)
            break;
    }
    for (size_t i = 0; i < e->nrun && status == IM_OK; i++) {
        const im_program *all[IM_CHECK_RANKS];
        for (int r = 0; r < n; r++)
            all[r] = of_rank[r][i];
        status = im_program_check(e->ctx, all, n);
    }
    for (int r = 1; r < built; r++) {
        for (size_t i = 0; i < e->nrun; i++)
            im_program_destroy(of_rank[r][i]);
        im_layout_destroy(layout[r]);
    }
    return status;
}

static im_status fill_engine(im_engine *e)
{
    im_engine_memory_of(e->programs, e->nrun, &e->memory);
    IM_TRY(check_programs(e));
    IM_TRY(im_engine_reserve(e));
    IM_TRY(make_groups(e));
    for (size_t i = 0; i < e->nrun; i++)
        IM_TRY(prepare(e, &e->run[i], e->want[i].mode));
    IM_TRY(make_staging(e));
    size_t nbucket = e->plan.model->nbucket;
    e->written = IM_ARENA_NEW(e->arena, im_event, nbucket + 1);
    e->item = IM_ARENA_NEW(e->arena, im_snapshot_item, nbucket * 4 + 1);
    e->convert = IM_ARENA_NEW(e->arena, float, IM_CONVERT_ELEMENTS);
    if (!e->written || !e->item || !e->convert)
        return im_fail(e->ctx, IM_ERR_NOMEM, "no memory for the engine");
    for (int k = 0; k < IM_SCALAR_COUNT; k++)
        for (size_t i = 0; i < e->nrun && !e->scalar[k].nbytes; i++)
            e->scalar[k] = im_engine_value(e, i, IM_ROLE_SCALAR, k, -1);
    IM_TRY(write_rope(e));
    IM_TRY(write_kv_table(e));
    return write_kv_positions(e);
}

im_status im_engine_open(im_context *ctx, const im_engine_config *cfg, im_engine **out)
{
    if (im_mesh_size(&cfg->plan->mesh) != im_comm_size(cfg->world))
        return im_fail(ctx, IM_ERR_ARG, "the layout has %d ranks, but %d run", im_mesh_size(&cfg->plan->mesh), im_comm_size(cfg->world));
    im_arena *arena;
    IM_TRY(im_arena_create(ctx, &arena));
    im_status status = IM_ERR_NOMEM;
    im_engine *e = IM_ARENA_NEW(arena, im_engine, 1);
    im_program **program = IM_ARENA_NEW(arena, im_program *, cfg->nwant + 1);
    im_runnable *run = IM_ARENA_NEW(arena, im_runnable, cfg->nwant + 1);
    im_program_want *want = IM_ARENA_NEW(arena, im_program_want, cfg->nwant + 1);
    if (!e || !program || !run || !want) {
        im_arena_destroy(arena);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for the engine");
    }
    *e = (im_engine){
        .ctx = ctx, .plan = *cfg->plan, .device = cfg->device, .world = cfg->world, .arena = arena, .run = run, .want = want, .debug = cfg->debug};
    status = build_all(ctx, &e->plan, im_comm_rank(cfg->world), cfg->want, cfg->nwant, &e->layout, program);
    if (status != IM_OK) {
        im_arena_destroy(arena);
        return status;
    }
    e->programs = program;
    for (size_t i = 0; i < cfg->nwant; i++) {
        run[i].program = program[i];
        want[i] = cfg->want[i];
        e->trains |= want[i].mode == IM_MODE_TRAIN;
    }
    e->nrun = cfg->nwant;
    status = fill_engine(e);
    if (status != IM_OK) {
        im_engine_close(e);
        return status;
    }
    *out = e;
    return IM_OK;
}

void im_engine_close(im_engine *e)
{
    if (!e)
        return;
    if (im_device_sync(e->device) != IM_OK)
        im_log(e->ctx, IM_LOG_DEBUG, "engine", "closing after an error");
    for (size_t i = 0; i < e->ncache; i++)
        im_op_destroy(e->cache[i]);
    free(e->cache);
    free(e->cache_key);
    free(e->cache_of);
    for (int g = 0; g < IM_GROUP_COUNT; g++)
        for (int q = 0; q < IM_QUEUE_MAX; q++)
            im_comm_destroy(e->group[g][q]);
    for (size_t i = 0; i < e->nrun; i++)
        im_program_destroy(e->run[i].program);
    im_engine_debug_free(e);
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        im_device_release(e->device, (im_class)c);
    im_layout_destroy(e->layout);
    im_arena_destroy(e->arena);
}

const im_layout *im_engine_layout(const im_engine *e)
{
    return e->layout;
}

im_device *im_engine_device(const im_engine *e)
{
    return e->device;
}
