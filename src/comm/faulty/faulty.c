/* faulty: one operation of this rank goes wrong on purpose; for the tests of everything that must notice. */
#include "comm/backend.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Shared by the communicators of a rank, which are made, used and destroyed by one thread. */
typedef struct im_fault_plan {
    im_comm_fault fault;
    uint64_t count; /* operations so far, of those that are counted */
    bool counts;    /* what the rank does now is counted */
    int refs;
} im_fault_plan;

typedef struct im_faulty_comm {
    im_comm head;
    im_fault_plan *plan;
    _Atomic(im_comm_call *) victim; /* set by the caller's thread before the call is pushed */
} im_faulty_comm;

static const im_comm_table faulty_table;

static im_status wrap(im_comm *inner, im_fault_plan *plan, im_comm **out)
{
    void *p;
    IM_TRY(im_alloc(inner->ctx, 1, sizeof(im_faulty_comm), &p));
    im_faulty_comm *f = p;
    im_status status = im_comm_init(&f->head, &faulty_table, inner->device, inner->rank, inner->size, inner->members, inner->id, inner->deadline);
    if (status != IM_OK) {
        free(f);
        return status;
    }
    f->head.inner = inner;
    f->plan = plan;
    *out = &f->head;
    return IM_OK;
}

im_status im_comm_faulty(im_comm *inner, const im_comm_fault *fault, im_comm **out)
{
    uint32_t x[4];
    void *p;
    if (!fault->at && !fault->within)
        return im_fail(inner->ctx, IM_ERR_ARG, "a fault needs `at`, or `within` and a seed");
    if ((unsigned)fault->kind > IM_FAULT_MISMATCH || !(fault->seconds >= 0))
        return im_fail(inner->ctx, IM_ERR_ARG, "a fault of kind %d, %g seconds", (int)fault->kind, fault->seconds);
    IM_TRY(im_alloc(inner->ctx, 1, sizeof(im_fault_plan), &p));
    im_fault_plan *plan = p;
    *plan = (im_fault_plan){.fault = *fault, .counts = !fault->step && !fault->what[0], .refs = 1};
    if (!fault->at) {
        im_philox(fault->seed, 0, 0, x);
        plan->fault.at = 1 + x[0] % fault->within;
    }
    im_status status = wrap(inner, plan, out);
    if (status != IM_OK)
        free(plan);
    return status;
}

/* Another type of the same size where there is one: no buffer is read or written beyond its end. */
static im_dtype other_type(im_dtype t)
{
    static const im_dtype other[IM_DTYPE_COUNT] = {
        [IM_F32] = IM_I32,  [IM_I32] = IM_F32,  [IM_F64] = IM_I64, [IM_I64] = IM_F64,
        [IM_F16] = IM_BF16, [IM_BF16] = IM_F16, [IM_U8] = IM_U16,  [IM_U16] = IM_F16,
    };
    return other[t];
}

static void faulty_enqueued(im_comm *c, im_comm_call *call)
{
    im_faulty_comm *f = (im_faulty_comm *)c;
    if (f->plan->counts && ++f->plan->count == f->plan->fault.at) {
        if (f->plan->fault.kind == IM_FAULT_MISMATCH)
            call->dtype = other_type(call->dtype);
        atomic_store(&f->victim, call);
    }
    if (c->inner->backend->enqueued)
        c->inner->backend->enqueued(c->inner, call);
}

static void faulty_note(im_comm *c, int64_t step, const char *what)
{
    im_fault_plan *plan = ((im_faulty_comm *)c)->plan;
    plan->counts = (!plan->fault.step || plan->fault.step == step) && !strncmp(what, plan->fault.what, strlen(plan->fault.what));
}

static void flip(const im_faulty_comm *f, void *p, size_t nbytes)
{
    uint32_t x[4];
    if (!nbytes)
        return;
    im_philox(f->plan->fault.seed, 1, 0, x);
    uint64_t at = ((uint64_t)x[0] << 32 | x[1]) % nbytes;
    ((unsigned char *)p)[at] ^= (unsigned char)(1u << (x[2] % 8));
}

/* All bits set: a NaN in every floating-point type. */
static void poison(const im_comm_call *victim)
{
    size_t size = im_dtype_size(victim->dtype);
    if (victim->out.nbytes >= size)
        memset(victim->dst, 0xff, size);
}

static im_status corrupt(im_faulty_comm *f, im_comm_call *first, im_comm_call *victim)
{
    im_comm *inner = f->head.inner;
    if (victim->out.nbytes || f->plan->fault.kind == IM_FAULT_NAN) {
        IM_TRY(inner->backend->run(inner, first));
        if (f->plan->fault.kind == IM_FAULT_NAN)
            poison(victim);
        else
            flip(f, victim->dst, victim->out.nbytes);
        return IM_OK;
    }
    void *src = (void *)(uintptr_t)victim->src; /* flipped back, when the other side has it */
    flip(f, src, victim->in.nbytes);
    im_status s = inner->backend->run(inner, first);
    flip(f, src, victim->in.nbytes);
    return s;
}

static im_status die(im_faulty_comm *f, const im_comm_call *victim)
{
    if (f->plan->fault.process)
        (void)kill(getpid(), SIGKILL);
    im_status s = im_fail(f->head.ctx, IM_ERR_INTERNAL, "died on purpose before operation %llu of this rank, %s",
                          (unsigned long long)f->plan->fault.at, im_comm_op_name(victim->op));
    f->head.inner->backend->abort(f->head.inner, im_error_text(f->head.ctx));
    return s;
}

static im_status faulty_run(im_comm *c, im_comm_call *call)
{
    im_faulty_comm *f = (im_faulty_comm *)c;
    im_comm_call *victim = atomic_load(&f->victim), *x = call;
    while (x && x != victim)
        x = x->next;
    if (!victim || !x)
        return c->inner->backend->run(c->inner, call);
    atomic_store(&f->victim, NULL);
    double s = f->plan->fault.seconds;
    struct timespec nap = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    switch (f->plan->fault.kind) {
    case IM_FAULT_DROP: return IM_OK;
    case IM_FAULT_DIE: return die(f, victim);
    case IM_FAULT_CORRUPT:
    case IM_FAULT_NAN: return corrupt(f, call, victim);
    case IM_FAULT_MISMATCH: return c->inner->backend->run(c->inner, call);
    default: (void)nanosleep(&nap, NULL); return c->inner->backend->run(c->inner, call);
    }
}

static im_status faulty_split(im_comm *parent, const im_comm_group *g, im_comm **out)
{
    im_faulty_comm *f = (im_faulty_comm *)parent;
    im_comm *inner;
    IM_TRY(parent->inner->backend->split(parent->inner, g, &inner));
    im_status status = wrap(inner, f->plan, out);
    if (status != IM_OK) {
        im_comm_destroy(inner);
        return status;
    }
    f->plan->refs++;
    return IM_OK;
}

static void faulty_destroy(im_comm *c)
{
    im_faulty_comm *f = (im_faulty_comm *)c;
    if (--f->plan->refs == 0)
        free(f->plan);
    im_comm_destroy(c->inner);
    im_comm_fini(c);
    free(f);
}

static im_status faulty_error(im_comm *c)
{
    return c->inner->backend->error(c->inner);
}

static void faulty_abort(im_comm *c, const char *reason)
{
    c->inner->backend->abort(c->inner, reason);
}

static const im_comm_table faulty_table = {
    .name = "faulty",
    .run = faulty_run,
    .enqueued = faulty_enqueued,
    .note = faulty_note,
    .split = faulty_split,
    .destroy = faulty_destroy,
    .error = faulty_error,
    .abort = faulty_abort,
};
