/* Schedules as pure functions: every part once, no deadlock, activations and idle time as they say. */
#include "plan/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { P = 16, M = 64, V = 4, PARTS = 4 };

typedef struct lists {
    const im_schedule_kind *k;
    int p, m, v;
    im_task *task[P];
    size_t n[P];
    double *end; /* of each [part][virtual stage][mb]; < 0: not done */
} lists;

static double *end_of(const lists *l, int part, int stage, int mb)
{
    return &l->end[((size_t)part * P * V + (size_t)stage) * M + (size_t)mb];
}

static lists make(im_schedule s, int p, int m, int v)
{
    lists l = {.k = im_schedule_of(s), .p = p, .m = m, .v = v};
    for (int r = 0; r < p; r++) {
        l.task[r] = malloc(sizeof(im_task) * 3 * (size_t)m * (size_t)v);
        l.n[r] = l.k->tasks(p, m, v, r, l.task[r]);
    }
    l.end = malloc(sizeof(double) * PARTS * P * V * M);
    for (size_t i = 0; i < PARTS * P * V * M; i++)
        l.end[i] = -1;
    return l;
}

static void drop(lists *l)
{
    for (int r = 0; r < l->p; r++)
        free(l->task[r]);
    free(l->end);
}

/* When the task may start by what it reads: the part before it, `late` after it ended; < 0: not yet. */
static double ready(const lists *l, int r, const im_task *t, double late)
{
    int s = t->chunk * l->p + r, last = l->p * l->v - 1;
    double from = 0;
    if (t->part == IM_PART_FORWARD)
        return s ? (*end_of(l, IM_PART_FORWARD, s - 1, t->mb) < 0 ? -1 : *end_of(l, IM_PART_FORWARD, s - 1, t->mb) + late) : 0;
    if (t->part == IM_PART_WEIGHT)
        return *end_of(l, IM_PART_INPUT, s, t->mb);
    from = *end_of(l, IM_PART_FORWARD, s, t->mb);
    if (from < 0 || s == last)
        return from;
    double next = *end_of(l, t->part, s + 1, t->mb);
    return next < 0 ? -1 : fmax(from, next + late);
}

/* Runs the lists; messages are late by what `late` says of each. Returns the time of the whole, < 0: deadlock. */
static double run(lists *l, double (*late)(unsigned *seed), unsigned seed)
{
    static const double cost[PARTS] = {1, 2, 1, 1};
    double now[P] = {0}, total = 0;
    size_t at[P] = {0}, left = 0;
    for (int r = 0; r < l->p; r++)
        left += l->n[r];
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < l->p; r++)
            while (at[r] < l->n[r]) {
                const im_task *t = &l->task[r][at[r]];
                double from = ready(l, r, t, late(&seed));
                if (from < 0)
                    break;
                double *e = end_of(l, t->part, t->chunk * l->p + r, t->mb);
                assert_true(*e < 0); /* once */
                now[r] = *e = fmax(now[r], from) + cost[t->part] / l->v;
                total = fmax(total, now[r]);
                at[r]++;
                left--;
                moved = true;
            }
    }
    return left ? -1 : total;
}

static double at_once(unsigned *seed)
{
    (void)seed;
    return 0;
}

static double by_chance(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 16) % 7 ? 0 : 5;
}

/* Both ends of a channel name the messages in one order: the receiver need not look for one. */
static void one_order(const lists *l, int r, bool forward)
{
    int to = forward ? (r + 1) % l->p : (r + l->p - 1) % l->p, last = l->p * l->v - 1;
    size_t j = 0;
    for (size_t i = 0; i < l->n[r]; i++) {
        const im_task *t = &l->task[r][i];
        int s = t->chunk * l->p + r;
        bool sends = forward ? t->part == IM_PART_FORWARD && s < last : (t->part == IM_PART_BACKWARD || t->part == IM_PART_INPUT) && s > 0;
        if (!sends)
            continue;
        for (; j < l->n[to]; j++) {
            const im_task *u = &l->task[to][j];
            int k = u->chunk * l->p + to;
            if (forward ? u->part == IM_PART_FORWARD && k > 0 : (u->part == IM_PART_BACKWARD || u->part == IM_PART_INPUT) && k < last)
                break;
        }
        assert_true(j < l->n[to]);
        const im_task *u = &l->task[to][j++];
        assert_int_equal(u->mb, t->mb);
        assert_int_equal(u->chunk * l->p + to, forward ? s + 1 : s - 1);
    }
}

/* Forwards ascending in each chunk, backwards too (sums have one order), and never more alive than the schedule says. */
static void activations(const lists *l, int r)
{
    int live = 0, most = 0, next[PARTS][V];
    memset(next, 0, sizeof next);
    for (size_t i = 0; i < l->n[r]; i++) {
        const im_task *t = &l->task[r][i];
        assert_int_equal(t->mb, next[t->part][t->chunk]++);
        live += t->part == IM_PART_FORWARD;
        most = live > most ? live : most;
        live -= t->part == (l->k->splits ? IM_PART_WEIGHT : IM_PART_BACKWARD);
    }
    assert_int_equal(live, 0);
    assert_true(most <= l->k->alive(l->p, l->m, l->v, r));
}

static void every_size(void **state)
{
    (void)state;
    for (int s = 0; s < IM_SCHEDULE_COUNT; s++) {
        const im_schedule_kind *k = im_schedule_of((im_schedule)s);
        for (int p = 1; p <= P; p++)
            for (int m = 1; m <= M; m++)
                for (int v = 1; v <= (k->chunks ? V : 1); v++) {
                    lists l = make((im_schedule)s, p, m, v);
                    double total = run(&l, at_once, 0);
                    if (total < 0)
                        fail_msg("%s, p %d, m %d, v %d: deadlock", k->name, p, m, v);
                    double want = k->bubble(p, m, v), idle = 1 - 3.0 * m / total;
                    if (want >= 0 && fabs(idle - want) > 1e-12)
                        fail_msg("%s, p %d, m %d, v %d: idle %.6f, the formula says %.6f", k->name, p, m, v, idle, want);
                    for (int r = 0; r < p; r++) {
                        assert_int_equal(l.n[r], (size_t)m * (size_t)v * (k->splits ? 3 : 2));
                        activations(&l, r);
                        one_order(&l, r, true);
                        one_order(&l, r, false);
                    }
                    for (size_t i = 0; i < PARTS * P * V * M; i++)
                        l.end[i] = -1;
                    if (m % 7 == 1 && run(&l, by_chance, (unsigned)(p * 1000 + m)) < 0)
                        fail_msg("%s, p %d, m %d, v %d: deadlock when messages come late", k->name, p, m, v);
                    drop(&l);
                }
    }
}

/* What the publications print. */
static void published(void **state)
{
    (void)state;
    assert_true(fabs(im_schedule_gpipe.bubble(4, 8, 1) - 3.0 / 11) < 1e-12);
    assert_true(fabs(im_schedule_1f1b.bubble(4, 8, 1) - 3.0 / 11) < 1e-12);
    assert_true(fabs(im_schedule_interleaved.bubble(4, 8, 2) - 3.0 / 19) < 1e-12);
    assert_true(im_schedule_zb_h1.bubble(4, 8, 1) < im_schedule_interleaved.bubble(4, 8, 2));
    for (int r = 0; r < 4; r++) {
        assert_int_equal(im_schedule_gpipe.alive(4, 8, 1, r), 8);
        assert_int_equal(im_schedule_1f1b.alive(4, 8, 1, r), 4 - r);
        assert_int_equal(im_schedule_zb_h1.alive(4, 8, 1, r), 4);
    }
    assert_null(im_schedule_of(IM_SCHEDULE_COUNT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size), cmocka_unit_test(published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
