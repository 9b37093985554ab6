/* A save that is killed, or whose disk is full or broken, at each call that changes a file: the checkpoint before it stays
 * whole and found, and the next save works.
 *
 * The calls are defined here, in the program, so that the library's go through them.
 */
#include "fault/engine_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { OFF, KILL, FULL, BROKEN_SYNC };
static atomic_int mode, countdown, calls; /* strikes when countdown reaches 0 */

/* One call that changes a file; true: it is to fail now. */
static bool strike(int which)
{
    if (mode == OFF || (mode != KILL && mode != which))
        return false;
    calls++;
    if (mode == FULL ? atomic_load(&countdown) > 0 && countdown-- > 1 : countdown-- != 1)
        return false;
    if (mode == KILL)
        kill(getpid(), SIGKILL);
    return true;
}

/* what the headers declare as throwing nothing, or with nonnull, is defined as declared */
ssize_t pwrite(int fd, const void *p, size_t n, off_t at_byte)
{
    if (strike(FULL)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, p, n, at_byte);
}
ssize_t write(int fd, const void *p, size_t n)
{
    if (fd > 2 && strike(FULL)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, p, n);
}
int fallocate(int fd, int how, off_t from, off_t n)
{
    if (strike(FULL)) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, how, from, n);
}
int ftruncate(int fd, off_t n)
{
    strike(KILL);
    return (int)syscall(SYS_ftruncate, fd, n);
}
int fsync(int fd)
{
    if (strike(BROKEN_SYNC)) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}
int rename(const char *from, const char *to)
{
    strike(KILL);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat2(int d, const char *from, int e, const char *to, unsigned flags)
{
    strike(KILL);
    return (int)syscall(SYS_renameat2, d, from, e, to, flags);
}
int unlink(const char *path)
{
    strike(KILL);
    return (int)syscall(SYS_unlink, path);
}
int unlinkat(int d, const char *path, int flags)
{
    strike(KILL);
    return (int)syscall(SYS_unlinkat, d, path, flags);
}
int rmdir(const char *path)
{
    strike(KILL);
    return (int)syscall(SYS_rmdir, path);
}

static void arm(int what, int at_call)
{
    countdown = at_call;
    calls = 0;
    mode = what;
}

/* The newest checkpoint is whole, and is what was saved as that step. */
static int64_t newest_step(const char *root)
{
    char newest[4096];
    im_checkpoint_meta meta, want;
    ok(im_checkpoint_latest(ctx, root, newest, sizeof newest));
    ok(im_checkpoint_meta_read(ctx, newest, true, &meta));
    want = meta_of(meta.step);
    assert_memory_equal(&meta, &want, sizeof meta);
    return meta.step;
}

/* No directory whose name says that it is being written or removed. */
static bool has_leftovers(const char *root)
{
    char command[512];
    snprintf(command, sizeof command, "ls %s | grep -q -e tmp -e old", root);
    return system(command) == 0;
}

/* In a child, since SIGKILL takes the process: saves `step`, the first time from values of seed `step`. */
static int child_saves(const char *root, int64_t step, int at_call)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        holder h;
        hold(&h, at("model.json"), IM_F32);
        fill_all(&h, (uint64_t)step);
        if (at_call)
            arm(KILL, at_call);
        im_status s = save_step(&h, root, step, 2);
        mode = OFF;
        _exit(s == IM_OK ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void killed_at_each_call(void **state)
{
    (void)state;
    const char *root = at("kills");
    assert_int_equal(child_saves(root, 1, 0), 0);
    assert_int_equal(child_saves(root, 2, 0), 0);
    int64_t newest = 2;
    int points = 0, fell_back = 0, published = 0;
    for (int k = 1;; k++) {
        int64_t step = newest + 1;
        int end = child_saves(root, step, k);
        if (end == 0)
            break;
        assert_int_equal(end, -SIGKILL);
        points++;
        int64_t found = newest_step(root);
        assert_true(found == newest || found == step);
        if (found == step)
            published++;
        else
            fell_back++;
        /* the next save, of the same step when it was not published, works and leaves nothing behind */
        newest = found;
        assert_int_equal(child_saves(root, step + (found == step), 0), 0);
        newest = step + (found == step);
        assert_int_equal(newest_step(root), newest);
        assert_false(has_leftovers(root));
    }
    no_warnings();
    assert_true(points > 30);
    assert_true(fell_back > 20 && published > 3);
}

/* The disk is full from the k-th write on; later it is not. */
static void full_at_each_write(void **state)
{
    (void)state;
    const char *root = at("full");
    holder h;
    hold(&h, at("model.json"), IM_F32);
    fill_all(&h, 1);
    ok(save_step(&h, root, 1, 2));
    int points = 0;
    for (int k = 1; k < 1000; k++) {
        arm(FULL, k);
        im_status s = save_step(&h, root, 2, 2);
        mode = OFF;
        if (s == IM_OK)
            break;
        points++;
        assert_int_equal(s, IM_ERR_IO);
        assert_non_null(strstr(im_error_text(ctx), "No space left"));
        im_error_clear(ctx);
        assert_int_equal(newest_step(root), 1);
        assert_false(im_path_exists(at("full/step-2.tmp")));
    }
    assert_true(points > 20);
    assert_int_equal(newest_step(root), 2);
    let_go(&h);
    no_warnings();
}

static void broken_at_each_sync(void **state)
{
    (void)state;
    const char *root = at("sync");
    holder h;
    hold(&h, at("model.json"), IM_F32);
    ok(save_step(&h, root, 1, 2));
    int points = 0;
    for (int k = 1; k < 1000; k++) {
        arm(BROKEN_SYNC, k);
        im_status s = save_step(&h, root, 2, 2);
        mode = OFF;
        if (s == IM_OK)
            break;
        points++;
        assert_int_equal(s, IM_ERR_IO);
        im_error_clear(ctx);
        (void)newest_step(root);
    }
    assert_true(points >= 6);
    assert_int_equal(newest_step(root), 2);
    let_go(&h);
    no_warnings();
}

typedef struct several {
    const char *name;
    int tp, dp, pp, zero;
} several;

static const several layouts[] = {{"one", 1, 1, 1, 0}, {"dp2z3", 1, 2, 1, 3}, {"tp3", 3, 1, 1, 0}, {"pp2", 1, 1, 2, 0}};

static im_train_options laid_out(const char *run, const several *l, int steps)
{
    im_train_options o = tiny(run, steps);
    o.tp = l->tp;
    o.dp = l->dp;
    o.pp = l->pp;
    o.zero = l->zero;
    o.rings = false;
    o.keep = 0;
    return o;
}

/* A run on a disk that fills up: it goes on, says so, keeps what is whole, and its status is an error; on all ranks alike. */
static void run_on_a_small_disk(void **state)
{
    (void)state;
    for (size_t i = 0; i < IM_COUNT_OF(layouts); i++) {
        const char *disk = im_arena_printf(arena, "small-%s", layouts[i].name), *run = im_arena_printf(arena, "%s/run", disk);
        ok(im_mkdirs(ctx, at(disk)));
        if (mount("tmpfs", at(disk), "tmpfs", 0, "size=320k")) {
            print_message("SKIP small-disk: mounting a tmpfs needs root\n");
            skip();
        }
        im_train_options o = laid_out(run, &layouts[i], 8);
        o.save_every = 2;
        stopper s;
        im_status status = run_until(&o, -1, &s);
        char why[1024];
        snprintf(why, sizeof why, "%s", im_error_text(ctx));
        im_error_clear(ctx);
        char newest[4096];
        im_checkpoint_meta meta;
        const char *root = at(im_arena_printf(arena, "%s/checkpoints", run));
        im_status found = im_checkpoint_latest_verified(ctx, root, newest, sizeof newest);
        if (found == IM_OK)
            found = im_checkpoint_meta_read(ctx, newest, true, &meta);
        bool leftovers = has_leftovers(root);
        umount(at(disk));
        assert_int_equal(status, IM_ERR_IO);
        assert_non_null(strstr(why, "No space left"));
        assert_non_null(strstr(s.text, "was not saved"));
        assert_int_equal(found, IM_OK);
        assert_true(meta.step >= 2 && meta.step < 8);
        assert_false(leftovers);
    }
}

/* A sync of any rank fails in a run that saves after each of three steps: that save fails for all, the others are whole, and the run's status is
 * that of its last save. */
static void run_with_a_broken_sync(void **state)
{
    (void)state;
    int failed = 0, last_failed = 0, named = 0;
    for (size_t i = 1; i < IM_COUNT_OF(layouts); i++)
        for (int k = 3 + (int)i; k < 1000; k += 5) {
            const char *run = im_arena_printf(arena, "sync-%s-%d", layouts[i].name, k);
            im_train_options o = laid_out(run, &layouts[i], 3);
            stopper s;
            o.save_every = 1;
            arm(BROKEN_SYNC, k);
            im_status status = run_until(&o, -1, &s);
            mode = OFF;
            if (!im_path_exists(at(im_arena_printf(arena, "%s/metrics.jsonl", run)))) { /* before the first step: nothing was begun */
                assert_int_equal(status, IM_ERR_IO);
                im_error_clear(ctx);
                continue;
            }
            if (calls < k)
                break;
            bool told = strstr(s.text, "was not saved") != NULL;
            if (!(told ? status == IM_OK || status == IM_ERR_IO : status == IM_ERR_IO)) /* else a picture or such was not written: told as the end */
                fail_msg("%s, call %d of %d: %s: %s", run, k, (int)calls, im_status_name(status), im_error_text(ctx));
            im_error_clear(ctx);
            if (!told)
                continue;
            named += strstr(s.text, "was not saved: rank ") != NULL;
            failed++;
            last_failed += status == IM_ERR_IO;
            char newest[4096];
            im_checkpoint_meta meta;
            const char *root = at(im_arena_printf(arena, "%s/checkpoints", run));
            ok(im_checkpoint_latest_verified(ctx, root, newest, sizeof newest));
            ok(im_checkpoint_meta_read(ctx, newest, true, &meta));
            assert_true(status == IM_OK ? meta.step == 3 : meta.step == 3 || meta.step == 2);
            assert_false(has_leftovers(root));
            ok(im_remove_tree(ctx, at(run)));
        }
    print_message("%d runs with a failed save, %d of them the last one; %d told the rank\n", failed, last_failed, named);
    assert_true(failed >= 6 && last_failed >= 2 && last_failed < failed);
}

/* A run of several ranks that saves after each step, killed at calls all over it: what is found is whole, and goes on to the bits of the run that was
 * left alone, with nothing left over. */
static void run_killed_at_calls(void **state)
{
    (void)state;
    enum { STEPS = 3, POINTS = 9 };
    for (size_t i = 1; i < IM_COUNT_OF(layouts); i++) {
        const char *alone = im_arena_printf(arena, "alone-%s", layouts[i].name);
        im_train_options o = laid_out(alone, &layouts[i], STEPS);
        o.save_every = 1;
        arm(KILL, INT32_MAX); /* counts */
        run_whole(&o);
        mode = OFF;
        int points = 0, saved = 0, total = calls;
        for (int k = 1 + (int)i; k < total; k += total / POINTS) {
            const char *run = im_arena_printf(arena, "struck-%s-%d", layouts[i].name, k);
            pid_t child = fork();
            assert_true(child >= 0);
            if (!child) {
                o = laid_out(run, &layouts[i], STEPS);
                o.save_every = 1;
                stopper s;
                arm(KILL, k);
                _exit(run_until(&o, -1, &s) == IM_OK ? 0 : 1);
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            if (WIFEXITED(status)) { /* fewer calls than that */
                assert_int_equal(WEXITSTATUS(status), 0);
                break;
            }
            assert_int_equal(WTERMSIG(status), SIGKILL);
            points++;
            if (im_path_exists(at(im_arena_printf(arena, "%s/plan.yaml", run)))) { /* before it is there nothing was begun */
                char newest[4096];
                im_status found = im_checkpoint_latest_verified(ctx, at(im_arena_printf(arena, "%s/checkpoints", run)), newest, sizeof newest);
                saved += found == IM_OK;
                im_error_clear(ctx);
                *warned = '\0'; /* without a checkpoint yet it begins again, and says so */
                o = resume(run);
                run_whole(&o);
                assert_null(strstr(warned, "not complete"));
                *warned = '\0';
                assert_same_state(alone, run, STEPS);
                assert_false(has_leftovers(at(im_arena_printf(arena, "%s/checkpoints", run))));
            }
            if (im_path_exists(at(run)))
                ok(im_remove_tree(ctx, at(run)));
        }
        print_message("%s: %d calls, killed at %d of them, a checkpoint was there after %d\n", layouts[i].name, total, points, saved);
        assert_true(points >= POINTS - 1 && saved >= 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_killed_at_calls), cmocka_unit_test(killed_at_each_call), cmocka_unit_test(full_at_each_write),
        cmocka_unit_test(broken_at_each_sync), cmocka_unit_test(run_on_a_small_disk), cmocka_unit_test(run_with_a_broken_sync),
    };
    return cmocka_run_group_tests_name("save_faults", tests, rig_setup, rig_teardown);
}
