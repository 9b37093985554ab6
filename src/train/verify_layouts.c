/* verify: which layouts. The factors are tp, sp, dp, pp, ZeRO, the pipeline's schedule, recompute and the micro-batch; the pool is all their
 * combinations that the model and the plan allow; the pairwise set is chosen from it greedily, each time the layout that shows most pairs not seen yet.
 */
#include "train/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const recompute_names[] = {"", "selective", "full"};

void im_train_verify_name(const im_train_verify_layout *l, char *buf, size_t size)
{
    char text[IM_TRAIN_VERIFY_NAME];
    size_t n = 0;
    text[0] = 0;
    const struct {
        const char *key;
        int value, plain;
    } numbers[] = {{"tp", l->tp, 1}, {"dp", l->dp, 1}, {"zero", l->zero, 0}, {"pp", l->pp, 1}};
    for (size_t i = 0; i < IM_COUNT_OF(numbers); i++) {
        if (numbers[i].value != numbers[i].plain)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d+", numbers[i].key, numbers[i].value);
        if (i == 0 && l->sp)
            n += (size_t)snprintf(text + n, sizeof text - n, "sp+");
    }
    const im_schedule_kind *k = im_schedule_of(l->schedule);
    if (l->pp > 1 && k->chunks)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d+", k->name, l->chunks);
    else if (l->pp > 1)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s+", k->name);
    if (l->recompute != IM_RECOMPUTE_NONE)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s+", recompute_names[l->recompute]);
    snprintf(text + n, sizeof text - n, "mb%" PRId64, l->micro_batch);
    snprintf(buf, size, "%s", text);
}

/* ---- one by name ---------------------------------------------------------------------- */

static bool number_after(const char *word, const char *key, int64_t *out)
{
    size_t n = strlen(key);
    char *end;
    if (strncmp(word, key, n) != 0 || word[n] < '0' || word[n] > '9')
        return false;
    long long v = strtoll(word + n, &end, 10);
    if (*end || v > 1 << 24)
        return false;
    *out = v;
    return true;
}

/* gpipe, 1f1b, interleaved, interleavedN, zb-h1 */
static bool parse_schedule(const char *word, im_train_verify_layout *l)
{
    for (int i = 0; i < IM_SCHEDULE_COUNT; i++) {
        const im_schedule_kind *k = im_schedule_of((im_schedule)i);
        int64_t chunks = k->chunks ? 2 : 1;
        if (strcmp(word, k->name) != 0 && !(k->chunks && number_after(word, k->name, &chunks) && chunks > 0))
            continue;
        l->schedule = (im_schedule)i;
        l->chunks = (int)chunks;
        return true;
    }
    return false;
}

typedef enum part_kind { PART_NONE, PART_TP, PART_DP, PART_PP, PART_ZERO, PART_MICRO_BATCH, PART_SP, PART_RECOMPUTE, PART_SCHEDULE } part_kind;

static part_kind parse_part(const char *word, im_train_verify_layout *l)
{
    const struct {
        const char *key;
        int *value;
        part_kind part;
    } numbers[] = {{"tp", &l->tp, PART_TP}, {"dp", &l->dp, PART_DP}, {"pp", &l->pp, PART_PP}, {"zero", &l->zero, PART_ZERO}};
    int64_t v;
    for (size_t i = 0; i < IM_COUNT_OF(numbers); i++)
        if (number_after(word, numbers[i].key, &v)) {
            *numbers[i].value = (int)v;
            return numbers[i].part;
        }
    if (number_after(word, "mb", &v)) {
        l->micro_batch = v;
        return PART_MICRO_BATCH;
    }
    for (int i = IM_RECOMPUTE_SELECTIVE; i <= IM_RECOMPUTE_FULL; i++)
        if (strcmp(word, recompute_names[i]) == 0) {
            l->recompute = (im_recompute)i;
            return PART_RECOMPUTE;
        }
    if (strcmp(word, "sp") == 0) {
        l->sp = true;
        return PART_SP;
    }
    return parse_schedule(word, l) ? PART_SCHEDULE : PART_NONE;
}

im_status im_train_verify_parse(im_context *ctx, const char *text, int64_t micro_batch, im_train_verify_layout *out)
{
    im_train_verify_layout l = {.tp = 1, .dp = 1, .pp = 1, .schedule = IM_SCHEDULE_1F1B, .chunks = 1, .micro_batch = micro_batch};
    char copy[IM_TRAIN_VERIFY_NAME], *save = NULL;
    unsigned seen = 0;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy || !*text)
        return im_fail(ctx, IM_ERR_ARG, "layouts: \"%.80s\" is no layout; an example: tp2+sp+dp2+zero3", text);
    for (char *word = strtok_r(copy, "+", &save); word; word = strtok_r(NULL, "+", &save)) {
        part_kind part = parse_part(word, &l);
        if (!part)
            return im_fail(
                ctx, IM_ERR_ARG,
                "layouts: \"%.40s\" in \"%.80s\" is none of tpN, sp, dpN, zeroN, ppN, gpipe, 1f1b, interleavedN, zb-h1, selective, full, mbN", word,
                text);
        if (seen & 1u << part)
            return im_fail(ctx, IM_ERR_ARG, "layouts: \"%.80s\" says twice what \"%.40s\" says; each part once", text, word);
        seen |= 1u << part;
    }
    if (seen & 1u << PART_SCHEDULE && l.pp == 1)
        return im_fail(ctx, IM_ERR_ARG, "layouts: \"%.80s\": %s is a schedule of pipeline stages; pp2 or more", text,
                       im_schedule_of(l.schedule)->name);
    *out = l;
    return IM_OK;
}

im_plan im_train_verify_plan(const im_plan *base, const im_train_verify_layout *l)
{
    im_plan p = *base;
    p.mesh = (im_mesh){.tp = l->tp, .cp = 1, .dp = l->dp, .pp = l->pp};
    p.sequence_parallel = l->sp;
    p.zero = l->zero;
    p.recompute = l->recompute;
    p.micro_batch = l->micro_batch;
    p.schedule = l->pp > 1 ? l->schedule : IM_SCHEDULE_1F1B;
    p.chunks = l->pp > 1 ? l->chunks : 1;
    return p;
}

static bool allowed(im_context *scratch, const im_plan *base, const im_train_verify_layout *l)
{
    im_plan p = im_train_verify_plan(base, l);
    im_error_clear(scratch);
    return im_plan_validate(scratch, &p) == IM_OK;
}

/* ---- the pool --------------------------------------------------------------------------- */

typedef struct im_pool {
    im_train_verify_set set;
    size_t cap, cap_refused;
} im_pool;

static bool push(im_pool *p, const im_train_verify_layout *l)
{
    if (p->set.n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        void *more = realloc(p->set.layout, cap * sizeof *p->set.layout);
        if (!more)
            return false;
        p->set.layout = more;
        p->cap = cap;
    }
    p->set.layout[p->set.n++] = *l;
    return true;
}

static bool refuse(im_pool *p, const im_train_verify_layout *l, const char *reason)
{
    im_train_verify_refusal *r = p->set.refused;
    for (size_t i = 0; i < p->set.nrefused; i++)
        if (strncmp(r[i].reason, reason, sizeof r[i].reason - 1) == 0) {
            r[i].count++;
            return true;
        }
    if (p->set.nrefused == p->cap_refused) {
        size_t cap = p->cap_refused ? p->cap_refused * 2 : 8;
        void *more = realloc(r, cap * sizeof *r);
        if (!more)
            return false;
        p->set.refused = r = more;
        p->cap_refused = cap;
    }
    r = &r[p->set.nrefused++];
    *r = (im_train_verify_refusal){.count = 1};
    im_train_verify_name(l, r->first, sizeof r->first);
    snprintf(r->reason, sizeof r->reason, "%s", reason);
    return true;
}

/* With every recompute policy and micro-batch. */
static bool add_sizes(im_context *scratch, const im_plan *base, im_train_verify_layout l, const int64_t *micro, size_t nmicro, im_pool *pool)
{
    for (int rc = 0; rc <= IM_RECOMPUTE_FULL; rc++)
        for (size_t m = 0; m < nmicro; m++) {
            l.recompute = (im_recompute)rc;
            l.micro_batch = micro[m];
            if (!(allowed(scratch, base, &l) ? push(pool, &l) : refuse(pool, &l, im_error_text(scratch))))
                return false;
        }
    return true;
}

/* A mesh with every ZeRO stage, schedule, recompute policy and micro-batch; ZeRO is of data parallelism, sp of tensor parallelism, a schedule of the
 * pipeline. */
static bool add_mesh(im_context *scratch, const im_plan *base, im_train_verify_layout l, const int64_t *micro, size_t nmicro, im_pool *pool)
{
    for (int sp = 0; sp <= (l.tp > 1); sp++)
        for (int zero = 0; zero <= (l.dp > 1 ? 3 : 0); zero++)
            for (int s = 0; s < IM_SCHEDULE_COUNT; s++) {
                if (l.pp == 1 && s != IM_SCHEDULE_1F1B)
                    continue;
                l.sp = sp;
                l.zero = zero;
                l.schedule = (im_schedule)s;
                l.chunks = im_schedule_of(l.schedule)->chunks ? 2 : 1;
                if (!add_sizes(scratch, base, l, micro, nmicro, pool))
                    return false;
            }
    return true;
}

static bool fill_pool(im_context *scratch, const im_plan *base, int ranks, const int64_t *micro, size_t nmicro, im_pool *pool)
{
    for (int n = 1; n <= ranks; n++)
        for (int tp = n; tp >= 1; tp--)
            for (int dp = n / tp; n % tp == 0 && dp >= 1; dp--) {
                im_train_verify_layout l = {
                    .tp = tp, .dp = dp, .pp = n / tp / dp, .schedule = IM_SCHEDULE_1F1B, .chunks = 1, .micro_batch = micro[0]};
                if ((n / tp) % dp)
                    continue;
                im_error_clear(scratch);
                bool ok = im_share_check(scratch, base->model, tp) == IM_OK ? add_mesh(scratch, base, l, micro, nmicro, pool)
                                                                            : refuse(pool, &l, im_error_text(scratch));
                if (!ok)
                    return false;
            }
    return true;
}

/* ---- pairs -------------------------------------------------------------------------------- */

int64_t im_train_verify_factor(const im_train_verify_layout *l, int factor)
{
    int64_t schedule = l->pp > 1 ? 1 + (int64_t)l->schedule * (IM_MAX_CHUNKS + 1) + l->chunks : 0;
    const int64_t value[IM_TRAIN_VERIFY_FACTORS] = {l->tp, l->sp, l->dp, l->pp, l->zero, l->recompute, l->micro_batch, schedule};
    return value[factor];
}

typedef struct pair {
    uint8_t f, g;
    int64_t a, b;
} pair;

static size_t find_pair(const pair *p, size_t n, pair x)
{
    size_t i = 0;
    while (i < n && !(p[i].f == x.f && p[i].g == x.g && p[i].a == x.a && p[i].b == x.b))
        i++;
    return i;
}

enum { PAIRS_A_LAYOUT = IM_TRAIN_VERIFY_FACTORS * (IM_TRAIN_VERIFY_FACTORS - 1) / 2 };

/* The numbers of a layout's pairs; new ones are added to `p`. */
static void pairs_of(const im_train_verify_layout *l, pair *p, size_t *n, uint32_t out[PAIRS_A_LAYOUT])
{
    int k = 0;
    for (int f = 0; f < IM_TRAIN_VERIFY_FACTORS; f++)
        for (int g = f + 1; g < IM_TRAIN_VERIFY_FACTORS; g++) {
            pair x = {(uint8_t)f, (uint8_t)g, im_train_verify_factor(l, f), im_train_verify_factor(l, g)};
            size_t i = find_pair(p, *n, x);
            if (i == *n)
                p[(*n)++] = x;
            out[k++] = (uint32_t)i;
        }
}

static int unseen(const uint32_t *of, const bool *seen)
{
    int n = 0;
    for (int k = 0; k < PAIRS_A_LAYOUT; k++)
        n += !seen[of[k]];
    return n;
}

/* Keeps of the set a cover of its pairs. */
static im_status cover(im_context *ctx, im_train_verify_set *s)
{
    size_t npair = 0, kept = 0;
    im_status status = IM_OK;
    pair *p = calloc(s->n * PAIRS_A_LAYOUT + 1, sizeof *p);
    uint32_t(*of)[PAIRS_A_LAYOUT] = calloc(s->n + 1, sizeof *of);
    bool *seen = calloc(s->n * PAIRS_A_LAYOUT + 1, sizeof *seen), *chosen = calloc(s->n + 1, sizeof *chosen);
    if (!p || !of || !seen || !chosen) {
        status = im_fail(ctx, IM_ERR_NOMEM, "no memory for %zu layouts", s->n);
        goto arrays;
    }
    for (size_t i = 0; i < s->n; i++)
        pairs_of(&s->layout[i], p, &npair, of[i]);
    for (;;) {
        size_t best = 0;
        int most = 0;
        for (size_t i = 0; i < s->n; i++) {
            int n = chosen[i] ? 0 : unseen(of[i], seen);
            if (n > most) { /* of equals the first: fewer ranks, a shorter run */
                most = n;
                best = i;
            }
        }
        if (!most)
            break;
        chosen[best] = true;
        for (int k = 0; k < PAIRS_A_LAYOUT; k++)
            seen[of[best][k]] = true;
    }
    for (size_t i = 0; i < s->n; i++)
        if (chosen[i])
            s->layout[kept++] = s->layout[i];
    s->n = kept;
arrays:
    free(p);
    free(of);
    free(seen);
    free(chosen);
    return status;
}

/* ---- the set ------------------------------------------------------------------------------- */

static im_status add_named(im_context *ctx, const im_plan *base, int ranks, const char *name, int64_t micro_batch, im_pool *pool)
{
    im_train_verify_layout l;
    IM_TRY(im_train_verify_parse(ctx, name, micro_batch, &l));
    im_plan p = im_train_verify_plan(base, &l);
    if (l.tp < 1 || l.dp < 1 || l.pp < 1 || (int64_t)l.tp * l.dp * l.pp > ranks)
        return im_fail(ctx, IM_ERR_ARG, "layouts: %s has %lld ranks; from 1 to --ranks %d", name, (long long)l.tp * l.dp * l.pp, ranks);
    if (l.sp && l.tp == 1)
        return im_fail(ctx, IM_ERR_ARG, "layouts: %s: sp (sequence parallelism) is of tensor parallel ranks; tp2 or more", name);
    im_status status = im_plan_validate(ctx, &p);
    if (status != IM_OK) { /* whatever the rule calls it, here it is a wrong option */
        char reason[IM_TRAIN_VERIFY_REASON];
        snprintf(reason, sizeof reason, "%s", im_error_text(ctx));
        im_error_clear(ctx);
        return im_fail(ctx, IM_ERR_ARG, "layouts: %s: %s", name, reason);
    }
    return push(pool, &l) ? IM_OK : im_fail(ctx, IM_ERR_NOMEM, "no memory for the layouts");
}

static im_status named(im_context *ctx, const im_plan *base, int ranks, const char *list, int64_t micro_batch, im_pool *pool)
{
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        char name[IM_TRAIN_VERIFY_NAME + 1]; /* one more than a name may have, so that one that is too long stays so */
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        if (n)
            IM_TRY(add_named(ctx, base, ranks, name, micro_batch, pool));
        at += n + (at[n] == ',');
    }
    return pool->set.n ? IM_OK : im_fail(ctx, IM_ERR_ARG, "layouts: pairwise, all, or names separated by commas, as in tp2,dp2+zero3");
}

im_status im_train_verify_layouts(im_context *ctx, const im_plan *base, int ranks, const char *which, const int64_t *micro, size_t nmicro,
                                  im_train_verify_set *out)
{
    im_pool pool = {{0}, 0, 0};
    im_status status = IM_OK;
    im_context *scratch = NULL; /* refusals are no errors */
    bool pairwise = strcmp(which, "pairwise") == 0;
    if (pairwise || strcmp(which, "all") == 0) {
        IM_TRY(im_context_create(&scratch));
        if (!fill_pool(scratch, base, ranks, micro, nmicro, &pool))
            status = im_fail(ctx, IM_ERR_NOMEM, "no memory for the layouts");
        im_context_destroy(scratch);
        if (status == IM_OK && pairwise)
            status = cover(ctx, &pool.set);
    } else {
        status = named(ctx, base, ranks, which, micro[nmicro - 1], &pool);
    }
    if (status != IM_OK) {
        im_train_verify_set_free(&pool.set);
        return status;
    }
    *out = pool.set;
    return IM_OK;
}

void im_train_verify_set_free(im_train_verify_set *s)
{
    free(s->layout);
    free(s->refused);
    *s = (im_train_verify_set){0};
}
