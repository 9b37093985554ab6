/* writer: fills the ring. A record is written by one thread at a time: the caller's, then the queue's. */
#include "comm/traced/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const size_t group_bytes = sizeof(im_ring_group) * IM_RING_GROUPS, member_bytes = sizeof(int32_t) * IM_RING_MEMBERS;

size_t im_ring_bytes(void)
{
    return sizeof(im_ring_header) + group_bytes + member_bytes + sizeof(im_ring_record) * IM_RING_RECORDS;
}

static double wall_at_zero(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 - im_clock_now();
}

/* at: where; NULL: anywhere. path NULL: memory of no file. */
static im_status map_ring(im_context *ctx, const char *path, void *at, unsigned char **out)
{
    size_t nbytes = im_ring_bytes();
    if (!path) {
        void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return im_fail_errno(ctx, "no memory for a ring of %zu bytes", nbytes);
        *out = p;
        return IM_OK;
    }
    (void)unlink(path); /* who reads the old one keeps it whole */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: cannot be made", path);
    int error = posix_fallocate(fd, 0, (off_t)nbytes); /* a full disk is found here, not by a signal later */
    if (error) {
        close(fd);
        errno = error;
        return im_fail_errno(ctx, "%s: no room for a ring of %zu bytes", path, nbytes);
    }
    if (at && pwrite(fd, at, nbytes, 0) != (ssize_t)nbytes) {
        close(fd);
        return im_fail_errno(ctx, "%s: write of %zu bytes", path, nbytes);
    }
    void *p = mmap(at, nbytes, PROT_READ | PROT_WRITE, at ? MAP_SHARED | MAP_FIXED : MAP_SHARED, fd, 0);
    int mapping = errno;
    close(fd);
    if (p == MAP_FAILED) {
        errno = mapping;
        return im_fail_errno(ctx, "%s: cannot be mapped", path);
    }
    *out = p;
    return IM_OK;
}

im_status im_ring_create(im_comm *inner, const char *path, im_ring_writer **out)
{
    void *p;
    IM_TRY(im_alloc(inner->ctx, 1, sizeof(im_ring_writer), &p));
    im_ring_writer *w = p;
    w->mapped = im_ring_bytes();
    im_status status = map_ring(inner->ctx, path, NULL, &w->map);
    if (status != IM_OK) {
        free(w);
        return status;
    }
    w->refs = 1;
    w->header = (im_ring_header *)w->map;
    w->group = (im_ring_group *)(w->map + sizeof *w->header);
    w->member = (int32_t *)(w->map + sizeof *w->header + group_bytes);
    w->record = (im_ring_record *)(w->map + sizeof *w->header + group_bytes + member_bytes);
    *w->header = (im_ring_header){
        .magic = "imcring",
        .version = IM_RING_VERSION,
        .header_bytes = sizeof *w->header,
        .group_bytes = sizeof(im_ring_group),
        .record_bytes = sizeof(im_ring_record),
        .max_groups = IM_RING_GROUPS,
        .max_members = IM_RING_MEMBERS,
        .max_records = IM_RING_RECORDS,
        .rank = inner->members[inner->rank],
        .world = inner->size,
        .wall = wall_at_zero(),
        .process = im_process_self(),
        .alive = im_clock_now(),
    };
    strncpy(w->header->backend, im_comm_backend(inner), sizeof w->header->backend - 1);
    im_ring_add_group(w, inner);
    *out = w;
    return IM_OK;
}

/* The pages at the ring's address become those of the file: pointers into it stay. */
im_status im_ring_place(im_ring_writer *w, im_context *ctx, const char *path)
{
    unsigned char *same;
    return map_ring(ctx, path, w->map, &same);
}

void im_ring_note(im_ring_writer *w, int64_t step, const char *what)
{
    im_ring_header *h = w->header;
    w->step = step;
    snprintf(w->what, sizeof w->what, "%s", what);
    __atomic_store_n(&h->note_seq, h->note_seq + 1, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    h->since = im_clock_now();
    h->step = step;
    memcpy(h->what, w->what, sizeof h->what);
    __atomic_store_n(&h->note_seq, h->note_seq + 1, __ATOMIC_RELEASE);
}

void im_ring_release(im_ring_writer *w)
{
    if (!w || --w->refs)
        return;
    munmap(w->map, w->mapped);
    free(w);
}

/* Groups beyond the table stay without a name; records still carry their id. */
void im_ring_add_group(im_ring_writer *w, const im_comm *c)
{
    im_ring_header *h = w->header;
    if (h->groups == IM_RING_GROUPS)
        return;
    im_ring_group *g = &w->group[h->groups];
    bool room = (size_t)c->size <= IM_RING_MEMBERS - h->members;
    *g = (im_ring_group){.id = c->id, .rank = c->rank, .size = c->size, .members = room ? h->members : UINT32_MAX};
    for (int i = 0; room && i < c->size; i++)
        w->member[h->members + (uint32_t)i] = c->members[i];
    h->members += room ? (uint32_t)c->size : 0;
    __atomic_store_n(&h->groups, h->groups + 1, __ATOMIC_RELEASE);
}

static im_ring_record *record_of(im_ring_writer *w, const im_comm_call *call)
{
    return &w->record[(call->record - 1) % IM_RING_RECORDS];
}

void im_ring_enqueued(im_ring_writer *w, const im_comm *c, im_comm_call *call)
{
    call->record = __atomic_add_fetch(&w->header->written, 1, __ATOMIC_RELAXED);
    im_ring_record *x = record_of(w, call);
    __atomic_store_n(&x->number, 0, __ATOMIC_RELEASE); /* who reads now sees no half of two records */
    *x = (im_ring_record){
        .seq = call->seq,
        .count = call->count,
        .step = w->step,
        .enqueued = im_clock_now(),
        .group = c->id,
        .peer = call->peer < 0 ? -1 : c->members[call->peer],
        .op = (uint8_t)call->op,
        .dtype = (uint8_t)call->dtype,
        .reduce = (uint8_t)call->reduce,
        .state = IM_RING_ENQUEUED,
    };
    memcpy(x->what, w->what, sizeof x->what);
    __atomic_store_n(&x->number, call->record, __ATOMIC_RELEASE);
}

/* An operation may start after its record was dropped: thousands were enqueued since. */
static bool is_kept(im_ring_writer *w, const im_comm_call *call)
{
    return __atomic_load_n(&record_of(w, call)->number, __ATOMIC_ACQUIRE) == call->record;
}

void im_ring_started(im_ring_writer *w, const im_comm_call *call)
{
    if (!is_kept(w, call))
        return;
    im_ring_record *x = record_of(w, call);
    x->started = im_clock_now();
    __atomic_store_n(&x->state, IM_RING_STARTED, __ATOMIC_RELEASE);
}

void im_ring_ended(im_ring_writer *w, const im_comm_call *call, im_status s)
{
    if (!is_kept(w, call))
        return;
    im_ring_record *x = record_of(w, call);
    x->ended = im_clock_now();
    x->status = s;
    __atomic_store_n(&x->state, s == IM_OK ? IM_RING_DONE : IM_RING_FAILED, __ATOMIC_RELEASE);
}
