/* The generator: programs of a few sizes over one cache.
 *
 * A feed of n ids runs n - 1 of them through the largest programs that fit, and the last through the program of one id, which
 * samples. So the id behind a prompt is computed and drawn in the same way however the prompt was cut, and every id behind it too.
 */
#include "infer/infer.h"

#include "data/data.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { IM_CHUNK = 256, IM_MAX_PROGRAMS = 8, IM_MAX_ENDS = 16 };

struct im_infer {
    im_context *ctx;
    im_checkpoint_session session;
    int32_t end[IM_MAX_ENDS]; /* ids that end a document */
    size_t nend;
    im_infer_config cfg;
    int64_t size[IM_MAX_PROGRAMS]; /* ids of each program, descending; the last is the one that samples */
    size_t nprogram;
    int64_t pos;   /* ids in the cache */
    bool has_last; /* an id of the sequence that is not in the cache yet */
    int32_t last;
    const int32_t *piece, *next; /* what load gives; next NULL: no targets */
};

/* ---- open ------------------------------------------------------------------------------------- */

static void add_end(im_infer *g, const im_json_value *v)
{
    int64_t id = im_json_int(v, -1);
    if (g->nend < IM_MAX_ENDS && id >= 0 && id < g->session.model->arch.V)
        g->end[g->nend++] = (int32_t)id;
}

/* eos_token_id: a number, or several. */
static void find_ends(im_infer *g)
{
    const im_json_value *v = im_json_get(im_json_root(g->session.model->config), "eos_token_id");
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
    im_status status = im_checkpoint_session_open(ctx, what, models_dir, &g->session);
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
    im_checkpoint_session_close(&g->session);
    free(g);
}

const im_model *im_infer_model(const im_infer *g)
{
    return g->session.model;
}

bool im_infer_is_bytes(const im_infer *g)
{
    return g->session.model->arch.V == IM_BYTE_VOCAB;
}

bool im_infer_is_end(const im_infer *g, int32_t id)
{
    for (size_t i = 0; i < g->nend; i++)
        if (g->end[i] == id)
            return true;
    return false;
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

im_status im_infer_start(im_infer *g, const im_infer_config *cfg)
{
    const im_arch *a = &g->session.model->arch;
    im_program_want want[IM_MAX_PROGRAMS];
    g->cfg = *cfg;
    if (!g->cfg.positions)
        g->cfg.positions = a->P ? a->P : IM_INFER_POSITIONS;
    if (g->cfg.positions < 1 || (a->P && g->cfg.positions > a->P))
        return im_fail(g->ctx, IM_ERR_ARG, "%" PRId64 " positions: from 1 to the model's %" PRId64 " (%s)", g->cfg.positions, a->P,
                       g->session.model->source);
    im_infer_rewind(g);
    choose_sizes(g);
    for (size_t i = 0; i < g->nprogram; i++)
        want[i] = (im_program_want){
            .mode = IM_MODE_INFER, .batch = 1, .seq_len = g->size[i], .kv_max = g->cfg.positions, .all_logits = cfg->prompt_logprobs};
    im_program_want *draws = &want[g->nprogram - 1];
    draws->all_logits = false;
    draws->temperature = cfg->temperature;
    draws->top_p = cfg->top_p;
    draws->top_k = cfg->top_k;
    draws->seed = cfg->seed;
    im_plan *p = &g->session.plan;
    p->precision = cfg->precision;
    p->threads = cfg->threads ? cfg->threads : im_machine_cores();
    return im_checkpoint_session_start(g->ctx, &g->session, cfg->deferred, cfg->kernels, want, g->nprogram);
}

/* ---- running -------------------------------------------------------------------------------------- */

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
    IM_TRY(im_engine_run(g->session.engine, program, &now, &source));
    g->pos += g->size[program];
    return IM_OK;
}

/* Puts n ids into the cache. next: the ids behind each, for their log-probabilities; NULL: not asked. */
static im_status fill(im_infer *g, const int32_t *ids, size_t n, const int32_t *next, float *logprob)
{
    while (n > 0) {
        size_t p = 0;
        while ((size_t)g->size[p] > n) /* the program of one id ends it */
            p++;
        size_t size = (size_t)g->size[p];
        IM_TRY(run(g, p, ids, next));
        if (next) {
            IM_TRY(im_engine_sampled(g->session.engine, p, NULL, NULL, logprob));
            next += size;
            logprob += size;
        }
        ids += size;
        n -= size;
    }
    return IM_OK;
}

static im_status check_feed(const im_infer *g, const int32_t *ids, size_t n, const float *logprob)
{
    int64_t V = g->session.model->arch.V;
    if (!g->session.engine)
        return im_fail(g->ctx, IM_ERR_ARG, "the generator was not started");
    if (n > (size_t)im_infer_room(g))
        return im_fail(g->ctx, IM_ERR_ARG, "%zu more ids behind %" PRId64 ": the sequence has room for %" PRId64, n, im_infer_length(g),
                       g->cfg.positions);
    if (logprob && !g->cfg.prompt_logprobs)
        return im_fail(g->ctx, IM_ERR_ARG, "log-probabilities of given ids: the generator was started without them");
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= V)
            return im_fail(g->ctx, IM_ERR_ARG, "id %d (number %zu of those given): ids are from 0 to %" PRId64 " (%s: vocab_size)", ids[i], i + 1,
                           V - 1, g->session.model->source);
    return IM_OK;
}

im_status im_infer_feed(im_infer *g, const int32_t *ids, size_t n, float *logprob)
{
    IM_TRY(check_feed(g, ids, n, logprob));
    if (!n)
        return IM_OK;
    if (g->has_last)
        IM_TRY(fill(g, &g->last, 1, NULL, NULL));
    g->has_last = true;
    g->last = ids[n - 1];
    if (logprob)
        logprob[0] = NAN;
    return fill(g, ids, n - 1, logprob ? ids + 1 : NULL, logprob ? logprob + 1 : NULL);
}

im_status im_infer_next(im_infer *g, int32_t *id, float *logprob)
{
    float p;
    if (!g->session.engine)
        return im_fail(g->ctx, IM_ERR_ARG, "the generator was not started");
    if (!g->has_last)
        return im_fail(g->ctx, IM_ERR_ARG, "nothing to go on with: feed at least one id");
    if (im_infer_room(g) < 1)
        return im_fail(g->ctx, IM_ERR_ARG, "the sequence is full: it has room for %" PRId64 " ids", g->cfg.positions);
    size_t draws = g->nprogram - 1;
    int32_t fed = g->last;
    IM_TRY(run(g, draws, &fed, NULL));
    IM_TRY(im_engine_sampled(g->session.engine, draws, &g->last, &p, NULL));
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
    g->pos = 0;
    g->has_last = false;
}
