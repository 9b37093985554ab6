/* The rings of all ranks: who is at fault. Each case writes what a run would have left: operations of the world's group, with times. */
#include "comm/ring.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { MOST = 8, GROUPS = 2 };

typedef struct rig {
    im_context *ctx;
    int n;
    im_comm_ring *ring; /* [n] */
    double now;
} rig;

static double wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* n ranks that are threads of this process, in step 7; group 1 is of the even ranks. Times are seconds before now. */
static rig make(int n)
{
    rig r = {.n = n, .now = im_clock_now()};
    assert_int_equal(im_context_create(&r.ctx), IM_OK);
    r.ring = calloc((size_t)n, sizeof *r.ring);
    for (int i = 0; i < n; i++) {
        im_comm_ring *g = &r.ring[i];
        g->header = (im_ring_header){.magic = "imcring",
                                     .rank = i,
                                     .world = n,
                                     .backend = "threads",
                                     .wall = wall() - r.now,
                                     .process = im_process_self(),
                                     .alive = r.now,
                                     .since = r.now - 1,
                                     .step = 7,
                                     .groups = GROUPS,
                                     .members = (uint32_t)(2 * n)};
        snprintf(g->header.what, sizeof g->header.what, "REDUCE %d", i);
        g->group = calloc(GROUPS, sizeof *g->group);
        g->member = calloc((size_t)(2 * n), sizeof *g->member);
        g->record = calloc(IM_RING_RECORDS, sizeof *g->record);
        int even = 0;
        for (int k = 0; k < n; k++) {
            g->member[k] = k;
            if (k % 2 == 0)
                g->member[n + even++] = k;
        }
        g->group[0] = (im_ring_group){.id = 0, .rank = i, .size = n, .members = 0};
        g->group[1] = (im_ring_group){.id = 9, .rank = i / 2, .size = even, .members = (uint32_t)n};
    }
    return r;
}

static im_ring_record *add(rig *r, int rank, im_ring_state s, uint64_t seq, double ago)
{
    im_comm_ring *g = &r->ring[rank];
    im_ring_record *x = &g->record[g->nrecord++];
    g->header.written++;
    *x = (im_ring_record){.number = g->nrecord,
                          .seq = seq,
                          .count = 64,
                          .step = 7,
                          .enqueued = r->now - ago,
                          .peer = -1,
                          .op = IM_COMM_ALL_REDUCE,
                          .dtype = IM_F32,
                          .state = (uint8_t)s};
    if (s >= IM_RING_STARTED)
        x->started = x->enqueued;
    if (s >= IM_RING_DONE)
        x->ended = r->now - (s == IM_RING_DONE ? ago : 0);
    snprintf(x->what, sizeof x->what, "REDUCE %d", (int)seq);
    return x;
}

static void ends(rig *r, int rank, im_status s, const char *text, double ago)
{
    im_ring_header *h = &r->ring[rank].header;
    h->end = text ? IM_RING_ERROR : IM_RING_ENDED;
    h->status = s;
    h->ended = r->now - ago;
    snprintf(h->text, sizeof h->text, "%s", text ? text : "");
}

/* faults by rank, 's': sound, 'g', 'b', 'd', 'a', 't' (still), 'c'; then the words that the verdict has. */
static void judge(rig *r, const char *faults, ...)
{
    static const char letters[] = "sgbdatc";
    char got[MOST + 1] = "";
    im_comm_rings rings;
    im_str verdict = {0}, table = {0};
    assert_int_equal(im_comm_rings_make(r->ctx, r->ring, r->n, &rings), IM_OK);
    for (int i = 0; i < r->n; i++)
        got[i] = rings.view[i].known ? letters[rings.view[i].fault] : '?';
    im_comm_rings_verdict(&rings, &verdict);
    im_comm_rings_table(&rings, &table);
    if (strcmp(got, faults))
        fail_msg("%s, not %s: %s\n%s", got, faults, im_str_text(&verdict), im_str_text(&table));
    va_list ap;
    va_start(ap, faults);
    for (const char *word; (word = va_arg(ap, const char *));)
        if (!strstr(im_str_text(&verdict), word))
            fail_msg("no \"%s\" in: %s", word, im_str_text(&verdict));
    va_end(ap);
    im_str_free(&verdict);
    im_str_free(&table);
    im_comm_rings_free(&rings);
    im_context_destroy(r->ctx);
}

/* All have done operation 16; who of them are in 17, for how long. */
static rig in_17(int n, const char *who, im_ring_state s, double ago)
{
    rig r = make(n);
    for (int i = 0; i < n; i++) {
        add(&r, i, IM_RING_DONE, 16, ago + 1);
        if (who[i] == 'x')
            add(&r, i, s, 17, ago);
    }
    return r;
}

static void one_does_not_come(void **state)
{
    (void)state;
    rig r = in_17(4, "xx.x", IM_RING_STARTED, 5);
    judge(&r, "ssas", "rank 2 did not come: it is in step 7, REDUCE 2", "rank 0 1 3 waited ",
          " s for it in all_reduce of 64 x fp32 sum, operation 17 of group [0-3]", "its last operation was all_reduce of 64 x fp32 sum, operation 16",
          NULL);

    r = in_17(4, "xx.x", IM_RING_FAILED, 5); /* and when all have ended */
    for (int i = 0; i < 4; i++)
        ends(&r, i, i == 1 ? IM_ERR_TIMEOUT : IM_ERR_ABORTED, "not arrived: rank 2", 0);
    judge(&r, "ssas", "rank 2 did not come: it was in", NULL);

    r = in_17(4, "xxxx", IM_RING_FAILED, 5); /* it came when the world was dead: that does not count */
    r.ring[2].record[1].started = r.now + 1e-3;
    r.ring[2].record[1].ended = r.now + 2e-3;
    judge(&r, "ssas", "rank 0 1 3 waited", NULL);

    r = in_17(4, "xx.x", IM_RING_STARTED, 5); /* called, behind others in its queue */
    add(&r, 2, IM_RING_ENQUEUED, 17, 6);
    judge(&r, "ssas", "called and not begun: all_reduce of 64 x fp32 sum, operation 17", NULL);
}

/* Of a chain the last is named: 0 waits for 2 in group 9, 1 and 3 for 0 in the world. */
static void the_end_of_a_chain(void **state)
{
    (void)state;
    rig r = in_17(4, ".x.x", IM_RING_STARTED, 4);
    add(&r, 0, IM_RING_STARTED, 5, 4)->group = 9;
    judge(&r, "ssas", "rank 2 did not come", NULL);

    r = in_17(4, ".xxx", IM_RING_STARTED, 4); /* rank 2 waits for rank 0 in the world, rank 0 for rank 2 in the group */
    add(&r, 0, IM_RING_STARTED, 5, 4)->group = 9;
    judge(&r, "cccc", "rank 0-3 wait for one another", NULL);
}

static void one_fails(void **state)
{
    (void)state;
    rig r = in_17(4, "x..x", IM_RING_FAILED, 0.001);
    ends(&r, 2, IM_ERR_FORMAT, "bad.bin: token 560", 0.0001);
    for (int i = 0; i < 4; i++)
        if (i != 2)
            ends(&r, i, IM_ERR_ABORTED, "rank 2 failed: bad.bin", 0);
    judge(&r, "ssbs", "rank 2 failed: it was in step 7, REDUCE 2: bad.bin: token 560", NULL);
}

static void one_calls_something_else(void **state)
{
    (void)state;
    rig r = in_17(4, "xxxx", IM_RING_FAILED, 0.1);
    r.ring[3].record[1].count = 65;
    for (int i = 0; i < 4; i++)
        ends(&r, i, IM_ERR_ARG, "differs", 0);
    judge(&r, "sssd", "rank 3 called something else than its group: all_reduce of 65 x fp32", NULL);

    r = in_17(2, "xx", IM_RING_FAILED, 0.1); /* of two nobody can say who is right */
    r.ring[1].record[1].op = IM_COMM_BARRIER;
    judge(&r, "dd", "rank 0 called", "rank 1 called", NULL);
}

static void messages(void **state)
{
    (void)state;
    rig r = make(3);
    im_ring_record *x = add(&r, 1, IM_RING_STARTED, 3, 2); /* rank 1 waits for rank 0's third message */
    x->op = IM_COMM_RECV;
    x->peer = 0;
    x = add(&r, 0, IM_RING_DONE, 2, 3);
    x->op = IM_COMM_SEND;
    x->peer = 1;
    judge(&r, "ass", "rank 1 waited ", " s for it in recv of 64 x fp32 from rank 0, message 3", NULL);

    r = make(3);
    for (int i = 0; i < 2; i++) {
        x = add(&r, i, IM_RING_STARTED, 3, 2); /* both there: they are at it */
        x->op = i ? IM_COMM_RECV : IM_COMM_SEND;
        x->peer = !i;
    }
    judge(&r, "sss", NULL);
}

/* Of a process that was: its number, and who waited for it to end. */
static im_process dead_process(void)
{
    int fd[2];
    im_process p;
    assert_int_equal(pipe(fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        p = im_process_self();
        _exit(write(fd[1], &p, sizeof p) == sizeof p ? 0 : 1);
    }
    assert_int_equal(read(fd[0], &p, sizeof p), sizeof p);
    close(fd[0]);
    close(fd[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(im_process_state(&p), 'X');
    return p;
}

static void one_is_killed(void **state)
{
    (void)state;
    rig r = in_17(4, "x.xx", IM_RING_STARTED, 0.01);
    r.ring[1].header.process = dead_process();
    judge(&r, "sgss", "rank 1 is gone (process ", "ended without a word", "it was in step 7, REDUCE 1", NULL);

    r = in_17(4, "xxxx", IM_RING_STARTED, 0.01); /* in the middle of an operation, then all of them, as a launcher does */
    for (int i = 0; i < 4; i++)
        r.ring[i].header.process = dead_process();
    r.ring[2].header.saw = 1 + 1;
    r.ring[2].header.saw_at = r.now;
    judge(&r, "sgss", "rank 1 is gone", NULL);

    r = in_17(4, "xx.x", IM_RING_STARTED, 0.01); /* all at once, in no time: no rank is at fault alone */
    for (int i = 0; i < 4; i++)
        r.ring[i].header.process = dead_process();
    judge(&r, "gggg", "all 4 ranks are gone (rank 0: process ", "when memory or power ran out; rank 0 was in step 7, REDUCE 0", NULL);

    r = in_17(4, "xx.x", IM_RING_STARTED, 5); /* rank 0 waited too long for rank 2 and left without a word: rank 1 saw that it was gone */
    for (int i = 0; i < 4; i++)
        r.ring[i].header.process = dead_process();
    r.ring[0].record[1].state = IM_RING_FAILED;
    r.ring[0].record[1].ended = r.now;
    r.ring[1].header.saw = 1 + 0;
    r.ring[1].header.saw_at = r.now;
    judge(&r, "ssas", "rank 2 did not come", NULL);
}

static void one_stands_still(void **state)
{
    (void)state;
    rig r = in_17(4, "xxxx", IM_RING_STARTED, 9); /* in the middle of an operation */
    r.ring[3].header.alive = r.now - 9;
    judge(&r, "ssst", "rank 3 stands still (process ", "silent", NULL);

    r = in_17(4, "xxxx", IM_RING_STARTED, 9); /* seen when all are dead */
    for (int i = 0; i < 4; i++) {
        r.ring[i].header.process = dead_process();
        r.ring[i].header.alive = r.now - (i == 2 ? 9 : 1);
    }
    judge(&r, "ssts", NULL);

    for (int all = 0; all < 2; all++) { /* woken by what ended the job; where all have been silent, the machine slept */
        r = in_17(4, "xxxx", IM_RING_STARTED, 9);
        for (int i = 0; i < 4; i++) {
            r.ring[i].header.process = dead_process();
            r.ring[i].header.alive = r.now - 1;
            if (i == 2 || all) {
                r.ring[i].header.silent_from = r.now - 9;
                r.ring[i].header.silent_to = r.now - 1.1;
            }
        }
        judge(&r, all ? "gggg" : "ssts", NULL);
    }
}

static void not_all_are_known(void **state)
{
    (void)state;
    rig r = in_17(4, "xx.x", IM_RING_STARTED, 5);
    im_comm_ring_free(&r.ring[2]);
    judge(&r, "ss?s", NULL);
    r = in_17(4, "....", IM_RING_STARTED, 5);
    for (int i = 0; i < 4; i++)
        ends(&r, i, IM_OK, NULL, 0);
    judge(&r, "ssss", NULL);
}

/* A group that has no place in the table, members and peers out of range. */
static void odd_groups(void **state)
{
    (void)state;
    rig r = in_17(3, "xx.", IM_RING_STARTED, 5);
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < r.ring[i].nrecord; k++)
            r.ring[i].record[k].group = 1234;
    judge(&r, "sss", NULL);
    r = in_17(3, "xx.", IM_RING_STARTED, 5);
    r.ring[0].member[1] = -5;
    r.ring[0].member[2] = 77;
    judge(&r, "ssa", NULL);
}

static void files(void **state)
{
    (void)state;
    im_context *ctx;
    im_comm_rings rings;
    char dir[] = "/tmp/imece-rings-XXXXXX";
    assert_int_equal(im_context_create(&ctx), IM_OK);
    assert_non_null(mkdtemp(dir));
    assert_int_equal(im_comm_rings_read(ctx, dir, &rings), IM_ERR_NOT_FOUND);
    im_error_clear(ctx);
    char path[64];
    snprintf(path, sizeof path, "%s/rank-3", dir);
    assert_int_equal(im_file_write_atomic(ctx, path, "no ring", 7), IM_OK);
    assert_int_equal(im_comm_rings_read(ctx, dir, &rings), IM_ERR_FORMAT);
    assert_non_null(strstr(im_error_text(ctx), "rank-3"));
    im_error_clear(ctx);
    assert_int_equal(im_remove_tree(ctx, dir), IM_OK);
    im_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_does_not_come), cmocka_unit_test(the_end_of_a_chain),
        cmocka_unit_test(one_fails),         cmocka_unit_test(one_calls_something_else),
        cmocka_unit_test(messages),          cmocka_unit_test(one_is_killed),
        cmocka_unit_test(one_stands_still),  cmocka_unit_test(not_all_are_known),
        cmocka_unit_test(odd_groups),        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests_name("rings", tests, NULL, NULL);
}
