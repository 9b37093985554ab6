/* The generator: programs of a few sizes over one cache.
 *
 * The cache lies in blocks of IM_KV_BLOCK positions, which the sequence takes as it grows and gives back at its end; on every rank the same ones.
 *
 * A feed of n ids runs n - 1 of them through the largest programs that fit, and the last through the program of one id, which
 * samples. So the id behind a prompt is computed and drawn in the same way however the prompt was cut, and every id behind it too.
 */
#include "infer/internal.h"

#include "data/data.h"
#include "engine/agree.h"
#include "tensor/ops.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IM_CHUNK = 256 };

/* ---- open ------------------------------------------------------------------------------------- */

static void add_end(im_infer *g, const im_json_value *v)
{
    int64_t id = im_json_int(v, -1);
    if (g->nend < IM_MAX_ENDS && id >= 0 && id < g->session->model->arch.V)
        g->end[g->nend++] = (int32_t)id;
}

/* eos_token_id: a number, or several. */
static void find_ends(im_infer *g)
{
    const im_json_value *v = im_json_get(im_json_root(g->session->model->config), "eos_token_id");
    if (im_json_type_of(v) == IM_JSON_ARRAY)
        for (size_t i = 0; i < im_json_length(v); i++)
            add_end(g, im_json_at(v, i));
    else
        add_end(g, v);
    if (!g->nend && im_infer_is_bytes(g))
        g->end[g->nend++] = IM_BYTE_EOD;
}

im_status im_infer_open(im_context *ctx, const char *what, const char *models_dir, im_infer **out)
{
    void *memory;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_infer), &memory));
    im_infer *g = memory;
    g->ctx = ctx;
    g->session = &g->own;
    im_status status = im_checkpoint_session_open(ctx, what, models_dir, &g->own);
    if (status != IM_OK) {
        free(g);
        return status;
    }
    find_ends(g);
    *out = g;
    return IM_OK;
}

void im_infer_close(im_infer *g)
{
    if (!g)
        return;
    im_status status = im_infer_end(g, IM_OK);
    (void)status; /* told before, or of no consequence any more */
    im_checkpoint_session_close(&g->own);
    free(g);
}

const im_model *im_infer_model(const im_infer *g)
{
    return g->session->model;
}

bool im_infer_is_bytes(const im_infer *g)
{
    return g->session->model->arch.V == IM_BYTE_VOCAB;
}

bool im_infer_is_end(const im_infer *g, int32_t id)
{
    for (size_t i = 0; i < g->nend; i++)
        if (g->end[i] == id)
            return true;
    return false;
}

int im_infer_ranks(const im_infer *g)
{
    return g->session->ranks;
}

/* ---- programs ----------------------------------------------------------------------------------- */

static void add_size(im_infer *g, int64_t n)
{
    if (n >= 1 && n <= g->cfg.positions && (!g->nprogram || n < g->size[g->nprogram - 1]))
        g->size[g->nprogram++] = n;
}

/* Sizes for what is fed. One of exactly the rest, where the first feed is known; else powers of 4: a feed of n ids runs at most n / 256 + 12
 * programs. */
static void choose_sizes(im_infer *g)
{
    int64_t rest = g->cfg.first_feed - 1;
    g->nprogram = 0;
    if (g->cfg.first_feed > 0) {
        if (rest >= IM_CHUNK)
            add_size(g, IM_CHUNK);
        add_size(g, rest % IM_CHUNK);
    } else {
        for (int64_t n = IM_CHUNK; n > 1; n /= 4)
            add_size(g, n);
    }
    add_size(g, 1);
    if (g->cfg.prompt_logprobs) /* the one that samples need not look at given ids */
        g->size[g->nprogram++] = 1;
}

/* All blocks are free; the first to be taken is number 0. */
static im_status make_room(im_infer *g)
{
    void *memory;
    int64_t n = im_kv_blocks(g->cfg.positions);
    IM_TRY(im_alloc(g->ctx, (size_t)(2 * n + g->cfg.positions), sizeof(int32_t), &memory));
    free(g->memory);
    g->memory = memory;
    g->block = g->memory;
    g->unused = g->block + n;
    g->given = g->unused + n;
    g->nblock = 0;
    for (g->nunused = 0; g->nunused < n; g->nunused++)
        g->unused[g->nunused] = (int32_t)(n - 1 - g->nunused);
    return IM_OK;
}

im_status im_infer_start_programs(im_infer *g)
{
    im_program_want want[IM_MAX_PROGRAMS];
    g->pos = 0;
    g->has_last = false;
    choose_sizes(g);
    for (size_t i = 0; i < g->nprogram; i++)
        want[i] = (im_program_want){
            .mode = IM_MODE_INFER, .batch = 1, .seq_len = g->size[i], .kv_max = g->cfg.positions, .all_logits = g->cfg.prompt_logprobs};
    im_program_want *draws = &want[g->nprogram - 1];
    draws->all_logits = false;
    draws->temperature = g->cfg.temperature;
    draws->top_p = g->cfg.top_p;
    draws->top_k = g->cfg.top_k;
    draws->seed = g->cfg.seed;
    IM_TRY(make_room(g));
    return im_checkpoint_session_start(g->session, want, g->nprogram);
}

/* ---- blocks of the cache ------------------------------------------------------------------------------ */

static im_status take_blocks(im_infer *g, int64_t positions)
{
    while (g->nblock < im_kv_blocks(positions)) {
        int32_t block = g->unused[--g->nunused];
        IM_TRY(im_engine_place_block(g->session->engine, 0, g->nblock, block));
        g->block[g->nblock++] = block;
    }
    return IM_OK;
}

/* What was used last is taken first again. */
static void give_blocks(im_infer *g)
{
    for (int64_t i = 0; i < g->nblock; i++)
        g->unused[g->nunused++] = g->block[i];
    g->nblock = 0;
}

/* ---- what every rank does ------------------------------------------------------------------------------ */

/* im_source.load: the piece that runs. */
static im_status load(void *arg, const im_op_now *now, int64_t first_sample, int64_t B, int64_t T, int32_t *ids, int32_t *targets, int32_t *pos,
                      int32_t *seg)
{
    const im_infer *g = arg;
    (void)first_sample, (void)B, (void)seg;
    for (int64_t i = 0; i < T; i++) {
        ids[i] = g->piece[i];
        pos[i] = (int32_t)(now->pos + i);
        if (targets)
            targets[i] = g->next ? g->next[i] : -1;
    }
    return IM_OK;
}

static im_status run(im_infer *g, size_t program, const int32_t *ids, const int32_t *next)
{
    im_source source = {.arg = g, .load = load};
    im_op_now now = {.pos = g->pos, .kv_len = g->pos + g->size[program]};
    g->piece = ids;
    g->next = next;
    IM_TRY(im_engine_run(g->session->engine, program, &now, &source));
    g->pos += g->size[program];
    return IM_OK;
}

/* The rank that draws: of the last stage, the first. */
static int drawing_rank(const im_infer *g)
{
    const im_mesh *m = &g->session->plan.mesh;
    return im_mesh_rank(m, (im_place){.pp = m->pp - 1});
}

static bool draws_here(const im_infer *g)
{
    return im_engine_samples(g->session->engine);
}

/* Log-probabilities that a program has told on the last stage, on rank 0 too. */
static im_status rows(im_infer *g, size_t program, float *logprob)
{
    size_t n = (size_t)g->size[program];
    float row[IM_CHUNK] = {0};
    if (draws_here(g))
        IM_TRY(im_engine_sampled(g->session->engine, program, NULL, NULL, row));
    if (drawing_rank(g))
        IM_TRY(im_engine_share(g->session->engine, row, n * sizeof *row, drawing_rank(g)));
    if (logprob)
        memcpy(logprob, row, n * sizeof *row);
    return IM_OK;
}

/* Puts n ids into the cache. next: the ids behind each, for their log-probabilities; NULL: not asked. logprob: rank 0's. */
static im_status fill(im_infer *g, const int32_t *ids, size_t n, const int32_t *next, float *logprob)
{
    while (n > 0) {
        size_t p = 0;
        while ((size_t)g->size[p] > n) /* the program of one id ends it */
            p++;
        size_t size = (size_t)g->size[p];
        IM_TRY(run(g, p, ids, next));
        if (next) {
            IM_TRY(rows(g, p, logprob));
            next += size;
            logprob = logprob ? logprob + size : NULL;
        }
        ids += size;
        n -= size;
    }
    return IM_OK;
}

im_status im_infer_do_feed(im_infer *g, const int32_t *ids, size_t n, bool told, float *logprob)
{
    IM_TRY(take_blocks(g, g->pos + g->has_last + (int64_t)n)); /* before any runs: later they would have to be waited for */
    if (g->has_last)
        IM_TRY(fill(g, &g->last, 1, NULL, NULL));
    g->has_last = true;
    g->last = ids[n - 1];
    return fill(g, ids, n - 1, told ? ids + 1 : NULL, logprob);
}

im_status im_infer_do_next(im_infer *g, float *logprob)
{
    struct {
        int32_t id;
        float logprob;
    } drawn = {0};
    size_t draws = g->nprogram - 1;
    int32_t fed = g->last;
    IM_TRY(take_blocks(g, g->pos + 1));
    IM_TRY(run(g, draws, &fed, NULL));
    if (draws_here(g))
        IM_TRY(im_engine_sampled(g->session->engine, draws, &drawn.id, &drawn.logprob, NULL));
    if (drawing_rank(g)) /* else rank 0 tells it with what comes next */
        IM_TRY(im_engine_share(g->session->engine, &drawn, sizeof drawn, drawing_rank(g)));
    g->last = drawn.id;
    *logprob = drawn.logprob;
    return IM_OK;
}

void im_infer_do_rewind(im_infer *g)
{
    give_blocks(g);
    g->pos = 0;
    g->has_last = false;
}

/* ---- what rank 0 is asked -------------------------------------------------------------------------------- */

static im_status check_feed(const im_infer *g, const int32_t *ids, size_t n, const float *logprob)
{
    int64_t V = g->session->model->arch.V;
    if (!g->session->engine)
        return im_fail(g->ctx, IM_ERR_ARG, "the generator was not started");
    if (n > (size_t)im_infer_room(g))
        return im_fail(g->ctx, IM_ERR_ARG, "%zu more ids behind %" PRId64 ": the sequence has room for %" PRId64, n, im_infer_length(g),
                       g->cfg.positions);
    if (logprob && !g->cfg.prompt_logprobs)
        return im_fail(g->ctx, IM_ERR_ARG, "log-probabilities of given ids: the generator was started without them");
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= V)
            return im_fail(g->ctx, IM_ERR_ARG, "id %d (number %zu of those given): ids are from 0 to %" PRId64 " (%s: vocab_size)", ids[i], i + 1,
                           V - 1, g->session->model->source);
    return IM_OK;
}

im_status im_infer_feed(im_infer *g, const int32_t *ids, size_t n, float *logprob)
{
    IM_TRY(check_feed(g, ids, n, logprob));
    if (!n)
        return IM_OK;
    IM_TRY(im_infer_order(g, IM_INFER_FEED, ids, n, logprob));
    if (logprob)
        logprob[0] = NAN;
    return im_infer_done(g, im_infer_do_feed(g, ids, n, logprob, logprob ? logprob + 1 : NULL));
}

im_status im_infer_next(im_infer *g, int32_t *id, float *logprob)
{
    float p;
    if (!g->session->engine)
        return im_fail(g->ctx, IM_ERR_ARG, "the generator was not started");
    if (!g->has_last)
        return im_fail(g->ctx, IM_ERR_ARG, "nothing to go on with: feed at least one id");
    if (im_infer_room(g) < 1)
        return im_fail(g->ctx, IM_ERR_ARG, "the sequence is full: it has room for %" PRId64 " ids", g->cfg.positions);
    IM_TRY(im_infer_order(g, IM_INFER_NEXT, NULL, 0, false));
    IM_TRY(im_infer_done(g, im_infer_do_next(g, &p)));
    *id = g->last;
    if (logprob)
        *logprob = p;
    return IM_OK;
}

int64_t im_infer_length(const im_infer *g)
{
    return g->pos + g->has_last;
}

int64_t im_infer_room(const im_infer *g)
{
    return g->cfg.positions - im_infer_length(g);
}

void im_infer_rewind(im_infer *g)
{
    im_status status = g->session->engine ? im_infer_order(g, IM_INFER_REWIND, NULL, 0, false) : IM_OK;
    (void)status; /* the next call meets it again */
    im_infer_do_rewind(g);
}
