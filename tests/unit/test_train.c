/* Learning rates, sums of losses, options, metrics lines, texts, the trace. */
#include "fault/run_rig.h"

#include <math.h>

static double lr_at(const im_train_options *o, int64_t step)
{
    im_train_clock c = {.step = step, .total_steps = im_train_total_steps(o), .warmup_done_s = -1};
    return im_train_lr(o, &c);
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 + 1e-9 * fabs(want)))
        fail_msg("got %.17g, want %.17g", got, want);
}

static im_train_options with(const char *schedule)
{
    return options("--lr", "1e-3", "--min-lr", "1e-4", "--warmup", "4", "--steps", "24", "--schedule", schedule,
                   strcmp(schedule, "wsd") ? NULL : "--decay", "0.25", NULL);
}

static void schedules(void **state)
{
    (void)state;
    static const char *const all[] = {"constant", "linear", "cosine", "wsd"};
    for (size_t i = 0; i < IM_COUNT_OF(all); i++) {
        im_train_options o = with(all[i]);
        for (int64_t s = 0; s < 4; s++)
            near(lr_at(&o, s), 1e-3 * (double)(s + 1) / 4); /* never 0: a step at rate 0 would be wasted */
        near(lr_at(&o, 4), 1e-3);
        near(lr_at(&o, 24), i ? 1e-4 : 1e-3);
        near(lr_at(&o, 1000), i ? 1e-4 : 1e-3);
    }
    im_train_options o = with("linear");
    near(lr_at(&o, 14), 5.5e-4);
    o = with("cosine");
    near(lr_at(&o, 14), 5.5e-4);
    near(lr_at(&o, 9), 1e-4 + 9e-4 * 0.5 * (1 + cos(M_PI / 4)));
    o = with("wsd"); /* 20 steps after the warmup; the last quarter falls */
    near(lr_at(&o, 19), 1e-3);
    near(lr_at(&o, 20), 1e-3 - 9e-4 * 0.2);
    near(lr_at(&o, 23), 1e-3 - 9e-4 * 0.8);
    o.decay = 0;
    near(lr_at(&o, 24), 1e-3);
}

static void schedules_without_room(void **state)
{
    (void)state;
    im_train_options o = options("--lr", "1e-3", "--warmup", "10", "--steps", "5", NULL); /* all of it is warmup */
    near(lr_at(&o, 4), 5e-4);
    o = options("--lr", "1e-3", "--steps", "1", NULL);
    near(lr_at(&o, 0), 1e-3);
    o = options("--lr", "0", "--min-lr", "0", "--steps", "3", NULL);
    near(lr_at(&o, 1), 0);
}

/* Tokens and minutes drive the schedule as steps do; whichever is further decides. */
static void schedule_by_tokens_and_time(void **state)
{
    (void)state;
    im_train_options o = options("--lr", "1", "--schedule", "linear", "--tokens", "1000", "--seq-len", "10", "--global-batch", "3", NULL);
    assert_int_equal(im_train_total_steps(&o), 34);
    near(lr_at(&o, 17), 0.5);
    o.steps = 20;
    assert_int_equal(im_train_total_steps(&o), 20);
    im_train_clock c = {.step = 5, .total_steps = 20, .elapsed_s = 30, .total_s = 60, .warmup_done_s = 0};
    near(im_train_lr(&o, &c), 0.5);
    c.elapsed_s = 6;
    near(im_train_lr(&o, &c), 0.75);
    c.total_steps = 0;
    near(im_train_lr(&o, &c), 0.9);
    o.warmup = 5;
    c.warmup_done_s = 20;
    c.elapsed_s = 40;
    near(im_train_lr(&o, &c), 0.5);
}

/* B04: (sum, count) = (2,1), (90,9) is 9.2, not 6. */
static void means_are_of_sums(void **state)
{
    (void)state;
    im_train_mean m = {0};
    assert_true(isnan(im_train_mean_value(&m)));
    im_train_mean_add(&m, 2, 1);
    im_train_mean_add(&m, 90, 9);
    near(im_train_mean_value(&m), 9.2);
    im_train_mean_add(&m, 0, 0); /* a batch that counts nothing */
    near(im_train_mean_value(&m), 9.2);
}

/* Every token is read once, by programs of the right sizes, whatever the batch and the number of ranks. */
static void evaluation_covers_the_file(void **state)
{
    (void)state;
    im_feed *f;
    im_train_eval v;
    for (int n = 2; n < 60; n += 3) {
        char name[32];
        snprintf(name, sizeof name, "eval%d", n);
        im_tokens_writer *w;
        ok(im_tokens_create(ctx, at(name), IM_U16, &w));
        for (int32_t i = 0; i < n; i++)
            ok(im_tokens_append(w, &i, 1));
        ok(im_tokens_finish(w));
        ok(im_feed_open(ctx, at(name), &(im_feed_config){.seq_len = 5, .vocab = 60, .valid = true}, &f));
        for (int64_t batch = 1; batch < 8; batch++) {
            im_train_eval_plan(f, 5, batch, 0, NULL, &v);
            int64_t next = 0;
            for (int p = 0; p < v.nparts; p++) {
                assert_int_equal(v.part[p].first * (v.part[p].tail ? 1 : 5), next);
                next += v.part[p].runs * v.part[p].batch * v.part[p].seq_len;
            }
            assert_int_equal(next, n - 1);
            for (int dp = 1; dp < 5; dp++) {
                im_train_eval split = v;
                im_train_eval_split(&split, batch, dp);
                int64_t tokens = 0;
                for (int p = 0; p < split.nparts; p++) {
                    tokens += split.part[p].samples * split.part[p].seq_len;
                    assert_true(split.part[p].runs * split.part[p].batch * (split.part[p].tail ? 1 : dp) >= split.part[p].samples);
                }
                assert_int_equal(tokens, n - 1);
            }
            im_train_eval_plan(f, 5, batch, 1, NULL, &v);
            assert_true(v.nparts >= 1 && v.part[0].runs == 1);
        }
        im_feed_close(f);
    }
    write_tokens("one", 1, 0);
    assert_int_equal(im_feed_open(ctx, at("one"), &(im_feed_config){.seq_len = 5, .vocab = 257, .valid = true}, &f), IM_ERR_FORMAT);
    im_error_clear(ctx);
}

/* Flags over the file over defaults; the table is complete. */
static void options_by_precedence(void **state)
{
    (void)state;
    static const char text[] = "model: a\nlr: 0.5\nseq_len: 77\n";
    ok(im_file_write_atomic(ctx, at("o.yaml"), text, sizeof text - 1));
    im_train_options o = options("--config", at("o.yaml"), "--lr", "0.25", NULL);
    assert_string_equal(o.model, "a");
    assert_true(o.lr == 0.25);
    assert_int_equal(o.seq_len, 77);
    assert_int_equal(o.micro_batch, 4);
    for (size_t i = 0; i < IM_TRAIN_ROWS; i++)
        assert_true(im_train_rows[i].name && im_train_rows[i].help);
    for (size_t i = 0; i < IM_TRAIN_EVAL_ROWS; i++)
        assert_true(im_train_eval_rows[i].name && im_train_eval_rows[i].help);
    assert_string_equal(im_train_rows[IM_TRAIN_SAVED_ROWS].name, "resume");
}

static void refused(im_train_options o, const char *part)
{
    assert_int_equal(im_train_options_check(ctx, &o), IM_ERR_ARG);
    if (!strstr(im_error_text(ctx), part))
        fail_msg("\"%s\" lacks \"%s\"", im_error_text(ctx), part);
    im_error_clear(ctx);
}

static void rules_over_fields(void **state)
{
    (void)state;
    refused(options("--data", "d", "--steps", "1", NULL), "--model");
    refused(options("--model", "m", "--steps", "1", NULL), "--data");
    refused(options("--model", "m", "--data", "d", NULL), "--minutes");
    refused(options("--model", "m", "--data", "d", "--steps", "1", "--lr", "1e-4", "--min-lr", "1e-3", NULL), "min-lr");
    refused(options("--model", "m", "--data", "d", "--steps", "1", "--eval-every", "2", NULL), "--valid");
    char *argv[] = {"--resume", (char *)(uintptr_t)at("nowhere")};
    im_train_options o;
    assert_int_equal(im_train_options_parse(ctx, arena, 2, argv, &o), IM_ERR_ARG);
    im_error_clear(ctx);
}

/* plan.yaml of a run, given as --config, is the same options again. */
static void plan_yaml_reads_back(void **state)
{
    (void)state;
    im_train_options o = tiny("yaml", 1);
    o.nonfinite = IM_TRAIN_NONFINITE_SKIP;
    run_whole(&o);
    im_train_options again = options("--config", at("yaml/plan.yaml"), NULL);
    assert_string_equal(again.model, o.model);
    assert_true(again.lr == o.lr && again.min_lr == o.min_lr && again.eps == o.eps && again.dropout == o.dropout);
    assert_int_equal(again.nonfinite, o.nonfinite);
    assert_int_equal(again.global_batch, 5);
    assert_null(again.valid);
}

/* ---- observe ------------------------------------------------------------------------------- */

static void step_lines_are_json(void **state)
{
    (void)state;
    im_observe_step s = {
        .step = 3, .tokens = 1LL << 40, .loss = NAN, .grad_norm = INFINITY, .lr = 1e-4, .step_s = 0.5, .tokens_per_s = 10, .mfu = -1, .rss_bytes = 5};
    im_str text = {0};
    im_observe_step_json(&s, &text);
    im_json *doc;
    ok(im_json_parse(ctx, "line", text.data, text.len, &doc));
    const im_json_value *v = im_json_root(doc);
    static const char *const keys[] = {"step", "tokens",    "loss",           "grad_norm",           "lr",    "step_s", "tokens_per_s",
                                       "mfu",  "rss_bytes", "mem_peak_bytes", "mem_predicted_bytes", "finite"};
    for (size_t i = 0; i < IM_COUNT_OF(keys); i++)
        assert_non_null(im_json_get(v, keys[i]));
    assert_int_equal(im_json_type_of(im_json_get(v, "loss")), IM_JSON_NULL);
    assert_int_equal(im_json_type_of(im_json_get(v, "mfu")), IM_JSON_NULL);
    assert_true(im_json_int(im_json_get(v, "tokens"), 0) == 1LL << 40);
    im_json_free(doc);
    im_str_free(&text);
}

/* The tokens of all machines over the rate of all, not of one (A35). */
static void a_rate_is_of_all_machines(void **state)
{
    (void)state;
    near(im_train_job_rate(1e11, 1, 1), 1e11);
    near(im_train_job_rate(1e11, 8, 8), 1e11);
    near(im_train_job_rate(1e11, 16, 8), 2e11);
    near(im_train_job_rate(1e11, 9, 6), 1.5e11);
    near(im_train_job_rate(-1, 16, 8), -1);
}

static void cut_text(const char *before, int64_t step, const char *after)
{
    char *got;
    size_t len;
    ok(im_file_write_atomic(ctx, at("cut"), before, strlen(before)));
    ok(im_observe_cut(ctx, at("cut"), step));
    ok(im_file_read(ctx, at("cut"), 1 << 20, &got, &len));
    assert_string_equal(got, after);
    free(got);
}

static void metrics_are_cut_back(void **state)
{
    (void)state;
    cut_text("{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n", 2, "{\"step\": 1}\n{\"step\": 2}\n");
    cut_text("{\"step\": 1}\n{\"step\": 2", 9, "{\"step\": 1}\n"); /* torn by a kill */
    cut_text("{\"step\": 1}\n{\"step\": 2}\n", 0, "");
    cut_text("", 5, "");
    /* after a rollback from 4 to 2, with a checkpoint at 3: the replay is kept, and what led to it */
    cut_text("{\"step\": 3}\n{\"step\": 4}\n{\"step\": 3}\n{\"step\": 4}\n", 3, "{\"step\": 3}\n{\"step\": 4}\n{\"step\": 3}\n");
    ok(im_observe_cut(ctx, at("absent"), 3));
}

static void texts(void **state)
{
    (void)state;
    char b[64];
    assert_string_equal(im_observe_duration(b, sizeof b, 3.21), "3.2s");
    assert_string_equal(im_observe_duration(b, sizeof b, 133.4), "2m13s");
    assert_string_equal(im_observe_duration(b, sizeof b, 3600 * 5 + 60), "5h01m");
    assert_string_equal(im_observe_duration(b, sizeof b, NAN), "?");
    assert_string_equal(im_observe_count(b, sizeof b, 12345), "12.3k");
    assert_string_equal(im_observe_count(b, sizeof b, 7), "7");
    assert_string_equal(im_observe_count(b, sizeof b, 999999), "1M");
    im_observe_step s = {.step = 120, .loss = 3.45671, .tokens_per_s = 12345, .mfu = 0.614, .rss_bytes = (size_t)1320 << 20, .finite = true};
    im_str line = {0};
    im_observe_progress(&s, 2000, 133, &line);
    assert_string_equal(im_str_text(&line), "step 120/2000 | loss 3.4567 | 12.3k tokens/s | MFU 61 % | 1.29 GiB | ETA 2m13s");
    im_str_free(&line);
}

static void info(void *arg, size_t program, uint64_t run, uint32_t tag, im_observe_span_info *out)
{
    (void)program;
    *out = (im_observe_span_info){.instruction = "an \"op\"", .flow = run * 100 + tag, .receives = *(bool *)arg};
}

/* Two ranks; each message has one beginning and one end of one number. */
static void trace_is_json(void **state)
{
    (void)state;
    static const char *const queues[] = {"compute"};
    im_observe_trace *t;
    im_str part[2] = {{0}, {0}};
    for (int rank = 0; rank < 2; rank++) {
        bool receives = rank;
        ok(im_observe_trace_create(ctx, 16, &t));
        for (int64_t step = 1; step <= 20; step++) {
            im_observe_trace_begin(t, step, 0);
            double now = im_clock_now();
            im_observe_trace_span(t, 0, "matmul", 3, now, now + 1e-6);
            im_observe_trace_end(t);
        }
        im_observe_trace_span(t, 0, "between steps", 3, 0, 1); /* of no step: not kept */
        im_observe_trace_part(t, rank, im_observe_trace_first(t, 3), queues, 1, info, &receives, &part[rank]);
        im_observe_trace_destroy(t);
    }
    const char *parts[] = {"", im_str_text(&part[0]), im_str_text(&part[1])};
    ok(im_observe_trace_join(ctx, at("trace.json"), parts, 3));
    im_str_free(&part[0]);
    im_str_free(&part[1]);
    im_json *doc;
    ok(im_json_load(ctx, at("trace.json"), 1 << 20, &doc));
    const im_json_value *events = im_json_get(im_json_root(doc), "traceEvents");
    int spans = 0;
    int64_t starts = 0, ends = 0;
    for (size_t i = 0; i < im_json_length(events); i++) {
        const im_json_value *e = im_json_at(events, i);
        const char *ph = im_json_string(im_json_get(e, "ph"), "");
        starts += strcmp(ph, "s") ? 0 : im_json_int(im_json_get(e, "id"), 0);
        ends += strcmp(ph, "f") ? 0 : im_json_int(im_json_get(e, "id"), 0);
        if (strcmp(ph, "X"))
            continue;
        spans++;
        assert_true(im_json_real(im_json_get(e, "ts"), -1) >= 0);
        assert_true(im_json_int(im_json_get(im_json_get(e, "args"), "step"), 0) > 17);
    }
    assert_int_equal(spans, 12);
    assert_int_equal(starts, 1803 + 1903 + 2003);
    assert_int_equal(ends, starts);
    im_json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),
        cmocka_unit_test(schedules_without_room),
        cmocka_unit_test(schedule_by_tokens_and_time),
        cmocka_unit_test(means_are_of_sums),
        cmocka_unit_test(evaluation_covers_the_file),
        cmocka_unit_test(options_by_precedence),
        cmocka_unit_test(rules_over_fields),
        cmocka_unit_test(plan_yaml_reads_back),
        cmocka_unit_test(step_lines_are_json),
        cmocka_unit_test(a_rate_is_of_all_machines),
        cmocka_unit_test(metrics_are_cut_back),
        cmocka_unit_test(texts),
        cmocka_unit_test(trace_is_json),
    };
    return cmocka_run_group_tests_name("train", tests, rig_setup, rig_teardown);
}
