/* verify: one rank, then each layout, compared as they end. */
#include "train/verify_internal.h"

#include "checkpoint/session.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(im_train_verify_options, member)
const im_option im_train_verify_rows[IM_TRAIN_VERIFY_ROWS] = {
    {"model", IM_OPT_STRING, NULL, 0, 0, NULL, "Model: a Hugging Face directory, a checkpoint, a run directory, or a named shape.", "DIR", AT(model),
     'm', false, "What"},
    {"data", IM_OPT_STRING, NULL, 0, 0, NULL, "Token file: the prefix of PREFIX.bin and PREFIX.idx (else ids are drawn).", "PREFIX", AT(data), 'd',
     false, NULL},
    {"ranks", IM_OPT_INT, "4", 1, 64, NULL, "Layouts of 1 to N ranks, which are threads.", "N", AT(ranks), 'n', false, NULL},
    {"layouts", IM_OPT_STRING, "pairwise", 0, 0, NULL, "pairwise, all, or names: tp2,tp2+sp,dp2+zero3+full+mb1,pp2+zb-h1.", "WHICH", AT(layouts), 0,
     false, NULL},
    {"steps", IM_OPT_INT, "3", 1, IM_TRAIN_VERIFY_MAX_STEPS, NULL, "Steps that each layout runs.", "N", AT(steps), 0, false, "How"},
    {"seq-len", IM_OPT_INT, "32", 1, 1 << 24, NULL, "Tokens of a sequence.", "N", AT(seq_len), 0, false, NULL},
    {"micro-batch", IM_OPT_INT, "0", 0, 1 << 20, NULL, "Sequences of a micro-batch (0: 1 and 2, as a factor of the layouts).", "N", AT(micro_batch),
     0, false, NULL},
    {"global-batch", IM_OPT_INT, "0", 0, 1 << 20, NULL, "Sequences of a step (0: one more than ranks, which nothing divides).", "N", AT(global_batch),
     0, false, NULL},
    {"seed", IM_OPT_INT, "1", 0, 9e18, NULL, "Seed of drawn weights, drawn ids and dropout.", "N", AT(seed), 0, false, NULL},
    {"tolerance", IM_OPT_REAL, "1e-5", 1e-12, 1, NULL, "Largest relative difference that counts as the same.", "X", AT(tolerance), 0, false, NULL},
    {"strict", IM_OPT_BOOL, "false", 0, 0, NULL,
     "Nothing over the tolerance passes, also where one rank changes as much when the last bits of its weights do (verdict rounding).", NULL,
     AT(strict), 0, false, NULL},
    {"dropout", IM_OPT_REAL, "-1", -1, 0.99, NULL, "Dropout probability (-1: as the model's config says).", "P", AT(dropout), 0, false, NULL},
    {"lr", IM_OPT_REAL, "3e-4", 0, 1e6, NULL, "Learning rate of the steps.", "LR", AT(lr), 0, false, NULL},
    {"kernels", IM_OPT_CHOICE, "fast", 0, 0, "fast|plain", "Kernels.", "WHICH", AT(kernels), 0, false, NULL},
    {"break", IM_OPT_STRING, NULL, 0, 0, NULL,
     "For tests: scale, missing, doubled, group, stale; @K: the K-th collective of a step that it fits; :GROUP: of tp, dp, kv, tied or world.",
     "KIND", AT(fault), 0, true, NULL},
    {"json", IM_OPT_BOOL, "false", 0, 0, NULL, "Print the report as JSON on standard output.", NULL, AT(json), 0, false, NULL},
};

typedef struct im_verify_state {
    im_context *ctx;
    const im_train_verify_options *o;
    const im_train_verify_env *env;
    im_model *model;
    im_tokens *data;
    im_plan base;
    im_engine_fault fault;
    uint64_t fault_at;
    int fault_group; /* as given; -1: not */
    im_train_verify_batch batch;
    float **weight;
    im_train_verify_reference reference;
    im_train_verify_set set;
    im_train_verify_row *row;
    im_train_verify_report report;
    double began;
} im_verify_state;

static void progress(const im_verify_state *v, const char *text)
{
    if (v->env->progress)
        v->env->progress(v->env->arg, text);
}

static bool stopped(const im_verify_state *v)
{
    return v->env->stop && v->env->stop(v->env->arg);
}

/* ---- options ----------------------------------------------------------------------- */

/* `name` as the first n bytes of text. */
static bool is(const char *text, size_t n, const char *name)
{
    return strlen(name) == n && strncmp(name, text, n) == 0;
}

/* KIND, @K, :GROUP */
static im_status parse_fault(im_verify_state *v)
{
    static const char *const kinds[] = {[IM_ENGINE_SCALE] = "scale",
                                        [IM_ENGINE_MISSING] = "missing",
                                        [IM_ENGINE_DOUBLED] = "doubled",
                                        [IM_ENGINE_GROUP] = "group",
                                        [IM_ENGINE_STALE] = "stale"};
    static const char *const groups[IM_GROUP_COUNT] = {
        [IM_GROUP_TP] = "tp", [IM_GROUP_DP] = "dp", [IM_GROUP_KV] = "kv", [IM_GROUP_TIED] = "tied", [IM_GROUP_WORLD] = "world"};
    const char *text = v->o->fault;
    v->fault_at = 1;
    v->fault_group = -1;
    if (!text)
        return IM_OK;
    size_t kind = strcspn(text, "@:");
    char *at = (char *)(uintptr_t)text + kind;
    for (size_t i = 1; i < IM_COUNT_OF(kinds); i++)
        if (is(text, kind, kinds[i]))
            v->fault = (im_engine_fault)i;
    if (*at == '@')
        v->fault_at = strtoull(at + 1, &at, 10);
    for (int g = 0; *at == ':' && g < IM_GROUP_COUNT; g++)
        if (groups[g] && !strcmp(at + 1, groups[g]))
            v->fault_group = g;
    if (!v->fault || !v->fault_at || (*at && (*at != ':' || v->fault_group < 0)))
        return im_fail(v->ctx, IM_ERR_ARG,
                       "break \"%.40s\": scale, missing, doubled, group or stale, then @K from 1, then :tp, dp, kv, tied or world", text);
    return IM_OK;
}

/* In a pipeline the ranks of different stages have different collectives: they must mean the same one. */
static int fault_group(const im_verify_state *v, const im_mesh *m)
{
    if (v->fault_group >= 0 || m->pp == 1)
        return v->fault_group;
    return m->dp > 1 ? IM_GROUP_DP : m->tp > 1 ? IM_GROUP_TP : IM_GROUP_WORLD;
}

static im_status make_base(im_verify_state *v)
{
    const im_train_verify_options *o = v->o;
    im_plan *p = &v->base;
    im_plan_defaults(p, v->model);
    p->seq_len = o->seq_len;
    p->global_batch = o->global_batch ? o->global_batch : o->ranks + 1;
    p->micro_batch = p->global_batch;
    p->dropout = o->dropout < 0 ? -1 : o->dropout;
    p->seed = (uint64_t)o->seed;
    return im_plan_validate(v->ctx, p);
}

static im_status open_data(im_verify_state *v)
{
    v->batch = (im_train_verify_batch){.vocab = v->model->arch.V, .seed = (uint64_t)v->o->seed};
    if (!v->o->data)
        return IM_OK;
    IM_TRY(im_tokens_open(v->ctx, v->o->data, &v->data));
    v->batch.tokens = v->data;
    v->batch.samples = (im_tokens_count(v->data) - 1) / v->o->seq_len;
    if (v->batch.samples < 1)
        return im_fail(v->ctx, IM_ERR_FORMAT, "%s: %" PRId64 " tokens; a sample of --seq-len %" PRId64 " needs one more than that", v->o->data,
                       im_tokens_count(v->data), v->o->seq_len);
    return IM_OK;
}

static im_status choose_layouts(im_verify_state *v)
{
    const int64_t both[2] = {1, 2}, *micro = v->o->micro_batch ? &v->o->micro_batch : both;
    return im_train_verify_layouts(v->ctx, &v->base, (int)v->o->ranks, v->o->layouts, micro, v->o->micro_batch ? 1 : 2, &v->set);
}

/* ---- weights: in memory once --------------------------------------------------------- */

static im_status new_tensors(im_verify_state *v, float ***out)
{
    void *memory;
    IM_TRY(im_alloc(v->ctx, v->model->nparam, sizeof(float *), &memory));
    *out = memory;
    for (size_t i = 0; i < v->model->nparam; i++) {
        IM_TRY(im_alloc(v->ctx, (size_t)im_param_count(&v->model->param[i]), sizeof(float), &memory));
        (*out)[i] = memory;
    }
    return IM_OK;
}

static void free_tensors(const im_verify_state *v, float **t)
{
    for (size_t i = 0; t && i < v->model->nparam; i++)
        free(t[i]);
    free(t);
}

static im_status read_weights(im_verify_state *v)
{
    im_weights *w;
    void *tensor = NULL;
    im_status status;
    IM_TRY(im_weights_open(v->ctx, v->model->dir, &w));
    IM_TRY_GOTO(im_alloc(v->ctx, v->model->nparam, sizeof(im_st_tensor *), &tensor), weights);
    const im_st_tensor **of = tensor;
    IM_TRY_GOTO(im_weights_match(v->ctx, w, v->model, of), weights);
    for (size_t i = 0; i < v->model->nparam; i++) {
        IM_TRY_GOTO(im_weights_read(v->ctx, w, of[i], 0, im_param_count(&v->model->param[i]), IM_F32, v->weight[i]), weights);
        im_weights_release(w, of[i]);
    }
weights:
    free(tensor);
    im_weights_close(w);
    return status;
}

static im_status get_weights(im_verify_state *v)
{
    progress(v, "weights");
    IM_TRY(new_tensors(v, &v->weight));
    v->report.drawn = !im_checkpoint_has_weights(v->model->dir);
    if (!v->report.drawn)
        return read_weights(v);
    int64_t n = (int64_t)v->model->nparam;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i++)
        im_param_init(&v->model->param[i], v->base.seed, 0, im_param_count(&v->model->param[i]), v->weight[i]);
    return IM_OK;
}

/* ---- one layout ------------------------------------------------------------------------ */

/* The bytes of all ranks; refused when there is not so much. */
static im_status predict(im_verify_state *v, const im_plan *p, im_train_verify_row *row)
{
    im_program_want want = {.mode = IM_MODE_TRAIN};
    for (int r = 0; r < row->ranks; r++) {
        im_memory m;
        IM_TRY(im_engine_predict(v->ctx, p, r, &want, 1, &m));
        row->predicted += m.total;
    }
    size_t used = im_process_rss(), machine = im_machine_memory();
    char a[32], b[32], c[32];
    if (row->predicted > machine || used > machine - row->predicted)
        return im_fail(v->ctx, IM_ERR_NOMEM, "%d ranks need %s and %s is in use; this machine has %s: fewer --ranks, or a smaller model", row->ranks,
                       im_format_bytes(a, sizeof a, (double)row->predicted), im_format_bytes(b, sizeof b, (double)used),
                       im_format_bytes(c, sizeof c, (double)machine));
    return IM_OK;
}

/* Over the tolerance, and over what rounding explains. */
static bool over(const im_train_verify_job *j)
{
    bool found = j->loss_step >= 0 || j->norm_step >= 0;
    for (size_t q = 0; q < j->plan->model->nparam; q++)
        found = found || !(im_train_verify_distance(j, q) <= im_train_verify_limit(j->tolerance, j->reference->gradient_rounding[q]));
    return found;
}

static void worst_gradient(const im_train_verify_job *j, im_train_verify_row *row)
{
    const im_model *m = j->plan->model;
    for (size_t q = 0; q < m->nparam; q++) {
        double d = im_train_verify_distance(j, q);
        if (d > row->gradient) {
            row->gradient = d;
            row->param = m->param[q].name;
            row->index = j->tensor[q].index;
        }
    }
}

/* What a parameter does in its unit: the same in all blocks. */
static int slot_of(const im_model *m, size_t q)
{
    for (size_t u = 0; u < m->nunit; u++)
        for (int s = 0; s < IM_SLOT_COUNT; s++)
            if (m->unit[u].param[s] == (int32_t)q)
                return (int)m->unit[u].type * IM_SLOT_COUNT + s;
    return -1;
}

/* The rounding's effect on each gradient: the largest of the same parameter in any block, for one may be small by chance. */
static void note_rounding(im_verify_state *v, const im_train_verify_job *j, im_train_verify_row *row)
{
    const im_model *m = v->model;
    double worst[IM_UNIT_TYPE_COUNT * IM_SLOT_COUNT] = {0};
    for (size_t q = 0; q < m->nparam; q++) {
        double d = im_train_verify_distance(j, q);
        int s = slot_of(m, q);
        if (s >= 0 && d > worst[s])
            worst[s] = d;
    }
    for (size_t q = 0; q < m->nparam; q++)
        v->reference.gradient_rounding[q] = slot_of(m, q) < 0 ? 0 : worst[slot_of(m, q)];
    worst_gradient(j, row);
    row->loss = v->reference.loss_rounding;
    row->norm = v->reference.norm_rounding;
}

static void fail_row(im_train_verify_row *row, const char *error)
{
    row->verdict = IM_TRAIN_VERIFY_FAILED;
    snprintf(row->first, sizeof row->first, "%.*s", (int)sizeof row->first - 1, error);
}

static void tell(const im_verify_state *v, const char *name, const char *what)
{
    char line[200];
    snprintf(line, sizeof line, "%s: %s", name, what);
    progress(v, line);
}

/* Runs a layout that differs once more, with digests, and names the first instruction whose result does. */
static im_status name_first(im_verify_state *v, im_train_verify_job *j, im_train_verify_row *row)
{
    void *trace;
    im_status status = IM_OK;
    tell(v, row->name, "differs; where it begins");
    IM_TRY(im_alloc(v->ctx, (size_t)row->ranks, sizeof(im_train_verify_trace), &trace));
    j->trace = trace;
    for (int r = 0; r < row->ranks; r++)
        IM_TRY_GOTO(im_train_verify_trace_create(v->ctx, j->steps, (int64_t)v->model->nunit, v->base.global_batch, &j->trace[r]), traces);
    for (size_t q = 0; q < v->model->nparam; q++)
        j->tensor[q] = (im_train_verify_tensor){0};
    j->loss = j->norm = 0;
    IM_TRY_GOTO(im_train_verify_run(v->ctx, j), traces);
    if (j->status != IM_OK)
        snprintf(row->first, sizeof row->first, "none was found: the second run failed: %.300s", j->error);
    else if (over(j))
        im_train_verify_blame(j, row, row->first, sizeof row->first);
    else
        snprintf(row->first, sizeof row->first, "none was found: a second run, with more waits in it, computes what one rank computes");
traces:
    for (int r = 0; r < row->ranks; r++)
        im_train_verify_trace_free(&j->trace[r]);
    free(trace);
    j->trace = NULL;
    return status;
}

static im_status judge(im_verify_state *v, im_train_verify_job *j, im_train_verify_row *row)
{
    row->loss = j->loss;
    row->norm = j->norm;
    worst_gradient(j, row);
    if (over(j)) {
        row->verdict = IM_TRAIN_VERIFY_DIFFERS;
        return name_first(v, j, row);
    }
    if (j->fault && !j->broken)
        snprintf(row->first, sizeof row->first, "nothing was broken: a step of this layout has fewer collectives that the fault fits");
    bool same = row->loss <= j->tolerance && row->norm <= j->tolerance && row->gradient <= j->tolerance;
    row->verdict = same ? IM_TRAIN_VERIFY_SAME : IM_TRAIN_VERIFY_ROUNDING;
    return IM_OK;
}

static im_status finish_reference(im_verify_state *v, const im_train_verify_job *j)
{
    im_train_verify_reference *ref = &v->reference;
    for (int64_t i = 0; i < v->o->steps; i++)
        if (!isfinite(ref->loss[i]) || !isfinite(ref->norm[i]))
            return im_fail(v->ctx, IM_ERR_NONFINITE,
                           "one rank: loss %g, gradient norm %g in step %" PRId64 ": nothing to compare with; a smaller --lr?", ref->loss[i],
                           ref->norm[i], i + 1);
    for (size_t q = 0; q < v->model->nparam; q++) {
        double s = 0;
        for (int64_t k = 0, n = im_param_count(&v->model->param[q]); k < n; k++)
            s += (double)ref->gradient[q][k] * ref->gradient[q][k];
        ref->gradient_norm[q] = sqrt(s);
    }
    v->report.loss = ref->loss[0];
    v->report.grad_norm = ref->norm[0];
    if (!v->o->strict)
        note_rounding(v, j, &v->report.rounded);
    return IM_OK;
}

static im_status run_job(im_verify_state *v, im_train_verify_job *j, im_train_verify_row *row)
{
    void *tensor;
    im_status status;
    IM_TRY(im_alloc(v->ctx, v->model->nparam, sizeof(im_train_verify_tensor), &tensor));
    j->tensor = tensor;
    size_t before = im_process_rss();
    IM_TRY_GOTO(im_train_verify_run(v->ctx, j), tensors);
    row->measured = j->resident > before ? j->resident - before : 0;
    if (j->status != IM_OK && j->first)
        status = im_fail(v->ctx, j->status, "one rank failed: %s", j->error);
    else if (j->status != IM_OK)
        fail_row(row, j->error);
    else
        status = j->first ? finish_reference(v, j) : judge(v, j, row);
tensors:
    free(tensor);
    return status;
}

static im_status run_layout(im_verify_state *v, const im_train_verify_layout *l, bool first, im_train_verify_row *row)
{
    im_plan p = im_train_verify_plan(&v->base, l);
    double t0 = im_clock_now();
    *row = (im_train_verify_row){.layout = *l, .ranks = im_mesh_size(&p.mesh), .param = "", .index = -1};
    im_train_verify_name(l, row->name, sizeof row->name);
    int each = im_machine_cores() / row->ranks;
    p.threads = each > 1 ? each : 1;
    im_status status = predict(v, &p, row);
    if (status == IM_OK) {
        im_train_verify_job j = {.plan = &p,
                                 .steps = v->o->steps,
                                 .lr = v->o->lr,
                                 .kernels = (im_kernels)v->o->kernels,
                                 .batch = &v->batch,
                                 .weight = v->weight,
                                 .reference = &v->reference,
                                 .first = first,
                                 .trace = first ? &v->reference.trace : NULL,
                                 .fault = first ? IM_ENGINE_SOUND : v->fault,
                                 .fault_at = v->fault_at,
                                 .fault_group = fault_group(v, &p.mesh),
                                 .tolerance = v->o->tolerance};
        status = run_job(v, &j, row);
    }
    if (status != IM_OK && !first) { /* of this layout; the others go on */
        fail_row(row, im_error_text(v->ctx));
        im_error_clear(v->ctx);
        status = IM_OK;
    }
    row->seconds = im_clock_now() - t0;
    return status;
}

static im_status run_reference(im_verify_state *v)
{
    im_train_verify_layout one = {.tp = 1, .dp = 1, .pp = 1, .schedule = IM_SCHEDULE_1F1B, .chunks = 1, .micro_batch = v->base.global_batch};
    im_train_verify_reference *ref = &v->reference;
    int64_t units = (int64_t)v->model->nunit, samples = v->base.global_batch;
    void *norms;
    progress(v, "one rank, the reference");
    IM_TRY(new_tensors(v, &ref->gradient));
    IM_TRY(im_alloc(v->ctx, v->model->nparam, sizeof(double), &norms));
    ref->gradient_norm = norms;
    IM_TRY(im_alloc(v->ctx, v->model->nparam, sizeof(double), &norms));
    ref->gradient_rounding = norms;
    IM_TRY(im_train_verify_trace_create(v->ctx, v->o->steps, units, samples, &ref->trace));
    if (!v->o->strict)
        IM_TRY(im_train_verify_trace_create(v->ctx, v->o->steps, units, samples, &ref->rounded));
    v->report.rounded.param = "";
    return run_layout(v, &one, true, &v->report.reference);
}

/* How long a layout runs, against others: its products (full recompute: a third more), and what its ranks hold of weights, gradients and moments. */
static double cost(const im_train_verify_layout *l)
{
    static const double held[4] = {16, 8, 4, 0}; /* bytes of each parameter that every data parallel rank has; the rest of 16 is shared out */
    return 1 + (l->recompute == IM_RECOMPUTE_FULL ? 1.0 / 3 : 0) + 0.3 * (held[l->zero] * l->dp + 16 - held[l->zero]) / 16;
}

static void tell_left(const im_verify_state *v, size_t i, double t0)
{
    char line[200], name[IM_TRAIN_VERIFY_NAME];
    double done = 0, left = 0;
    for (size_t k = 0; k < v->set.n; k++)
        *(k < i ? &done : &left) += cost(&v->set.layout[k]);
    im_train_verify_name(&v->set.layout[i], name, sizeof name);
    left *= i ? (im_clock_now() - t0) / done : v->report.reference.seconds / (v->o->strict ? 1.3 : 2.6); /* it ran twice */
    snprintf(line, sizeof line, "%zu/%zu %s | about %.0f:%02.0f left", i + 1, v->set.n, name, floor(left / 60), fmod(floor(left), 60));
    progress(v, line);
}

static im_status run_all(im_verify_state *v)
{
    void *rows;
    IM_TRY(im_alloc(v->ctx, v->set.n + 1, sizeof *v->row, &rows));
    v->row = rows;
    v->report.row = v->row;
    double t0 = im_clock_now();
    for (size_t i = 0; i < v->set.n; i++) {
        if (stopped(v))
            return im_fail(v->ctx, IM_ERR_STOPPED, "stopped after %zu of %zu layouts", i, v->set.n);
        tell_left(v, i, t0);
        IM_TRY(run_layout(v, &v->set.layout[i], false, &v->row[i]));
        v->report.nrow = i + 1;
        v->report.wrong += v->row[i].verdict >= IM_TRAIN_VERIFY_DIFFERS;
        v->report.seconds = im_clock_now() - v->began;
        if (v->env->row)
            v->env->row(v->env->arg, &v->report, &v->row[i]);
    }
    return IM_OK;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static im_status open_all(im_verify_state *v)
{
    char dir[IM_TRAIN_VERIFY_PATH];
    if (!v->o->model)
        return im_fail(v->ctx, IM_ERR_ARG, "which model? --model DIR, or the name of a shape");
    IM_TRY(parse_fault(v));
    IM_TRY(im_checkpoint_resolve(v->ctx, v->o->model, dir, sizeof dir));
    IM_TRY(im_model_open(v->ctx, dir, v->env->models_dir, &v->model));
    IM_TRY(im_model_need_runnable(v->ctx, v->model));
    IM_TRY(make_base(v));
    IM_TRY(open_data(v));
    IM_TRY(choose_layouts(v));
    v->report = (im_train_verify_report){.model = v->o->model,
                                         .ranks = v->o->ranks,
                                         .steps = v->o->steps,
                                         .seq_len = v->o->seq_len,
                                         .global_batch = v->base.global_batch,
                                         .tolerance = v->o->tolerance,
                                         .strict = v->o->strict,
                                         .set = &v->set};
    return IM_OK;
}

im_status im_train_verify_execute(im_context *ctx, const im_train_verify_options *o, const im_train_verify_env *env,
                                  void (*end)(void *arg, const im_train_verify_report *r))
{
    im_verify_state v = {.ctx = ctx, .o = o, .env = env, .began = im_clock_now()};
    im_status status;
    IM_TRY_GOTO(open_all(&v), state);
    IM_TRY_GOTO(get_weights(&v), state);
    IM_TRY_GOTO(run_reference(&v), state);
    if (env->begin)
        env->begin(env->arg, &v.report);
    IM_TRY_GOTO(run_all(&v), state);
    if (end)
        end(env->arg, &v.report);
    if (v.report.wrong)
        status = im_fail(ctx, IM_ERR_CHECK, "%zu of %zu layouts do not compute what one rank computes", v.report.wrong, v.report.nrow);
state:
    if (v.model) {
        free_tensors(&v, v.weight);
        free_tensors(&v, v.reference.gradient);
    }
    free(v.reference.gradient_norm);
    free(v.reference.gradient_rounding);
    im_train_verify_trace_free(&v.reference.trace);
    im_train_verify_trace_free(&v.reference.rounded);
    im_train_verify_set_free(&v.set);
    free(v.row);
    im_tokens_close(v.data);
    im_model_close(v.model);
    return status;
}
