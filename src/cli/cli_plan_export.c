/* imece plan export: the same layout in another system's words, and what these words cannot say. */
#include "cli/cli_plan_parts.h"
#include "cli/layout_rows.h"

#include <stdio.h>
#include <string.h>

typedef struct export_options {
    im_cli_layout layout; /* first: see layout_rows.h */
    const char *out;
    int to;
} export_options;

#define AT(field) offsetof(export_options, field)
static const im_option rows[] = {
    IM_CLI_LAYOUT_ROWS,
    {"to", IM_OPT_CHOICE, "megatron", 0, 0, "megatron|deepspeed",
     "Megatron-LM's arguments, one a line, or DeepSpeed's configuration as JSON. Notes go to standard error.", "SYSTEM", AT(to), 0, false, "Result"},
    {"out", IM_OPT_STRING, NULL, 0, 0, NULL, "Write to this file instead of standard output.", "FILE", AT(out), 'o', false, NULL},
};
#undef AT

typedef struct writer {
    im_cli *cli;
    const im_plan *p;
    im_str out;
} writer;

static void note(const writer *w, const char *text)
{
    im_log(w->cli->ctx, IM_LOG_WARN, "export", "%s", text);
}

static bool batch_divides(const im_plan *p)
{
    return p->global_batch % (p->micro_batch * p->mesh.dp) == 0;
}

/* ---- Megatron-LM ----------------------------------------------------------------------------------- */

static void megatron_model(writer *w)
{
    const im_arch *a = &w->p->model->arch;
    im_str *o = &w->out;
    im_str_printf(o, "--num-layers %lld\n--hidden-size %lld\n--ffn-hidden-size %lld\n--num-attention-heads %lld\n--kv-channels %lld\n",
                  (long long)a->L, (long long)a->D, (long long)a->F, (long long)a->H, (long long)a->E);
    if (a->K != a->H)
        im_str_printf(o, "--group-query-attention\n--num-query-groups %lld\n", (long long)a->K);
    im_str_printf(o, "--vocab-size %lld\n--seq-length %lld\n--max-position-embeddings %lld\n", (long long)a->V, (long long)w->p->seq_len,
                  (long long)(a->P ? a->P : w->p->seq_len));
    im_str_printf(o, "--normalization %s\n--norm-epsilon %g\n", a->norm == IM_NORM_RMS ? "RMSNorm" : "LayerNorm", a->norm_eps);
    im_str_append(o, a->learned_positions ? "--position-embedding-type learned_absolute\n" : a->rope_dims ? "--position-embedding-type rope\n" : "");
    if (a->rope_dims)
        im_str_printf(o, "--rotary-base %.0f\n", a->rope_theta);
    im_str_append(o, a->gated ? "--swiglu\n" : "");
    im_str_append(o, a->tied ? "" : "--untie-embeddings-and-output-weights\n");
    im_str_append(o, w->p->model->unit[1].param[IM_SLOT_O_B] < 0 ? "--disable-bias-linear\n" : "");
    if (a->rope_dims && (a->rope_scaling != IM_ROPE_PLAIN || a->rope_dims != a->E))
        note(w, "rotary scaling, or a part of the head that is rotated, is not exported: --rotary-percent and --use-rope-scaling are for you to set");
    if (a->alibi || a->residual != IM_RESIDUAL_PRE || a->qk_norm != IM_QK_NORM_NONE)
        note(w, "alibi, norms elsewhere than before their part, and norms of queries and keys are not exported");
}

static void megatron_pipeline(writer *w)
{
    const im_plan *p = w->p;
    im_str *o = &w->out;
    int v = im_plan_chunks(p);
    bool even = p->model->arch.L % ((int64_t)p->mesh.pp * v) == 0;
    if (p->schedule == IM_SCHEDULE_GPIPE || im_schedule_of(p->schedule)->splits)
        note(w, "the schedule is not one of Megatron's: it runs 1F1B");
    if (v > 1 && even)
        im_str_printf(o, "--num-layers-per-virtual-pipeline-stage %lld\n", (long long)(p->model->arch.L / (p->mesh.pp * v)));
    if (p->mesh.pp > 1 && !even)
        note(w, "the blocks are not a multiple of the stages: Megatron wants --pipeline-model-parallel-layout or other stages");
    else if (p->mesh.pp > 1 && p->stages != IM_STAGES_EVEN)
        note(w, "stages of unlike sizes are not exported: Megatron takes the even split");
    if (v > 1 && im_plan_micro_batches(p, 0) % p->mesh.pp)
        note(w, "with chunks Megatron wants the micro-batches to be a multiple of the stages");
}

static void megatron(writer *w)
{
    const im_plan *p = w->p;
    im_str *o = &w->out;
    megatron_model(w);
    im_str_printf(o, "--tensor-model-parallel-size %d\n--pipeline-model-parallel-size %d\n--micro-batch-size %lld\n--global-batch-size %lld\n",
                  p->mesh.tp, p->mesh.pp, (long long)p->micro_batch, (long long)p->global_batch);
    im_str_append(o, p->sequence_parallel ? "--sequence-parallel\n" : "");
    im_str_append(o, p->precision == IM_BF16 ? "--bf16\n" : "");
    im_str_append(o, p->zero ? "--use-distributed-optimizer\n" : "");
    megatron_pipeline(w);
    if (p->recompute == IM_RECOMPUTE_SELECTIVE)
        im_str_append(o, "--recompute-granularity selective\n");
    if (p->recompute == IM_RECOMPUTE_FULL)
        im_str_append(o, "--recompute-granularity full\n--recompute-method uniform\n--recompute-num-layers 1\n");
    if (p->zero >= 2)
        note(w, "ZeRO 2 and 3: Megatron's distributed optimizer is ZeRO 1, and that is what is exported");
    if (!batch_divides(p))
        note(w, "the global batch is not a multiple of micro-batch x dp: Megatron refuses that");
    if (p->model->arch.H % p->mesh.tp || p->model->arch.F % p->mesh.tp)
        note(w, "tp does not divide the heads or the feed-forward size: Megatron refuses that");
    im_str_printf(&w->out, "--adam-beta1 %g\n--adam-beta2 %g\n--adam-eps %g\n--weight-decay %g\n", p->beta1, p->beta2, p->eps, p->weight_decay);
}

/* ---- DeepSpeed ------------------------------------------------------------------------------------------ */

static void deepspeed(writer *w)
{
    const im_plan *p = w->p;
    int64_t steps = im_plan_micro_batches(p, 0);
    im_str_printf(&w->out,
                  "{\n  \"train_batch_size\": %lld,\n  \"train_micro_batch_size_per_gpu\": %lld,\n  \"gradient_accumulation_steps\": %lld,\n"
                  "  \"zero_optimization\": {\"stage\": %d},\n  \"bf16\": {\"enabled\": %s},\n  \"optimizer\": {\"type\": \"AdamW\", \"params\": "
                  "{\"betas\": [%g, %g], \"eps\": %g, \"weight_decay\": %g}}\n}\n",
                  (long long)(steps * p->micro_batch * p->mesh.dp), (long long)p->micro_batch, (long long)steps, p->zero,
                  p->precision == IM_BF16 ? "true" : "false", p->beta1, p->beta2, p->eps, p->weight_decay);
    if (!batch_divides(p))
        note(w, "the global batch is not a multiple of micro-batch x dp: the train_batch_size that is exported is the next one that is");
    if (p->mesh.tp > 1)
        note(w, "tp is not part of this file: the model's code (or Megatron's arguments) splits the layers");
    if (p->mesh.pp > 1)
        note(w, "pp is not part of this file: PipelineModule takes num_stages and its partition_method; it runs 1F1B");
    if (p->mesh.pp > 1 && p->zero >= 2)
        note(w, "DeepSpeed's pipeline refuses ZeRO 2 and 3");
    if (p->recompute)
        note(w, "recomputation is not part of this file: PipelineModule's activation_checkpoint_interval, or the model's code");
    if (p->sequence_parallel)
        note(w, "sequence parallelism is not part of this file");
}

/* ---- the command --------------------------------------------------------------------------------------------- */

static im_status write_out(im_cli *cli, const export_options *o, const im_plan *p)
{
    writer w = {.cli = cli, .p = p};
    (o->to ? deepspeed : megatron)(&w);
    im_status status = w.out.failed ? im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the result") : IM_OK;
    if (status == IM_OK && o->out)
        status = im_file_write_atomic(cli->ctx, o->out, w.out.data, w.out.len);
    else if (status == IM_OK)
        fputs(im_str_text(&w.out), stdout);
    im_str_free(&w.out);
    return status;
}

static im_status export(im_cli *cli, const export_options *o, const im_train_options *t)
{
    im_model *m;
    im_plan p;
    IM_TRY(im_cli_layout_plan(cli, t, &m, &p));
    im_status status = im_plan_validate_shape(cli->ctx, &p);
    if (status == IM_OK)
        status = write_out(cli, o, &p);
    im_model_close(m);
    return status;
}

static int run(im_cli *cli, int argc, char **argv)
{
    export_options o;
    bool given[IM_COUNT_OF(rows)] = {false};
    im_option_list rest;
    im_train_options t;
    im_status status = im_cli_options(cli, argc, argv, &o, given, &rest);
    if (status == IM_OK)
        status = im_cli_layout_options(cli, &rest, rows, IM_COUNT_OF(rows), &o.layout, given, &t);
    if (status == IM_OK)
        status = export(cli, &o, &t);
    return im_cli_exit(cli, status);
}

const im_cli_command im_cli_plan_export_command = {
    .name = "export",
    .args = "[RUN|PLAN.yaml]",
    .help = "Write a plan as Megatron-LM's arguments or DeepSpeed's configuration.",
    .about = "What the other system cannot say, or would refuse, is told as a note. The arguments of data, learning rate and length of the run are "
             "not part "
             "of a layout.\n\nimece plan export plan.yaml --to megatron\nimece plan export run --to deepspeed --out ds.json",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run,
};
