/* orders: how the ranks of a generator stay together. Rank 0 tells what comes next, all do it, and so on until it tells the end:
 *
 *     rank 0    start   FEED ids   NEXT   NEXT   ...   MEMORY   END
 *     others    start   as it says, in the same order
 *
 * What rank 0 alone decides (where a text stops, that somebody pressed a key) reaches the others as the order that does not come. A rank that fails
 * tells the world, and all stop.
 */
#include "infer/internal.h"

#include "engine/agree.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct order {
    int32_t what, told;
    int32_t last, n; /* the sequence's last id, ids that are fed */
} order;

/* What rank 0 decides of the config. */
typedef struct terms {
    int64_t positions, first_feed, top_k;
    uint64_t seed;
    double temperature, top_p;
    int32_t prompt_logprobs;
} terms;

im_status im_infer_done(im_infer *g, im_status status)
{
    if (status != IM_OK && g->failure == IM_OK)
        g->failure = status;
    return status;
}

static im_status tell(im_infer *g, order *o, const int32_t *ids)
{
    im_engine *e = g->session->engine;
    IM_TRY(im_engine_share(e, o, sizeof *o, 0));
    if (!o->n)
        return IM_OK;
    memcpy(g->given, ids, (size_t)o->n * sizeof *ids);
    return im_engine_share(e, g->given, (size_t)o->n * sizeof *ids, 0);
}

im_status im_infer_order(im_infer *g, im_infer_what what, const int32_t *ids, size_t n, bool told)
{
    order o = {.what = (int32_t)what, .told = told, .last = g->last, .n = (int32_t)n};
    if (im_infer_ranks(g) == 1)
        return IM_OK;
    if (g->failure != IM_OK)
        return im_fail(g->ctx, IM_ERR_ARG, "the ranks of this generator have failed: start it again");
    return im_infer_done(g, tell(g, &o, ids));
}

/* out NULL: rank 0 has it. */
static im_status memory_of_all(im_infer *g, im_observe_memory *out)
{
    im_observe_memory m;
    for (int r = 0; r < im_infer_ranks(g); r++)
        IM_TRY(im_engine_rank_memory(g->session->engine, r, out ? &out[r] : &m));
    return IM_OK;
}

im_status im_infer_memory(im_infer *g, im_observe_memory *out)
{
    IM_TRY(im_infer_order(g, IM_INFER_MEMORY, NULL, 0, false));
    return im_infer_done(g, memory_of_all(g, out));
}

/* ---- the start ----------------------------------------------------------------------------------- */

static void make_plan(im_infer *g)
{
    im_plan *p = &g->session->plan;
    p->mesh = (im_mesh){g->cfg.tp > 0 ? g->cfg.tp : 1, 1, 1, g->cfg.pp > 0 ? g->cfg.pp : 1};
    p->micro_batch = p->global_batch = 1; /* one sequence: dp has nothing to share out */
    p->precision = g->cfg.precision;
    p->threads = g->cfg.threads;
}

/* Every rank, once it has joined. */
static im_status start_rank(im_infer *g)
{
    static const char *const names[] = {"model"};
    im_infer_config *c = &g->cfg;
    terms t = {.positions = c->positions,
               .first_feed = c->first_feed,
               .top_k = c->top_k,
               .seed = c->seed,
               .temperature = c->temperature,
               .top_p = c->top_p,
               .prompt_logprobs = c->prompt_logprobs};
    IM_TRY(im_checkpoint_session_share(g->session, &t, sizeof t));
    c->positions = t.positions;
    c->first_feed = t.first_feed;
    c->top_k = t.top_k;
    c->seed = t.seed;
    c->temperature = t.temperature;
    c->top_p = t.top_p;
    c->prompt_logprobs = t.prompt_logprobs != 0;
    if (g->session->mpi) {
        uint64_t model;
        IM_TRY(im_checkpoint_session_identity(g->session, &model));
        IM_TRY(im_checkpoint_session_same(g->session, &model, names, IM_COUNT_OF(names)));
    }
    return im_infer_start_programs(g);
}

/* ---- ranks above 0 ----------------------------------------------------------------------------------- */

static im_status obey(im_infer *g, const order *o)
{
    float logprob;
    switch ((im_infer_what)o->what) {
    case IM_INFER_FEED: return im_infer_do_feed(g, g->given, (size_t)o->n, o->told, NULL);
    case IM_INFER_NEXT: return im_infer_do_next(g, &logprob);
    case IM_INFER_REWIND: im_infer_do_rewind(g); return IM_OK;
    case IM_INFER_MEMORY: return memory_of_all(g, NULL);
    default: return im_fail(g->ctx, IM_ERR_INTERNAL, "order %d: there is none of that number", o->what);
    }
}

static im_status serve(im_infer *g)
{
    im_engine *e = g->session->engine;
    for (;;) {
        order o = {0};
        IM_TRY(im_engine_share(e, &o, sizeof o, 0));
        if (o.what == IM_INFER_END)
            return IM_OK;
        if (o.n < 0 || o.n > g->cfg.positions)
            return im_fail(g->ctx, IM_ERR_INTERNAL, "%d ids for %" PRId64 " positions", o.n, g->cfg.positions);
        g->last = o.last;
        if (o.n)
            IM_TRY(im_engine_share(e, g->given, (size_t)o.n * sizeof *g->given, 0));
        IM_TRY(obey(g, &o));
    }
}

/* A rank that is a thread. */
static im_status follow_thread(void *arg, im_checkpoint_session *s)
{
    const im_infer *lead = arg;
    im_infer g = {.ctx = s->ctx, .session = s, .cfg = lead->asked};
    im_status status = start_rank(&g);
    if (status == IM_OK)
        status = serve(&g);
    free(g.memory);
    return status;
}

static im_status join(im_infer *g, const im_infer_config *cfg)
{
    g->cfg = g->asked = *cfg;
    g->failure = IM_OK;
    make_plan(g);
    im_checkpoint_join how = {
        .deferred = cfg->deferred, .kernels = cfg->kernels, .mpi = cfg->mpi, .deadline = cfg->deadline, .others = follow_thread, .arg = g};
    return im_checkpoint_session_join(g->session, &how);
}

im_status im_infer_follow(im_infer *g, const im_infer_config *cfg)
{
    IM_TRY(im_infer_done(g, join(g, cfg)));
    IM_TRY(im_infer_done(g, start_rank(g)));
    return im_infer_done(g, serve(g));
}

/* ---- rank 0 ---------------------------------------------------------------------------------------------- */

im_status im_infer_start(im_infer *g, const im_infer_config *cfg)
{
    const im_arch *a = &g->session->model->arch;
    im_infer_config c = *cfg;
    IM_TRY(im_infer_end(g, IM_OK));
    if (!c.positions)
        c.positions = a->P ? a->P : IM_INFER_POSITIONS;
    if (c.positions < 1 || (a->P && c.positions > a->P))
        return im_fail(g->ctx, IM_ERR_ARG, "%" PRId64 " positions: from 1 to the model's %" PRId64 " (%s)", c.positions, a->P,
                       g->session->model->source);
    im_status status = im_infer_done(g, join(g, &c));
    if (status == IM_OK)
        status = im_infer_done(g, start_rank(g));
    return status == IM_OK ? IM_OK : im_infer_end(g, status);
}

im_status im_infer_end(im_infer *g, im_status status)
{
    bool together = g->session->engine && im_infer_ranks(g) > 1 && g->session->rank == 0;
    if (together && g->failure == IM_OK)
        (void)!im_infer_order(g, IM_INFER_END, NULL, 0, false); /* a failure is remembered */
    im_status ranks = im_checkpoint_session_stop(g->session, g->failure != IM_OK ? g->failure : IM_OK);
    g->failure = IM_OK;
    free(g->memory);
    g->memory = NULL;
    g->nblock = g->nunused = 0;
    return ranks != IM_OK ? ranks : status;
}
