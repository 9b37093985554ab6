/* bench_plan PUBLISHED_DIR CLUSTERS_DIR [PART]: predictions against publications, a row each, and the error.
 *
 * Inputs are the publications' own: sizes, layouts, and where it says so their timings of parts. No figure of a cluster was fitted to a row below. Exit code 0
 * whatever the errors are: this is a measurement, and the bounds that hold are tests. */
#include "base/json.h"
#include "plan/account.h"
#include "plan/estimate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes a parameter that Megatron-LM's optimizer with fp16 and fp32 gradients moves beside AdamW's own and one reading for the norm: gradients set to zero (4),
 * unscaled and looked at for infinities (8), clipped (8), weights copied to fp16 (the fp32 read again, 4) less what our update writes then (2). */
enum { MEGATRON_UPDATE = 22 };

enum { CELLS = 24, LINE = 1024, ROWS = 128 };

static const char *published, *clusters;
static im_context *ctx;

static void die(const char *what)
{
    fprintf(stderr, "bench_plan: %s: %s\n", what, im_error_text(ctx));
    exit(1);
}

/* ---- tables ------------------------------------------------------------------------- */

typedef struct table {
    char text[ROWS][LINE];
    char *cell[ROWS][CELLS];
    int n; /* rows behind the heading */
} table;

static void cut(char *line, char **cell)
{
    int n = 0;
    bool quoted = false;
    char *to = line;
    cell[n++] = to;
    for (char *at = line; *at && *at != '\n' && *at != '\r'; at++) {
        if (*at == '"') {
            quoted = !quoted;
        } else if (*at == ',' && !quoted) {
            *to++ = 0;
            if (n < CELLS)
                cell[n++] = to;
        } else {
            *to++ = *at;
        }
    }
    *to = 0;
    while (n < CELLS)
        cell[n++] = to;
}

static table *load(const char *name)
{
    char path[4096];
    table *t = calloc(1, sizeof *t);
    snprintf(path, sizeof path, "%s/%s", published, name);
    FILE *f = fopen(path, "r");
    if (!f || !t) {
        fprintf(stderr, "bench_plan: %s cannot be read\n", path);
        exit(1);
    }
    char heading[LINE];
    if (!fgets(heading, sizeof heading, f))
        exit(1);
    while (t->n < ROWS && fgets(t->text[t->n], LINE, f)) {
        cut(t->text[t->n], t->cell[t->n]);
        t->n++;
    }
    fclose(f);
    return t;
}

static double number(const table *t, int row, int col)
{
    char *end;
    double x = strtod(t->cell[row][col], &end);
    return end == t->cell[row][col] ? NAN : x;
}

/* ---- a section of rows ---------------------------------------------------------------- */

static struct {
    double error[ROWS], said[ROWS], found[ROWS];
    int n;
} section;

static void begin(const char *title)
{
    printf("\n%s\n%-52s %12s %12s %10s\n", title, "", "published", "predicted", "error");
    section.n = 0;
}

/* points: the error is a difference of percentages, else relative */
static void row(const char *name, double said, double found, bool points)
{
    double error = points ? 100 * (found - said) : 100 * (found / said - 1);
    printf("%-52s %12.5g %12.5g %+9.2f%s\n", name, said, found, error, points ? " pt" : " %");
    if (section.n < ROWS) {
        section.said[section.n] = said;
        section.found[section.n] = found;
        section.error[section.n++] = fabs(error);
    }
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double rank_correlation(void)
{
    double n = section.n, sum = 0;
    for (int i = 0; i < section.n; i++) {
        double a = 0, b = 0; /* middle ranks of ties */
        for (int j = 0; j < section.n; j++) {
            a += section.said[j] < section.said[i] ? 1 : section.said[j] == section.said[i] ? 0.5 : 0;
            b += section.found[j] < section.found[i] ? 1 : section.found[j] == section.found[i] ? 0.5 : 0;
        }
        sum += (a - b) * (a - b);
    }
    return 1 - 6 * sum / (n * (n * n - 1));
}

static void finish(double bound, const char *unit)
{
    double sorted[ROWS];
    int within = 0;
    memcpy(sorted, section.error, sizeof(double) * (size_t)section.n);
    qsort(sorted, (size_t)section.n, sizeof *sorted, rising);
    for (int i = 0; i < section.n; i++)
        within += section.error[i] <= bound;
    if (section.n)
        printf("median %.2f%s, largest %.2f%s; %d of %d rows within %g%s\n", sorted[section.n / 2], unit, sorted[section.n - 1], unit, within,
               section.n, bound, unit);
}

/* ---- models, plans, clusters ------------------------------------------------------------ */

static im_model *shape(const char *family, int64_t D, int64_t L, int64_t H, int64_t V, int64_t T)
{
    char text[1024];
    im_json *doc;
    im_model *m;
    if (!strcmp(family, "bloom"))
        snprintf(text, sizeof text,
                 "{\"model_type\":\"bloom\",\"hidden_size\":%lld,\"n_layer\":%lld,\"n_head\":%lld,\"vocab_size\":%lld,\"layer_norm_epsilon\":1e-5,"
                 "\"initializer_range\":0.02,\"apply_residual_connection_post_layernorm\":false,\"hidden_dropout\":0.0,\"attention_dropout\":0.0,"
                 "\"seq_length\":%lld}",
                 (long long)D, (long long)L, (long long)H, (long long)V, (long long)T);
    else
        snprintf(text, sizeof text,
                 "{\"model_type\":\"gpt2\",\"n_embd\":%lld,\"n_layer\":%lld,\"n_head\":%lld,\"vocab_size\":%lld,\"n_positions\":%lld,\"n_ctx\":%lld,"
                 "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,\"initializer_range\":0.02,\"tie_word_embeddings\":true,"
                 "\"attn_pdrop\":0.1,\"embd_pdrop\":0.1,\"resid_pdrop\":0.1}",
                 (long long)D, (long long)L, (long long)H, (long long)V, (long long)T, (long long)T);
    if (im_json_parse(ctx, "shape", text, strlen(text), &doc) != IM_OK || im_model_parse(ctx, doc, &m) != IM_OK)
        die(text);
    im_json_free(doc);
    return m;
}

static im_cluster *machines(const char *name)
{
    im_cluster *c;
    if (im_cluster_open(ctx, name, clusters, &c) != IM_OK)
        die(name);
    return c;
}

static im_plan layout(const im_model *m, int tp, int dp, int pp, int64_t mbs, int64_t gbs)
{
    im_plan p;
    im_plan_defaults(&p, m);
    p.mesh = (im_mesh){tp, 1, dp, pp};
    p.seq_len = 2048;
    p.micro_batch = mbs;
    p.global_batch = gbs;
    p.precision = IM_BF16;
    p.recompute = IM_RECOMPUTE_FULL;
    p.threads = 1;
    return p;
}

/* Seconds of a step; < 0: refused, with why on stdout. */
static double step_of(const im_plan *p, const im_cluster *c, double drop, bool dp_blocks, im_estimate *keep)
{
    im_estimate e;
    im_estimate_options o = {.cost = {.attention = IM_ATTENTION_UNFUSED, .drop = drop, .head_whole = true, .update_more = MEGATRON_UPDATE},
                             .recompute_block = true,
                             .tp_blocks = true,
                             .dp_blocks = dp_blocks};
    if (im_plan_validate_shape(ctx, p) != IM_OK || im_estimate_open(ctx, p, c, &o, &e) != IM_OK) {
        printf("  refused: %s\n", im_error_text(ctx));
        im_error_clear(ctx);
        return -1;
    }
    double step = e.step;
    if (keep)
        *keep = e;
    else
        im_estimate_close(&e);
    return step;
}

/* ---- memory ------------------------------------------------------------------------------ */

static void zero_memory(void)
{
    table *t = load("zero_table1_memory.csv");
    begin("ZeRO, table 1 (arXiv:1910.02054): GB a device");
    for (int i = 0; i < t->n; i++) {
        char name[80];
        double params = number(t, i, 0) * (strchr(t->cell[i][0], 'T') ? 1e12 : 1e9);
        int stage = !strcmp(t->cell[i][1], "Pos") ? 1 : !strcmp(t->cell[i][1], "Pos+g") ? 2 : 3;
        snprintf(name, sizeof name, "%s %s over %s", t->cell[i][0], t->cell[i][1], t->cell[i][2]);
        row(name, number(t, i, 3), im_account_zero(params, stage, (int)number(t, i, 2), 12) / 1e9, false);
    }
    finish(2, " %");
    free(t);
    t = load("zero_fig1_memory.csv");
    begin("ZeRO, figure 1: 7.5 G parameters over 64 devices, GB");
    for (int i = 0; i < t->n; i++)
        row(t->cell[i][0], number(t, i, 2), im_account_zero(7.5e9, i, 64, 12) / 1e9, false);
    finish(2, " %");
    free(t);
}

/* ---- Zero Bubble: table 5 from table 6's timings ------------------------------------------- */

typedef struct timings {
    double f, b, w, comm;
    int chunks;
} timings;

typedef struct pipe {
    const timings *t;
    int p, m, v;
    double *end; /* [part][virtual stage][mb]; < 0: not done */
} pipe;

static double *end_of(const pipe *q, int part, int stage, int mb)
{
    return &q->end[((size_t)part * (size_t)(q->p * q->v) + (size_t)stage) * (size_t)q->m + (size_t)mb];
}

/* When a task may start by what it reads; < 0: not yet. Messages go as soon as there is what they carry, and take their time. */
static double ready(const pipe *q, int r, const im_task *t)
{
    int s = t->chunk * q->p + r, last = q->p * q->v - 1;
    double late = q->t->comm, before;
    if (t->part == IM_PART_FORWARD) {
        before = s ? *end_of(q, IM_PART_FORWARD, s - 1, t->mb) : 0;
        return before < 0 ? -1 : before + (s ? late : 0);
    }
    if (t->part == IM_PART_WEIGHT)
        return *end_of(q, IM_PART_INPUT, s, t->mb);
    before = *end_of(q, IM_PART_FORWARD, s, t->mb);
    if (before < 0 || s == last)
        return before;
    double next = *end_of(q, t->part, s + 1, t->mb);
    return next < 0 ? -1 : fmax(before, next + late);
}

static double length(const pipe *q, int part)
{
    const timings *t = q->t;
    double whole = part == IM_PART_FORWARD ? t->f : part == IM_PART_BACKWARD ? t->b + t->w : part == IM_PART_INPUT ? t->b : t->w;
    return whole / q->v;
}

/* Share of a stage's own span, first forward to last part, in which it is idle; of the stage where that is longest. The lists are those that our programs
 * are made from; messages are the paper's system's: ours hands a message over when both sides are there, which costs interleaved stages more. */
static double idle_share(im_schedule s, int p, int m, const timings *t)
{
    pipe q = {t, p, m, t->chunks, NULL};
    size_t cells = 4 * (size_t)(p * q.v) * (size_t)m, n = 0;
    im_task *task = malloc(sizeof *task * 3 * (size_t)(m * q.v));
    double *from = calloc((size_t)p, sizeof *from), *now = calloc((size_t)p, sizeof *now), longest = 0;
    size_t *at = calloc((size_t)p, sizeof *at);
    q.end = malloc(sizeof(double) * cells);
    if (!task || !from || !now || !at || !q.end)
        exit(1);
    for (size_t i = 0; i < cells; i++)
        q.end[i] = -1;
    for (int r = 0; r < p; r++)
        from[r] = -1;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++) {
            n = im_schedule_of(s)->tasks(p, m, q.v, r, task);
            for (double start; at[r] < n && (start = ready(&q, r, &task[at[r]])) >= 0; at[r]++, moved = true) {
                start = fmax(start, now[r]);
                from[r] = from[r] < 0 ? start : from[r];
                now[r] = start + length(&q, task[at[r]].part);
                *end_of(&q, task[at[r]].part, task[at[r]].chunk * p + r, task[at[r]].mb) = now[r];
            }
        }
    }
    for (int r = 0; r < p; r++)
        longest = fmax(longest, now[r] - from[r]);
    free(task);
    free(from);
    free(now);
    free(at);
    free(q.end);
    return 1 - m * (t->f + t->b + t->w) / longest;
}

static void zero_bubble(void)
{
    static const struct {
        const char *name;
        im_schedule s;
    } kinds[] = {{"1F1B", IM_SCHEDULE_1F1B}, {"1F1B-I", IM_SCHEDULE_INTERLEAVED}, {"ZB-H1", IM_SCHEDULE_ZB_H1}, {"ZB-H2", IM_SCHEDULE_ZB_H2}};
    table *rates = load("zerobubble_table5_bubble_rates.csv"), *times = load("zerobubble_table6_timings.csv"),
          *sizes = load("zerobubble_table3_configs.csv");
    begin("Zero Bubble, table 5 (arXiv:2401.10241) from table 6's timings: bubble");
    for (int i = 0; i < rates->n; i++)
        for (size_t k = 0; k < IM_COUNT_OF(kinds); k++) {
            if (strcmp(rates->cell[i][3], kinds[k].name))
                continue;
            timings t = {.chunks = 1};
            char name[80];
            for (int j = 0; j < times->n; j++)
                if (!strcmp(times->cell[j][0], rates->cell[i][0]) && number(times, j, 2) == number(rates, i, 2))
                    t.f = number(times, j, 3), t.b = number(times, j, 4), t.w = number(times, j, 5), t.comm = number(times, j, 6);
            for (int j = 0; j < sizes->n; j++) /* the first and last stage have a layer less each; interleaved: a layer a chunk */
                if (!strcmp(sizes->cell[j][0], rates->cell[i][0]) && kinds[k].s == IM_SCHEDULE_INTERLEAVED)
                    t.chunks = (int)((number(sizes, j, 1) + 2) / number(rates, i, 1));
            snprintf(name, sizeof name, "%s p %s m %s %s", rates->cell[i][0], rates->cell[i][1], rates->cell[i][2], rates->cell[i][3]);
            row(name, number(rates, i, 4), idle_share(kinds[k].s, (int)number(rates, i, 1), (int)number(rates, i, 2), &t), true);
        }
    finish(1.5, " pt");
    free(rates);
    free(times);
    free(sizes);
}

/* ---- Korthikanti: table 5 from table 4's layer times ------------------------------------------ */

typedef struct layers {
    im_cost *cost;
    double forward, backward; /* of a block, its recomputation in the backward */
} layers;

static im_event_price layer_price(void *arg, const im_program *p, const im_bound *x)
{
    const layers *l = arg;
    const im_step *s = &p->step[x->step];
    const im_cost_group *g = im_cost_path(l->cost, p, x);
    bool block = s->verb != IM_SEND && s->verb != IM_RECV && s->mb >= 0 && s->verb != IM_LOAD && s->verb != IM_REDUCE &&
                 p->plan->model->unit[s->target].type == IM_UNIT_BLOCK;
    if (!block)
        return (im_event_price){.seconds = im_cost_price(l->cost, p, x), .network = g && g->domains > 1};
    if (x->op->kind == &im_op_attention && s->verb == IM_FORWARD)
        return (im_event_price){.seconds = l->forward};
    if (x->op->kind == &im_op_attention_grad)
        return (im_event_price){.seconds = l->backward};
    return (im_event_price){.seconds = 0};
}

static double with_layers(const im_plan *p, const im_cluster *c, double forward, double backward)
{
    im_fold f;
    im_timeline t;
    layers l = {.forward = forward, .backward = backward};
    im_cost_options o = {.attention = IM_ATTENTION_UNFUSED, .drop = 0.1, .head_whole = true, .update_more = MEGATRON_UPDATE};
    if (im_plan_validate_shape(ctx, p) != IM_OK || im_cost_open(ctx, c, p, &o, &l.cost) != IM_OK || im_fold_open(ctx, p, false, &f) != IM_OK ||
        im_events_run(ctx, (const im_program *const *)f.program, f.n, layer_price, &l, &t) != IM_OK)
        die("a table of Korthikanti et al.");
    double total = t.total;
    im_timeline_free(&t);
    im_fold_close(&f);
    im_cost_close(l.cost);
    return total;
}

static const struct {
    const char *name;
    im_recompute r;
    bool sp;
} layer_kinds[] = {{"layer, no recompute", IM_RECOMPUTE_NONE, false},
                   {"layer, sequence parallel", IM_RECOMPUTE_NONE, true},
                   {"layer, full recompute", IM_RECOMPUTE_FULL, false},
                   {"layer, selective recompute", IM_RECOMPUTE_SELECTIVE, false},
                   {"layer, selective, sequence parallel", IM_RECOMPUTE_SELECTIVE, true}};

/* Forward and backward of a layer over 8 devices: what a model of 5 layers takes more than one of 1, over 4 of them, update left out. */
static double layer_seconds(const im_cluster *c, int64_t h, int64_t heads, int64_t b, int kind)
{
    double t[2];
    for (int i = 0; i < 2; i++) {
        im_estimate e;
        im_model *m = shape("gpt2", h, i ? 5 : 1, heads, 51200, 2048);
        im_plan p = layout(m, 8, 1, 1, b, b);
        p.dropout = 0.1;
        p.recompute = layer_kinds[kind].r;
        p.sequence_parallel = layer_kinds[kind].sp;
        if (step_of(&p, c, 0.1, false, &e) < 0)
            die("a layer");
        t[i] = e.step - e.stage[0].update;
        im_estimate_close(&e);
        im_model_close(m);
    }
    return (t[1] - t[0]) / 4;
}

static void korthikanti(void)
{
    table *layer = load("korthikanti_table4_layer_times.csv"), *steps = load("korthikanti_table5_iteration.csv");
    im_cluster *c = machines("selene");
    double full_f = number(layer, 2, 1) / 1e3, full_b = number(layer, 2, 2) / 1e3, both_f = number(layer, 4, 1) / 1e3,
           both_b = number(layer, 4, 2) / 1e3;
    begin("Korthikanti et al., table 5 (arXiv:2205.05198): seconds, 22B from table 4's layer times, 175B from these scaled");
    im_model *m = shape("gpt2", 6144, 48, 64, 51200, 2048);
    im_plan p = layout(m, 8, 1, 1, 4, 4);
    p.dropout = 0.1;
    row("22B full recompute", number(steps, 0, 2), with_layers(&p, c, full_f, full_b), false);
    p.recompute = IM_RECOMPUTE_SELECTIVE;
    p.sequence_parallel = true;
    row("22B selective, sequence parallel", number(steps, 0, 3), with_layers(&p, c, both_f, both_b), false);
    finish(5, " %");
    im_model_close(m);
    /* b 1, h 12288: as many FLOPs a layer, half the bytes; scaled as our own figures of both layers are */
    double more = layer_seconds(c, 12288, 96, 1, 2) / layer_seconds(c, 6144, 64, 4, 2),
           more_both = layer_seconds(c, 12288, 96, 1, 4) / layer_seconds(c, 6144, 64, 4, 4);
    full_f *= more, full_b *= more, both_f *= more_both, both_b *= more_both;
    m = shape("gpt2", 12288, 96, 96, 51200, 2048);
    p = layout(m, 8, 1, 8, 1, 64);
    p.dropout = 0.1;
    p.schedule = IM_SCHEDULE_INTERLEAVED;
    p.chunks = 3;
    row("175B full recompute", number(steps, 1, 2), with_layers(&p, c, full_f, full_b), false);
    p.recompute = IM_RECOMPUTE_SELECTIVE;
    p.sequence_parallel = true;
    row("175B selective, sequence parallel", number(steps, 1, 3), with_layers(&p, c, both_f, both_b), false);
    im_model_close(m);
    begin("the same from the cluster's figures alone: a layer (b 4, h 6144, t 8) in ms, then the steps");
    for (size_t i = 0; i < IM_COUNT_OF(layer_kinds); i++)
        row(layer_kinds[i].name, number(layer, (int)i, 3), 1e3 * layer_seconds(c, 6144, 64, 4, (int)i), false);
    m = shape("gpt2", 6144, 48, 64, 51200, 2048);
    for (int i = 0; i < 2; i++) {
        p = layout(m, 8, 1, 1, 4, 4);
        p.dropout = 0.1;
        p.recompute = i ? IM_RECOMPUTE_SELECTIVE : IM_RECOMPUTE_FULL;
        p.sequence_parallel = i;
        row(i ? "22B step, selective, sequence parallel" : "22B step, full recompute", number(steps, 0, 2 + i), step_of(&p, c, 0.1, false, NULL),
            false);
    }
    finish(12, " %");
    im_model_close(m);
    im_cluster_close(c);
    free(layer);
    free(steps);
}

/* ---- Megatron 2021, table 1 ------------------------------------------------------------------------ */

static void megatron_rows(bool calibrated)
{
    /* micro-batch, blocks of a chunk (0: not interleaved), and whether gradients are reduced behind the backward: NVIDIA/Megatron-LM
     * examples/sc21/run_table_1.sh, which goes with the paper */
    static const struct {
        int mbs, blocks;
        bool local;
    } more[] = {{16, 0, false}, {16, 0, false}, {16, 0, false}, {8, 0, false}, {4, 0, true},
                {2, 5, true},   {2, 5, true},   {1, 3, true},   {1, 1, true},  {1, 0, true}};
    table *t = load("megatron2021_table1.csv");
    im_cluster *c = machines("selene");
    /* how much longer a layer takes on this system than the data sheets say: the median of table 4 of Korthikanti et al., another model and paper */
    double slower = 1;
    if (calibrated) {
        table *layer = load("korthikanti_table4_layer_times.csv");
        double each[IM_COUNT_OF(layer_kinds)];
        for (size_t i = 0; i < IM_COUNT_OF(layer_kinds); i++)
            each[i] = number(layer, (int)i, 3) / 1e3 / layer_seconds(c, 6144, 64, 4, (int)i);
        qsort(each, IM_COUNT_OF(layer_kinds), sizeof *each, rising);
        slower = each[IM_COUNT_OF(layer_kinds) / 2];
        free(layer);
        c->device.peak[IM_NUMBER_BF16] /= slower;
        c->device.memory_rate /= slower;
        c->domain.rate /= slower;
        printf("\ncalibrated on Korthikanti et al., table 4: devices and their links %.3f times slower than the cluster file says", slower);
    }
    begin(calibrated ? "Megatron-LM, table 1, so calibrated" : "Megatron-LM, table 1 (arXiv:2104.04473): hardware TFLOP/s a device, full recompute");
    for (int i = 0; i < t->n && i < (int)IM_COUNT_OF(more); i++) {
        int64_t h = (int64_t)number(t, i, 2), L = (int64_t)number(t, i, 3), B = (int64_t)number(t, i, 7);
        int tp = (int)number(t, i, 4), pp = (int)number(t, i, 5), gpus = (int)number(t, i, 6);
        im_model *m = shape("gpt2", h, L, (int64_t)number(t, i, 1), 51200, 2048);
        im_plan p = layout(m, tp, gpus / tp / pp, pp, more[i].mbs, B);
        char name[80];
        p.dropout = 0.1;
        if (more[i].blocks) {
            p.schedule = IM_SCHEDULE_INTERLEAVED;
            p.chunks = (int)L / pp / more[i].blocks;
            if (p.chunks < 2)
                p.schedule = IM_SCHEDULE_1F1B, p.chunks = 1;
        }
        snprintf(name, sizeof name, "%sB, %d devices, tp %d pp %d, micro-batch %d", t->cell[i][0], gpus, tp, pp, more[i].mbs);
        double step = step_of(&p, c, 0.1, more[i].local, NULL), flops = 96.0 * (double)B * 2048 * (double)L * (double)h * (double)h *
                                                                        (1 + 2048.0 / (6.0 * (double)h) + 51200.0 / (16.0 * (double)L * (double)h));
        if (step > 0)
            row(name, number(t, i, 8), flops / (step * gpus) / 1e12, false);
        im_model_close(m);
    }
    finish(12, " %");
    im_cluster_close(c);
    free(t);
}

static void megatron(void)
{
    megatron_rows(false);
    megatron_rows(true);
}

/* ---- NCCL --------------------------------------------------------------------------------------------- */

static void nccl(void)
{
    table *t = load("nccl_allreduce_curves.csv");
    im_model *m = shape("gpt2", 1024, 2, 16, 128, 64);
    begin("NCCL all-reduce above 1 MiB: GB/s (bus)");
    for (int i = 0; i < t->n; i++) {
        int ranks = (int)number(t, i, 1);
        double bytes = number(t, i, 3), said = number(t, i, 6);
        if (bytes <= 1 << 20)
            continue;
        im_cluster *c = machines(strstr(t->cell[i][0], "H100") ? "h100" : strstr(t->cell[i][0], "40GB") ? "a100-40" : "a100-80");
        im_plan p = layout(m, 1, ranks, 1, 1, ranks);
        im_cost *k;
        char name[80], size[32];
        if (im_cost_open(ctx, c, &p, NULL, &k) != IM_OK)
            die(t->cell[i][0]);
        im_cost_coll r = im_cost_collective(k, IM_COLL_ALL_REDUCE, IM_GROUP_DP, bytes);
        snprintf(name, sizeof name, "%s, %s (%s)", t->cell[i][0], im_format_bytes(size, sizeof size, bytes), r.algorithm);
        row(name, said, 2.0 * (ranks - 1) / ranks * bytes / r.seconds / 1e9, false);
        im_cost_close(k);
        im_cluster_close(c);
    }
    finish(15, " %");
    im_model_close(m);
    free(t);
}

/* ---- BLOOM ------------------------------------------------------------------------------------------------ */

static void bloom(void)
{
    table *t = load("bloom_sweep.csv");
    im_cluster *c = machines("jean-zay");
    begin("BLOOM's sweep (bigscience chronicles): seconds a step, full recompute");
    for (int i = 0; i < t->n; i++) {
        /* section, nodes, gpus, size, hidden, layers, heads, zero, dp, tp, pp, mbs, gbs, mem_GB, sec_per_iter */
        double said = number(t, i, 14);
        int zero = (int)number(t, i, 7), dp = (int)number(t, i, 8), tp = (int)number(t, i, 9), pp = (int)number(t, i, 10);
        if (!(said > 0))
            continue; /* out of memory */
        im_model *m = shape("bloom", (int64_t)number(t, i, 4), (int64_t)number(t, i, 5), (int64_t)number(t, i, 6), 250880, 2048);
        im_plan p = layout(m, tp, dp, pp, (int64_t)number(t, i, 11), (int64_t)number(t, i, 12));
        char name[80];
        p.zero = zero;
        snprintf(name, sizeof name, "%s h %s L %s, dp %d tp %d pp %d, mbs %s gbs %s, zero %d", t->cell[i][3], t->cell[i][4], t->cell[i][5], dp, tp,
                 pp, t->cell[i][11], t->cell[i][12], zero);
        double step = step_of(&p, c, 0, true, NULL);
        if (step > 0)
            row(name, said, step, false);
        im_model_close(m);
    }
    printf("rank correlation %.3f\n", rank_correlation());
    finish(10, " %");
    im_cluster_close(c);
    free(t);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4 || im_context_create(&ctx) != IM_OK) {
        fprintf(stderr, "usage: bench_plan PUBLISHED_DIR CLUSTERS_DIR [zero|zero-bubble|korthikanti|megatron|nccl|bloom]\n");
        return 2;
    }
    published = argv[1];
    clusters = argv[2];
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"zero", zero_memory}, {"zero-bubble", zero_bubble}, {"korthikanti", korthikanti}, {"megatron", megatron}, {"nccl", nccl},
                 {"bloom", bloom}};
    for (size_t i = 0; i < IM_COUNT_OF(parts); i++)
        if (argc < 4 || !strcmp(argv[3], parts[i].name))
            parts[i].run();
    im_context_destroy(ctx);
    return 0;
}
