/* A run that is stopped, killed or fails goes on as if nothing had happened: the same bits. */
#include "fault/run_rig.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { STEPS = 12 };

/* Lines of metrics.jsonl, and the values of a key in lines that are steps (NaN for null). */
static int metric(const char *run, const char *key, double *out, int max)
{
    char name[128], *text;
    size_t len;
    snprintf(name, sizeof name, "%s/metrics.jsonl", run);
    ok(im_file_read(ctx, at(name), 1 << 24, &text, &len));
    int n = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        im_json *doc;
        ok(im_json_parse(ctx, name, line, strlen(line), &doc));
        const im_json_value *v = im_json_root(doc);
        if (!im_json_get(v, "event") && n < max) {
            const im_json_value *x = im_json_get(v, key);
            out[n++] = im_json_type_of(x) == IM_JSON_BOOL ? im_json_bool(x, false) : im_json_real(x, NAN);
        }
        im_json_free(doc);
    }
    free(text);
    return n;
}

static void whole_run(void **state)
{
    (void)state;
    im_train_options o = tiny("whole", STEPS);
    run_whole(&o);
    no_warnings();
    double loss[64];
    assert_int_equal(metric("whole", "loss", loss, 64), STEPS);
    assert_true(loss[STEPS - 1] < loss[0] - 1); /* it learns */
    o = tiny("again", STEPS);
    run_whole(&o);
    assert_same_state("whole", "again", STEPS);
}

/* N + resume + N, and twice in one epoch; learning rates too (B38, B41). */
static void stopped_and_resumed(void **state)
{
    (void)state;
    static const int cuts[][3] = {{6, 0, 0}, {1, 1, 0}, {5, 3, 1}};
    for (size_t c = 0; c < IM_COUNT_OF(cuts); c++) {
        char run[32];
        snprintf(run, sizeof run, "stopped%zu", c);
        stopper s;
        im_train_options o = tiny(run, STEPS);
        for (int i = 0; i < 3 && cuts[c][i]; i++) {
            assert_int_equal(run_until(&o, cuts[c][i], &s), IM_ERR_STOPPED);
            assert_non_null(strstr(im_error_text(ctx), "--resume"));
            im_error_clear(ctx);
            o = resume(run);
        }
        run_whole(&o);
        no_warnings();
        assert_same_state("whole", run, STEPS);
        double a[64], b[64];
        assert_int_equal(metric("whole", "lr", a, 64), STEPS);
        assert_int_equal(metric(run, "lr", b, 64), STEPS);
        for (int i = 0; i < STEPS; i++)
            assert_true(a[i] == b[i]);
        assert_int_equal(metric("whole", "step", a, 64), STEPS);
        assert_int_equal(metric(run, "step", b, 64), STEPS);
        for (int i = 0; i < STEPS; i++)
            assert_true(b[i] == i + 1);
    }
}

/* Flags given with --resume: all four of max, min, warmup and decay come from the new ones, none from the old run (B38). */
static void resume_with_other_rates(void **state)
{
    (void)state;
    stopper s;
    im_train_options o = tiny("rates", STEPS);
    assert_int_equal(run_until(&o, 6, &s), IM_ERR_STOPPED);
    im_error_clear(ctx);
    o = options("--resume", at("rates"), "--lr", "5e-3", "--min-lr", "5e-4", "--warmup", "1", "--schedule", "wsd", "--decay", "0.5", NULL);
    run_whole(&o);
    double lr[64];
    assert_int_equal(metric("rates", "lr", lr, 64), STEPS);
    for (int i = 6; i < STEPS; i++) {
        im_train_clock c = {.step = i, .total_steps = STEPS, .warmup_done_s = 0};
        im_train_options fresh = options("--lr", "5e-3", "--min-lr", "5e-4", "--warmup", "1", "--schedule", "wsd", "--decay", "0.5", NULL);
        assert_true(fabs(lr[i] - im_train_lr(&fresh, &c)) < 1e-10);
    }
}

/* The rate that is told is the one that the update uses: at rate 0 no weight moves (B38). */
static void the_rate_is_the_updates_too(void **state)
{
    (void)state;
    stopper s;
    im_train_options o = tiny("still", STEPS);
    assert_int_equal(run_until(&o, 6, &s), IM_ERR_STOPPED);
    im_error_clear(ctx);
    o = options("--resume", at("still"), "--lr", "0", "--min-lr", "0", NULL);
    run_whole(&o);
    no_warnings();
    assert_true(same_file("still/checkpoints/step-6/model.safetensors", "still/checkpoints/step-12/model.safetensors"));
    assert_false(same_file("still/checkpoints/step-6/optimizer.safetensors", "still/checkpoints/step-12/optimizer.safetensors"));
}

/* Losses of two runs of the same steps within rule 1's tolerance. */
static void assert_near_losses(const char *a, const char *b, int steps)
{
    double x[64], y[64];
    assert_int_equal(metric(a, "loss", x, 64), steps);
    assert_int_equal(metric(b, "loss", y, 64), steps);
    for (int i = 0; i < steps; i++)
        if (!(fabs(x[i] - y[i]) <= 1e-5 * x[i]))
            fail_msg("step %d: %s has loss %.9g, %s %.9g", i + 1, a, x[i], b, y[i]);
}

/* Stopped in the third epoch and in a later one, and gone on with by other numbers of ranks: the same samples, so the same losses (A11, B41). */
static void resumed_by_other_ranks(void **state)
{
    (void)state;
    stopper s;
    im_train_options o = tiny("moved", STEPS);
    assert_int_equal(run_until(&o, 4, &s), IM_ERR_STOPPED);
    im_error_clear(ctx);
    o = options("--resume", at("moved"), "--dp", "2", "--zero", "1", NULL);
    assert_int_equal(run_until(&o, 4, &s), IM_ERR_STOPPED);
    im_error_clear(ctx);
    o = options("--resume", at("moved"), "--dp", "3", "--zero", "3", NULL);
    run_whole(&o);
    assert_non_null(strstr(warned, "not bit-equal"));
    *warned = '\0';
    assert_near_losses("whole", "moved", STEPS);
}

/* 10 samples, micro-batch 2, 3 ranks, global batch 6, so that the epoch turns within a step: one rank's losses, and stopped after 6 samples the same
 * bits (A31, B47). */
static void ranks_share_out_the_samples(void **state)
{
    (void)state;
    static const char *const names[] = {"ten1", "ten3", "ten3r"};
    stopper s;
    write_tokens("ten", 10 * 16 + 1, 5);
    for (int i = 0; i < 3; i++) {
        im_train_options o = options("--model", at("model.json"), "--data", at("ten"), "--out", at(names[i]), "--steps", "5", "--seq-len", "16",
                                     "--micro-batch", "2", "--global-batch", "6", "--lr", "1e-2", "--threads", "1", "--dp", i ? "3" : "1", NULL);
        if (i == 2) {
            assert_int_equal(run_until(&o, 1, &s), IM_ERR_STOPPED);
            im_error_clear(ctx);
            o = resume(names[i]);
        }
        run_whole(&o);
    }
    no_warnings();
    assert_near_losses("ten1", "ten3", 5);
    assert_same_state("ten3", "ten3r", 5);
}

/* Dropout draws by what it drops, not by what was drawn before: stopped and resumed, on one rank and on several, the same bits; and it does drop (A11). */
static void dropout_goes_on(void **state)
{
    (void)state;
    double with[64], without[64];
    for (int i = 0; i < 2; i++) {
        const char *names[] = {im_arena_printf(arena, "drop%d", i), im_arena_printf(arena, "drop%dr", i)};
        for (int k = 0; k < 2; k++) {
            stopper s;
            im_train_options o = tiny(names[k], 6);
            o.dropout = 0.2;
            o.dp = i + 1;
            if (k) {
                assert_int_equal(run_until(&o, 3, &s), IM_ERR_STOPPED);
                im_error_clear(ctx);
                o = resume(names[k]);
            }
            run_whole(&o);
        }
        assert_same_state(names[0], names[1], 6);
    }
    no_warnings();
    assert_near_losses("drop0", "drop1", 6);
    assert_int_equal(metric("drop0", "loss", with, 64), 6);
    assert_int_equal(metric("whole", "loss", without, 64), STEPS);
    assert_true(with[0] != without[0]);
}

static void changed_data_is_refused(void **state)
{
    (void)state;
    stopper s;
    im_train_options o = tiny("changed", STEPS);
    assert_int_equal(run_until(&o, 2, &s), IM_ERR_STOPPED);
    im_error_clear(ctx);
    write_tokens("other", 7 * 16 + 1, 99);
    static const char *const flags[][2] = {{"--data", "other"}, {"--seed", "9"}, {"--seq-len", "8"}, {"--order", "sequential"}};
    for (size_t i = 0; i < IM_COUNT_OF(flags); i++) {
        o = options("--resume", at("changed"), flags[i][0], i ? flags[i][1] : at(flags[i][1]), NULL);
        assert_int_equal(run_until(&o, -1, &s), IM_ERR_ARG);
        im_error_clear(ctx);
    }
    no_warnings();
    o = options("--resume", at("changed"), "--micro-batch", "5", NULL); /* right, but said */
    run_whole(&o);
    assert_non_null(strstr(warned, "not bit-equal"));
    *warned = '\0';
}

/* Seconds of the monotonic clock. */
static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The run in a child that is killed after a while; the parent resumes it until it is done. A run that ends before its first kill proves nothing and is
   done again with a shorter wait, so that the test kills ten runs whatever the machine's speed. */
static void killed_at_random(void **state)
{
    (void)state;
    uint32_t r[4];
    double longest_s = 0.05; /* the kill comes within this time of the start */
    for (int run = 0, killed_runs = 0; killed_runs < 10; run++) {
        if (run >= 60)
            fail_msg("only %d of %d runs could be killed before they ended", killed_runs, run);
        char name[32];
        snprintf(name, sizeof name, "killed%d", run);
        bool done = false;
        int kills = 0;
        for (int attempt = 0; attempt < 200 && !done; attempt++) {
            double start_s = now_s();
            pid_t child = fork();
            assert_true(child >= 0);
            if (!child) {
                im_train_options o;
                if (im_path_exists(im_arena_printf(arena, "%s/%s/plan.yaml", dir, name))) {
                    o = resume(name);
                } else {
                    im_status ignored = im_remove_tree(ctx, at(name)); /* killed before plan.yaml was there */
                    (void)ignored;
                    o = tiny(name, STEPS);
                    o.save_every = 1;
                }
                stopper s;
                _exit(run_until(&o, -1, &s) == IM_OK ? 0 : 1);
            }
            im_philox(7, (uint64_t)run, (uint64_t)attempt, r);
            if (kills < 4) {
                struct timespec nap = {.tv_nsec = (long)(1e9 * longest_s * (0.05 + 0.95 * r[0] / 4294967296.0))};
                nanosleep(&nap, NULL);
                kill(child, SIGKILL);
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
            kills += WIFSIGNALED(status);
            if (!done && !WIFSIGNALED(status))
                fail_msg("run %d, attempt %d: the run failed", run, attempt);
            /* As long as an attempt takes that is left alone, so that kills fall on every part of it. */
            if (done && !kills)
                longest_s = fmax(longest_s * 0.7, 0.0005);
            else if (done)
                longest_s = fmin(fmax(longest_s, 0.5 * (now_s() - start_s)), 0.5);
        }
        assert_true(done);
        killed_runs += kills > 0;
        assert_same_state("whole", name, STEPS);
        double step[64];
        assert_int_equal(metric(name, "step", step, 64), STEPS);
    }
}

/* ---- a step that is not finite ------------------------------------------------------------- */

/* A checkpoint's model whose embedding of byte 1 is NaN, and data in which one sample has that byte: sample 7 of 16. */
static void make_poison(void)
{
    im_train_options o = tiny("poison", 1);
    run_whole(&o);
    im_weights *w;
    const char *model = at("poison/checkpoints/step-1");
    ok(im_weights_open(ctx, model, &w));
    const im_st_tensor *t = im_weights_find(w, "model.embed_tokens.weight");
    assert_non_null(t);
    float nan_value = NAN;
    FILE *f = fopen(at("poison/checkpoints/step-1/model.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(t->offset + 4 * 12), SEEK_SET), 0);
    assert_int_equal(fwrite(&nan_value, 4, 1, f), 1);
    fclose(f);
    im_weights_close(w);
    im_tokens_writer *out;
    ok(im_tokens_create(ctx, at("poisoned"), IM_U16, &out));
    for (int i = 0; i < 16 * 16 + 1; i++) {
        int32_t id = i == 7 * 16 + 3 ? 1 : 'a' + i % 13;
        ok(im_tokens_append(out, &id, 1));
    }
    ok(im_tokens_finish(out));
}

static im_train_options poisoned(const char *out, const char *policy)
{
    return options("--model", at("poison/checkpoints/step-1"), "--data", at("poisoned"), "--out", at(out), "--steps", "6", "--seq-len", "16",
                   "--micro-batch", "2", "--order", "sequential", "--lr", "1e-3", "--threads", "1", "--save-every", "2", "--nonfinite", policy, NULL);
}

static void nonfinite_stop(void **state)
{
    (void)state;
    make_poison();
    stopper s;
    im_train_options o = poisoned("nstop", "stop");
    assert_int_equal(run_until(&o, -1, &s), IM_ERR_NONFINITE);
    assert_non_null(strstr(im_error_text(ctx), "step 4"));
    assert_non_null(strstr(im_error_text(ctx), "embed"));
    assert_non_null(strstr(im_error_text(ctx), "step-2"));
    im_error_clear(ctx);
    char newest[4096];
    im_checkpoint_meta meta;
    ok(im_checkpoint_latest(ctx, at("nstop/checkpoints"), newest, sizeof newest));
    ok(im_checkpoint_meta_read(ctx, newest, true, &meta));
    assert_int_equal(meta.step, 2);
}

static void nonfinite_skip(void **state)
{
    (void)state;
    im_train_options o = poisoned("nskip", "skip");
    run_whole(&o);
    double finite[64], loss[64];
    assert_int_equal(metric("nskip", "finite", finite, 64), 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(finite[i] != 0, i != 3);
    metric("nskip", "loss", loss, 64);
    assert_true(isnan(loss[3]));
    im_checkpoint_meta meta;
    ok(im_checkpoint_meta_read(ctx, at("nskip/checkpoints/step-6"), true, &meta));
    assert_int_equal(meta.updates, 5);
    assert_int_equal(meta.position, 12);
}

/* Back to step 2, samples 6 and 7 left out for good; a resume after it knows that too. */
static void nonfinite_rollback(void **state)
{
    (void)state;
    im_train_options o = poisoned("nroll", "rollback");
    stopper s;
    ok(run_until(&o, -1, &s));
    assert_non_null(strstr(s.text, "back to step 2"));
    im_checkpoint_meta meta;
    ok(im_checkpoint_meta_read(ctx, at("nroll/checkpoints/step-6"), true, &meta));
    assert_int_equal(meta.updates, 6);
    assert_int_equal(meta.position, 14);
    assert_int_equal(meta.nskip, 1);
    assert_int_equal(meta.skip[0].from, 6);
    assert_int_equal(meta.skip[0].count, 2);

    o = poisoned("nroll2", "rollback");
    assert_int_equal(run_until(&o, 5, &s), IM_ERR_STOPPED); /* lines 1 2 3 bad 3 */
    im_error_clear(ctx);
    o = resume("nroll2");
    run_whole(&o);
    assert_same_state("nroll", "nroll2", 6);
}

/* ---- other ends -------------------------------------------------------------------------------- */

static void refuses_an_existing_directory(void **state)
{
    (void)state;
    stopper s;
    im_train_options o = tiny("whole", STEPS);
    assert_int_equal(run_until(&o, -1, &s), IM_ERR_EXISTS);
    im_error_clear(ctx);
}

/* ---- what a step's line says (A35, A36) ------------------------------------------------------- */

typedef struct lines_seen {
    int n;
    im_observe_step line[16];
} lines_seen;

static void keep_line(void *arg, const im_observe_step *line)
{
    lines_seen *seen = arg;
    if (seen->n < 16)
        seen->line[seen->n++] = *line;
}

/* Tokens are the global batch's, whatever the ranks; a second's are those over the step's time; MFU is their arithmetic over one rate, and no more
 * than 1; the loss is the global batch's. */
static void lines_count_all_ranks(void **state)
{
    (void)state;
    enum { N = 4 };
    static const struct {
        int tp, dp, pp;
    } layouts[] = {{1, 1, 1}, {1, 2, 1}, {3, 1, 1}, {1, 1, 2}, {1, 2, 2}};
    lines_seen seen[IM_COUNT_OF(layouts)];
    im_model *m;
    ok(im_model_open(ctx, at("model.json"), NULL, &m));
    double flops = im_model_flops_per_token(m, 16);
    im_model_close(m);
    for (size_t i = 0; i < IM_COUNT_OF(layouts); i++) {
        im_train_options o = tiny(im_arena_printf(arena, "lines%zu", i), N);
        im_train_env env = {.arg = &seen[i], .step = keep_line, .measure_rate = true};
        o.tp = layouts[i].tp;
        o.dp = layouts[i].dp;
        o.pp = layouts[i].pp;
        seen[i].n = 0;
        ok(im_train_execute(ctx, &o, &env));
        assert_int_equal(seen[i].n, N);
        double rate = flops * seen[i].line[0].tokens_per_s / seen[i].line[0].mfu;
        for (int k = 0; k < N; k++) {
            const im_observe_step *x = &seen[i].line[k];
            assert_int_equal(x->step, k + 1);
            assert_int_equal(x->tokens, (k + 1) * 5 * 16);
            assert_true(fabs(x->tokens_per_s * x->step_s / (5 * 16) - 1) < 1e-9);
            assert_true(x->mfu > 0 && x->mfu <= 1);
            assert_true(fabs(flops * x->tokens_per_s / x->mfu / rate - 1) < 1e-9);
            assert_true(fabs(x->loss / seen[0].line[k].loss - 1) < 1e-5);
            assert_true(fabs(x->grad_norm / seen[0].line[k].grad_norm - 1) < 1e-5);
        }
    }
    no_warnings();
}

static void evaluation_counts_every_token(void **state)
{
    (void)state;
    im_train_options o = tiny("evals", 2);
    o.valid = at("valid");
    run_whole(&o);
    im_train_eval_options e = {.model = at("evals"), .data = at("valid"), .seq_len = 16, .batch = 2, .threads = 1, .tp = 1, .dp = 1, .pp = 1};
    im_train_env env = {0};
    im_observe_eval batch2, batch3, batch100;
    ok(im_train_eval_model(ctx, &e, &env, &batch2));
    assert_int_equal(batch2.counted, 16 * 5 + 3); /* two full batches, a rest of one sample, a tail of 3 tokens */
    e.batch = 3;
    ok(im_train_eval_model(ctx, &e, &env, &batch3));
    e.batch = 100;
    ok(im_train_eval_model(ctx, &e, &env, &batch100));
    assert_true(fabs(batch2.loss - batch3.loss) < 1e-6 * batch2.loss);
    assert_true(fabs(batch2.loss - batch100.loss) < 1e-6 * batch2.loss);
    assert_true(fabs(batch2.bits_per_byte - batch2.loss / M_LN2) < 1e-9);
}

static void deferred_device_gives_the_same_bits(void **state)
{
    (void)state;
    im_train_options o = tiny("deferred", STEPS);
    o.device = 1;
    o.save_every = 5;
    run_whole(&o);
    assert_same_state("whole", "deferred", STEPS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_run),
        cmocka_unit_test(stopped_and_resumed),
        cmocka_unit_test(resume_with_other_rates),
        cmocka_unit_test(the_rate_is_the_updates_too),
        cmocka_unit_test(resumed_by_other_ranks),
        cmocka_unit_test(ranks_share_out_the_samples),
        cmocka_unit_test(dropout_goes_on),
        cmocka_unit_test(lines_count_all_ranks),
        cmocka_unit_test(changed_data_is_refused),
        cmocka_unit_test(killed_at_random),
        cmocka_unit_test(nonfinite_stop),
        cmocka_unit_test(nonfinite_skip),
        cmocka_unit_test(nonfinite_rollback),
        cmocka_unit_test(refuses_an_existing_directory),
        cmocka_unit_test(evaluation_counts_every_token),
        cmocka_unit_test(deferred_device_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("resume", tests, rig_setup, rig_teardown);
}
