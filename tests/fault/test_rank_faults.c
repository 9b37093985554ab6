/* Ranks of a real run that fail, stall, call something else or see what others do not: every rank stops or goes on alike, the one at fault is
 * named, and the last checkpoint is whole and goes on in another layout.
 */
#define RUN_RIG_TSAN ":report_thread_leaks=0" /* a process that ends with a rank that does not come back */
#include "fault/run_rig.h"

#include "comm/ring.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { STEPS = 6, BAD_STEP = 3 }; /* step BAD_STEP is what goes wrong; the checkpoint before it is of BAD_STEP - 1 */

/* The usual tiny run on several ranks, saved after every step. flags end with NULL. */
static im_train_options ranks(const char *out, const char *const *flags)
{
    char *argv[64];
    int argc = 0;
    const char *usual[] = {"--model",        at("model.json"),
                           "--data",         at("data"),
                           "--out",          at(out),
                           "--steps",        "6",
                           "--seq-len",      "16",
                           "--micro-batch",  "2",
                           "--global-batch", "4",
                           "--lr",           "1e-2",
                           "--threads",      "1",
                           "--save-every",   "1",
                           "--keep",         "0"};
    im_train_options o;
    for (size_t i = 0; i < IM_COUNT_OF(usual); i++)
        argv[argc++] = (char *)(uintptr_t)usual[i];
    for (; *flags; flags++)
        argv[argc++] = (char *)(uintptr_t)*flags;
    ok(im_train_options_parse(ctx, arena, argc, argv, &o));
    return o;
}

/* The n-th operation of BAD_STEP, of instructions that begin with `what`. */
static const char *fault(const char *kind, const char *what, int n, int rank, double seconds)
{
    char *text = im_arena_printf(arena, "%s,step=%d,what=%s,at=%d,rank=%d,seconds=%g", kind, BAD_STEP, what, n, rank, seconds);
    assert_non_null(text);
    return text;
}

static void said(const char *text, const char *word)
{
    if (!strstr(text, word))
        fail_msg("no \"%s\" in: %s", word, text);
}

static im_comm_rings rings_of(const char *run)
{
    im_comm_rings r;
    ok(im_comm_rings_read(ctx, at(im_arena_printf(arena, "%s/rings", run)), &r));
    return r;
}

/* How many operations a rank has in BAD_STEP, of instructions that begin with `what`, in a run of the same options without a fault. */
static int operations(const char *run, int rank, const char *what)
{
    im_comm_rings r = rings_of(run);
    const im_comm_ring *g = &r.ring[rank];
    int n = 0;
    for (size_t i = 0; i < g->nrecord; i++)
        n += g->record[i].step == BAD_STEP && !strncmp(g->record[i].what, what, strlen(what));
    im_comm_rings_free(&r);
    return n;
}

/* The run's checkpoints before the bad step are whole; another layout goes on from the newest to the end, and learns. */
static void goes_on(const char *run, const char *tp, const char *dp)
{
    char newest[4096];
    im_checkpoint_meta meta;
    *warned = '\0';
    ok(im_checkpoint_latest_verified(ctx, at(im_arena_printf(arena, "%s/checkpoints", run)), newest, sizeof newest));
    ok(im_checkpoint_meta_read(ctx, newest, true, &meta));
    assert_true(meta.step >= 1 && meta.step < BAD_STEP); /* the save of the step before may have been under way */
    im_train_options o = options("--resume", at(run), "--tp", tp, "--dp", dp, "--pp", "1", "--zero", "0", "--no-sequence-parallel", NULL);
    run_whole(&o);
    ok(im_checkpoint_meta_read(ctx, at(im_arena_printf(arena, "%s/checkpoints/step-%d", run, STEPS)), true, &meta));
    assert_int_equal(meta.updates, STEPS);
    *warned = '\0'; /* another plan: right, but not bit-equal */
}

typedef struct layout {
    const char *name, *flag[10]; /* ends with NULL */
    int ranks;
} layout;

static const layout layouts[] = {
    {"dp2", {"--dp", "2"}, 2},
    {"dp2z3", {"--dp", "2", "--zero", "3"}, 2},
    {"tp3", {"--tp", "3", "--sequence-parallel"}, 3},
    {"pp2", {"--pp", "2"}, 2},
    {"tp3dp2z1", {"--tp", "3", "--dp", "2", "--zero", "1"}, 6},
};

static const char *sound(const layout *l)
{
    const char *run = im_arena_printf(arena, "sound-%s", l->name);
    if (!im_path_exists(at(run))) {
        im_train_options o = ranks(run, l->flag);
        run_whole(&o);
        no_warnings();
    }
    return run;
}

/* ---- a rank that fails, calls something else, leaves something out, stalls ---------------------------------------- */

/* Runs with a fault in the middle of BAD_STEP on the last rank; the error's text stays in ctx until the caller clears it. */
static im_status fails(const layout *l, const char *kind, double deadline, double seconds, char *run, size_t size)
{
    im_train_options o;
    int victim = l->ranks - 1;
    stopper s;
    snprintf(run, size, "%s-%s", kind, l->name);
    o = ranks(run, l->flag);
    static const char *const places[] = {"BACKWARD", "REDUCE", "SEND"};
    int n = 0;
    size_t i = 0;
    while (i < IM_COUNT_OF(places) && !(n = operations(sound(l), victim, places[i])))
        i++;
    assert_true(n > 0);
    o.fault = fault(kind, places[i], n / 2 + 1, victim, seconds);
    o.deadline = deadline;
    *warned = '\0';
    return run_until(&o, -1, &s);
}

static void a_rank_that_fails(void **state)
{
    (void)state;
    char run[64];
    for (size_t i = 0; i < IM_COUNT_OF(layouts); i++) {
        const layout *l = &layouts[i];
        const char *who = im_arena_printf(arena, "rank %d", l->ranks - 1);
        assert_int_equal(fails(l, "die", 300, 0, run, sizeof run), IM_ERR_INTERNAL);
        said(im_error_text(ctx), im_arena_printf(arena, "%s: died on purpose before operation", who));
        im_error_clear(ctx);
        said(warned, im_arena_printf(arena, "%s failed: it was in step %d", who, BAD_STEP));
        im_comm_rings r = rings_of(run);
        assert_int_equal(r.view[l->ranks - 1].fault, IM_RING_BROKE);
        assert_int_equal(r.nfault, 1);
        for (int k = 0; k < l->ranks; k++)
            assert_int_equal(r.ring[k].header.end, IM_RING_ERROR);
        im_comm_rings_free(&r);
        goes_on(run, i % 2 ? "1" : "3", i % 2 ? "2" : "1");
    }
}

static void a_rank_that_fails_at_once(void **state)
{
    (void)state;
    for (int number = 1; number <= 3; number += 2) {
        stopper s;
        im_train_options o = ranks("atonce", layouts[0].flag);
        o.fault = im_arena_printf(arena, "die,at=%d,rank=1", number);
        *warned = '\0';
        assert_int_equal(run_until(&o, -1, &s), IM_ERR_INTERNAL);
        said(im_error_text(ctx), "rank 1: died on purpose");
        im_error_clear(ctx);
        ok(im_remove_tree(ctx, at("atonce")));
    }
    *warned = '\0';
}

static void a_rank_that_calls_something_else(void **state)
{
    (void)state;
    char run[64];
    for (size_t i = 0; i < IM_COUNT_OF(layouts); i++) {
        const layout *l = &layouts[i];
        if (!strcmp(l->name, "pp2"))
            continue; /* of a message only the receiver sees it: below */
        assert_int_equal(fails(l, "mismatch", 300, 0, run, sizeof run), IM_ERR_INTERNAL);
        said(im_error_text(ctx), "differs among its ranks");
        said(im_error_text(ctx), im_arena_printf(arena, "rank %d called", l->ranks - 1));
        im_error_clear(ctx);
        /* by its call, which any rank of its group may have seen first, or, when the report comes after its end, by its error */
        if (!strstr(warned, im_arena_printf(arena, "rank %d called", l->ranks - 1)))
            said(warned, im_arena_printf(arena, "rank %d failed: it was in", l->ranks - 1));
        goes_on(run, "1", "1");
    }
    assert_int_equal(fails(&layouts[3], "mismatch", 300, 0, run, sizeof run), IM_ERR_INTERNAL);
    said(im_error_text(ctx), "differs");
    im_error_clear(ctx);
    *warned = '\0';
}

/* Who leaves an operation out calls, or waits in, a later one: the others find that it differs, or that nobody comes. */
static void a_rank_that_leaves_one_out(void **state)
{
    (void)state;
    char run[64];
    im_status status = fails(&layouts[0], "drop", 4, 0, run, sizeof run);
    assert_true(status == IM_ERR_TIMEOUT || status == IM_ERR_INTERNAL);
    said(im_error_text(ctx), status == IM_ERR_INTERNAL ? "differs among its ranks" : "was not over after 4 s");
    said(im_error_text(ctx), "operation ");
    im_error_clear(ctx);
    goes_on(run, "1", "2");
}

/* The process can only end: the rank stays where it is. */
static void lost(void *arg)
{
    (void)arg;
    _exit(77);
}

static void quiet(void *arg, im_log_level level, int rank, const char *part, const char *message)
{
    (void)level, (void)rank, (void)part;
    FILE *f = fopen(arg, "a");
    if (f) {
        fprintf(f, "%s\n", message);
        fclose(f);
    }
}

static void a_rank_that_stands_still(void **state)
{
    (void)state;
    const layout *l = &layouts[4];
    const char *log = at("still.log");
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        im_train_options o = ranks("still", l->flag);
        im_train_env env = {.lost = lost};
        im_context_set_log(ctx, quiet, (void *)(uintptr_t)log, IM_LOG_ERROR);
        o.fault = fault("delay", "REDUCE", 1, 4, 100000);
        o.deadline = 4;
        _exit(im_train_execute(ctx, &o, &env) == IM_OK ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 77);
    char *text;
    size_t n;
    ok(im_file_read(ctx, log, 1 << 20, &text, &n));
    said(text, im_arena_printf(arena, "rank 4 did not come: it is in step %d", BAD_STEP));
    said(text, " waited ");
    said(text, " s for it in ");
    said(text, "do not come back");
    free(text);
    im_comm_rings r = rings_of("still"); /* and later, from the files alone */
    assert_int_equal(r.view[4].fault, IM_RING_ABSENT);
    assert_int_equal(r.nfault, 1);
    im_comm_rings_free(&r);
    goes_on("still", "1", "3");
    ok(im_file_read(ctx, at("still/logs/rank-0.log"), 1 << 20, &text, &n)); /* and in the log of who went on */
    said(text, "how this run ended before: rank 4 did not come");
    free(text);
}

/* ---- values that are not finite ----------------------------------------------------------------------------------- */

static const char *const policies[] = {"stop", "skip", "rollback"};

/* A NaN in one result of one rank, in each instruction of BAD_STEP that exchanges something: every rank decides alike, so the run ends or goes
 * on; what is left out is left out everywhere. */
static void a_nan_that_one_rank_sees(void **state)
{
    (void)state;
    static const char *const what[] = {"FORWARD", "LOSS", "BACKWARD", "REDUCE", "COUNT", "CLIP", "UPDATE", "GATHER", "RECV"};
    int skipped = 0, stopped = 0, back = 0;
    for (size_t i = 0; i < IM_COUNT_OF(layouts); i++)
        for (size_t w = 0; w < IM_COUNT_OF(what); w++)
            for (size_t p = 0; p < IM_COUNT_OF(policies); p++) {
                const layout *l = &layouts[i];
                int victim = l->ranks - 1;
                int n = operations(sound(l), victim, what[w]);
                if (!n || (p && (w + i) % 2)) /* the two milder policies on every other case */
                    continue;
                const char *run = im_arena_printf(arena, "nan-%s-%s-%s", l->name, what[w], policies[p]);
                im_train_options o = ranks(run, l->flag);
                stopper s;
                o.fault = fault("nan", what[w], n / 2 + 1, victim, 0);
                o.nonfinite = (int)p;
                *warned = '\0';
                im_status status = run_until(&o, -1, &s);
                if (status != IM_OK && status != IM_ERR_NONFINITE)
                    fail_msg("%s: %s: %s", run, im_status_name(status), im_error_text(ctx));
                if (p == IM_TRAIN_NONFINITE_STOP && status == IM_OK)
                    fail_msg("%s: nobody noticed", run);
                if (status == IM_ERR_NONFINITE && strstr(im_error_text(ctx), "step 4"))
                    said(im_error_text(ctx), "before the step"); /* weights that are gathered after the update are seen when they are used */
                no_warnings();
                stopped += status != IM_OK;
                skipped += status == IM_OK && p == IM_TRAIN_NONFINITE_SKIP;
                back += status == IM_OK && p == IM_TRAIN_NONFINITE_ROLLBACK;
                if (status == IM_OK)
                    said(s.text, p == IM_TRAIN_NONFINITE_SKIP ? "left out: not finite" : "back to step");
                im_error_clear(ctx);
                char newest[4096];
                im_checkpoint_meta meta;
                ok(im_checkpoint_latest_verified(ctx, at(im_arena_printf(arena, "%s/checkpoints", run)), newest, sizeof newest));
                ok(im_checkpoint_meta_read(ctx, newest, true, &meta));
                assert_true(status == IM_OK ? meta.step == STEPS : meta.step == BAD_STEP - 1 || meta.step == BAD_STEP);
                if (status == IM_OK && p == IM_TRAIN_NONFINITE_SKIP)
                    assert_int_equal(meta.updates, STEPS - 1);
                ok(im_remove_tree(ctx, at(run)));
            }
    print_message("%d runs stopped, %d left a step out, %d went back\n", stopped, skipped, back);
    assert_true(stopped >= 15 && skipped >= 3 && back >= 5);
}

/* What a rank on another machine may see of a shared disk: ranks beside rank 0, whose thread runs the test, read an older pointer. */
static const char *older; /* NULL: they see what there is */
static pthread_t first_rank;

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    size_t n = strlen(path);
    static const char pointer[] = "/checkpoints/latest";
    if (older && !pthread_equal(pthread_self(), first_rank) && n > strlen(pointer) && !strcmp(path + n - strlen(pointer), pointer))
        path = older;
    return real(path, mode);
}

/* A step is taken back: all ranks go to the checkpoint that rank 0 sees, so the run ends in the same bits as where all see the same (B36). */
static void back_to_what_rank_0_sees(void **state)
{
    (void)state;
    static const char *const names[] = {"seen-alike", "seen-late"};
    const layout *l = &layouts[0];
    stopper s;
    int n = operations(sound(l), 1, "COUNT");
    assert_true(n > 0);
    ok(im_file_write_atomic(ctx, at("older"), "step-1\n", 7));
    first_rank = pthread_self();
    *warned = '\0';
    for (int i = 0; i < 2; i++) {
        im_train_options o = ranks(names[i], l->flag);
        o.fault = fault("nan", "COUNT", 1, 1, 0);
        o.nonfinite = IM_TRAIN_NONFINITE_ROLLBACK;
        older = i ? at("older") : NULL;
        im_status status = run_until(&o, -1, &s);
        older = NULL;
        ok(status);
        said(s.text, "back to step 2");
    }
    *warned = '\0';
    assert_same_state(names[0], names[1], STEPS);
}

static void all_finite(const char *checkpoint)
{
    im_weights *weights;
    float x[257 * 12];
    ok(im_weights_open(ctx, checkpoint, &weights));
    const im_st_tensor *t = im_weights_find(weights, "model.embed_tokens.weight");
    assert_non_null(t);
    FILE *f = fopen(im_arena_printf(arena, "%s/model.safetensors", checkpoint), "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)t->offset, SEEK_SET), 0);
    assert_int_equal(fread(x, sizeof *x, IM_COUNT_OF(x), f), IM_COUNT_OF(x));
    fclose(f);
    im_weights_close(weights);
    for (size_t k = 0; k < IM_COUNT_OF(x); k++)
        assert_true(isfinite(x[k]));
}

/* An update that makes infinities of finite gradients: seen in its own step, before it is saved. */
static void weights_that_overflow(void **state)
{
    (void)state;
    static const layout alone = {"alone", {NULL}, 1};
    for (size_t i = 0; i <= IM_COUNT_OF(layouts); i++)
        for (size_t p = 0; p < IM_COUNT_OF(policies); p++) {
            const layout *l = i < IM_COUNT_OF(layouts) ? &layouts[i] : &alone;
            const char *run = im_arena_printf(arena, "overflow-%s-%s", l->name, policies[p]);
            im_train_options o = ranks(run, l->flag);
            stopper s;
            o.steps = BAD_STEP - 1;
            *warned = '\0';
            run_whole(&o);
            o = resume(run);
            o.steps = STEPS;
            o.lr = o.weight_decay = 1e20; /* weights times -1e40 */
            o.schedule = IM_TRAIN_CONSTANT;
            o.nonfinite = (int)p;
            assert_int_equal(run_until(&o, -1, &s), IM_ERR_NONFINITE);
            no_warnings();
            if (p != IM_TRAIN_NONFINITE_ROLLBACK)
                said(im_error_text(ctx), im_arena_printf(arena, "step %d: after the update weights are not finite, first in parameter ", BAD_STEP));
            else
                said(s.text, im_arena_printf(arena, "back to step %d", BAD_STEP - 1));
            if (l->ranks > 1 && p != IM_TRAIN_NONFINITE_ROLLBACK)
                said(im_error_text(ctx), ", on rank ");
            im_error_clear(ctx);
            char newest[4096];
            im_checkpoint_meta meta;
            ok(im_checkpoint_latest_verified(ctx, at(im_arena_printf(arena, "%s/checkpoints", run)), newest, sizeof newest));
            ok(im_checkpoint_meta_read(ctx, newest, true, &meta));
            assert_int_equal(meta.step, BAD_STEP - 1);
            all_finite(newest);
        }
}

static void bad_words(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {{"explode,at=1", "delay, drop"},
               {"die", "at=N"},
               {"die,at", "KEY=VALUE"},
               {"die,at=x", "not a number"},
               {"die,at=-1", "not a number"},
               {"die,when=1", "unknown"},
               {"die,at=1,rank=9", "has 2 ranks"},
               {"die,at=1,at=1e99", "not a number"},
               {"", "delay, drop"},
               {"die,,", "KEY=VALUE"}};
    im_comm_fault f;
    int rank;
    for (size_t i = 0; i < IM_COUNT_OF(bad); i++) {
        assert_int_equal(im_train_fault_parse(ctx, bad[i].text, 2, &f, &rank), IM_ERR_ARG);
        said(im_error_text(ctx), bad[i].why);
        im_error_clear(ctx);
    }
    ok(im_train_fault_parse(ctx, "delay,within=50,seed=3,seconds=1.5,rank=1", 4, &f, &rank));
    assert_true(f.kind == IM_FAULT_DELAY && f.within == 50 && f.seed == 3 && f.seconds == 1.5 && rank == 1 && !f.process);
    ok(im_train_fault_parse(ctx, "kill,at=7", 4, &f, &rank));
    assert_true(f.kind == IM_FAULT_DIE && f.process && f.at == 7 && rank == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_fails),          cmocka_unit_test(a_rank_that_fails_at_once), cmocka_unit_test(a_rank_that_calls_something_else),
        cmocka_unit_test(a_rank_that_leaves_one_out), cmocka_unit_test(a_rank_that_stands_still),  cmocka_unit_test(a_nan_that_one_rank_sees),
        cmocka_unit_test(back_to_what_rank_0_sees),   cmocka_unit_test(weights_that_overflow),     cmocka_unit_test(bad_words),
    };
    return cmocka_run_group_tests_name("rank_faults", tests, rig_setup, rig_teardown);
}
