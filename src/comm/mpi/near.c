/* near: the memory, meetings, bells, pulling. */
#include "comm/mpi/near.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS = 64, NAP_NS = 10000000 }; /* between two looks at the clock; a sleep at most: nobody rings when the world is dead */

/* ---- life -------------------------------------------------------------------------------- */

im_near_cell *im_near_cell_of(const im_near *x, int member)
{
    return (im_near_cell *)(void *)x->base + member;
}

im_near_channel *im_near_channel_of(const im_near *x, int from, int to)
{
    im_near_channel *first = (im_near_channel *)(void *)(x->base + (size_t)x->size * sizeof(im_near_cell));
    return first + (size_t)from * (size_t)x->size + (size_t)to;
}

static im_status begin(im_context *ctx, int size, int rank, im_near *x)
{
    void *p;
    size_t n = (size_t)size;
    *x = (im_near){.size = size, .rank = rank, .fd = -1, .nbytes = n * sizeof(im_near_cell) + n * n * sizeof(im_near_channel)};
    IM_TRY(im_alloc(ctx, n, sizeof *x->pid, &p));
    x->pid = p;
    return IM_OK;
}

static im_status map(im_context *ctx, int fd, im_near *x)
{
    void *p = mmap(NULL, x->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return im_fail(ctx, IM_ERR_NOMEM, "the system gave no %zu bytes for ranks to share: %s", x->nbytes, strerror(errno));
    x->base = p;
    return IM_OK;
}

im_status im_near_make(im_context *ctx, int size, int rank, im_near *out)
{
    im_status status;
    im_near x;
    IM_TRY(begin(ctx, size, rank, &x));
    x.fd = memfd_create("imece", MFD_CLOEXEC);
    if (x.fd < 0 || ftruncate(x.fd, (off_t)x.nbytes)) {
        status = im_fail(ctx, IM_ERR_NOMEM, "the system gave no %zu bytes for ranks to share: %s", x.nbytes, strerror(errno));
        goto leave;
    }
    IM_TRY_GOTO(map(ctx, x.fd, &x), leave);
    *out = x;
    return IM_OK;
leave:
    im_near_leave(&x);
    return status;
}

im_near_door im_near_door_of(const im_near *x)
{
    return (im_near_door){.pid = (int32_t)getpid(), .fd = x->fd};
}

im_status im_near_enter(im_context *ctx, im_near_door door, int size, int rank, im_near *out)
{
    im_status status;
    im_near x;
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)door.pid, (int)door.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return im_fail(ctx, IM_ERR_NOT_FOUND, "%s: the memory of another rank cannot be opened: %s", path, strerror(errno));
    IM_TRY_GOTO(begin(ctx, size, rank, &x), close_fd);
    if (fstat(fd, &st) || st.st_size != (off_t)x.nbytes) {
        status = im_fail(ctx, IM_ERR_NOT_FOUND, "%s is not the memory of this group", path);
        goto leave;
    }
    IM_TRY_GOTO(map(ctx, fd, &x), leave);
    close(fd);
    *out = x;
    return IM_OK;
leave:
    im_near_leave(&x);
close_fd:
    close(fd);
    return status;
}

void im_near_close_door(im_near *x)
{
    if (x->fd >= 0)
        close(x->fd);
    x->fd = -1;
}

void im_near_leave(im_near *x)
{
    if (x->base)
        munmap(x->base, x->nbytes);
    im_near_close_door(x);
    free(x->pid);
    *x = (im_near){.fd = -1};
}

/* ---- pulling ------------------------------------------------------------------------------- */

bool im_near_pull(int32_t pid, const void *from, void *to, size_t nbytes)
{
    for (size_t done = 0; done < nbytes;) {
        struct iovec mine = {.iov_base = (char *)to + done, .iov_len = nbytes - done};
        struct iovec its = {.iov_base = (char *)(uintptr_t)from + done, .iov_len = nbytes - done};
        ssize_t n = process_vm_readv(pid, &mine, 1, &its, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* ---- meetings -------------------------------------------------------------------------------- */

void im_near_arrive(im_near *x)
{
    atomic_store(&im_near_cell_of(x, x->rank)->arrived, ++x->meetings);
    for (int k = 1; k < x->size; k++)
        im_near_ring(im_near_cell_of(x, (x->rank + k) % x->size));
}

bool im_near_is_met(const im_near *x)
{
    for (int i = 0; i < x->size; i++)
        if (atomic_load(&im_near_cell_of(x, i)->arrived) < x->meetings)
            return false;
    return true;
}

/* ---- bells ------------------------------------------------------------------------------------- */

/* Pairs with the sleeper, which says so before it looks: either it sees the change, or we see the sleeper. All of it in one order. */
void im_near_ring(im_near_cell *c)
{
    if (!atomic_load(&c->asleep))
        return;
    atomic_fetch_add(&c->rings, 1);
    syscall(SYS_futex, &c->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

void im_near_wait_end(im_near_wait *w)
{
    if (atomic_load_explicit(&w->mine->asleep, memory_order_relaxed))
        atomic_store(&w->mine->asleep, 0);
    w->idle = 0;
    w->looks = 0;
}

im_status im_near_pause(im_near_wait *w)
{
    bool asleep = atomic_load_explicit(&w->mine->asleep, memory_order_relaxed);
    if (!asleep && w->spin > 0 && ++w->looks % LOOKS) {
        relax();
        return IM_OK;
    }
    if (atomic_load_explicit(w->dead, memory_order_acquire))
        return IM_ERR_ABORTED;
    double now = im_clock_now();
    if (w->idle == 0)
        w->idle = now;
    if (w->start == 0)
        w->start = now;
    if (now - w->start > w->deadline)
        return IM_ERR_TIMEOUT;
    if (!asleep && now - w->idle < w->spin) {
        (void)sched_yield(); /* the one that is waited for may stand in line for this core */
        return IM_OK;
    }
    if (asleep)
        syscall(SYS_futex, &w->mine->rings, FUTEX_WAIT, w->seen, &(struct timespec){.tv_nsec = NAP_NS}, NULL, 0);
    else
        atomic_store(&w->mine->asleep, 1);
    w->seen = atomic_load(&w->mine->rings); /* then the caller looks again, and may come back to sleep */
    return IM_OK;
}
