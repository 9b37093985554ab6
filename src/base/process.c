#include "base/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PF_EXITING = 0x4 }; /* Linux, include/linux/sched.h */

static size_t read_text(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);
    if (fd >= 0)
        close(fd);
    buf[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

/* One start of one machine, and in it the space that process numbers belong to. */
static uint64_t this_machine(void)
{
    char boot[64], space[64];
    size_t n = read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    ssize_t m = readlink("/proc/self/ns/pid", space, sizeof space);
    if (!n || m <= 0)
        return 0;
    uint64_t h = im_hash64(space, (size_t)m, im_hash64(boot, n, 0));
    return h ? h : 1;
}

/* State and birth, fields 3 and 22 of /proc/PID/stat; the name before them may hold anything. False: there is no such process. One that the kernel
 * takes down (field 9, flags: PF_EXITING) is over: its memory can take longer than it takes others to hear of its end. */
static bool read_stat(int pid, char *state, uint64_t *birth)
{
    char path[32], buf[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!read_text(path, buf, sizeof buf))
        return false;
    char *p = strrchr(buf, ')');
    if (!p || p[1] != ' ' || !p[2])
        return false;
    *state = p[2];
    p += 2;
    for (int field = 3; field < 22 && p; field++) {
        p = strchr(p, ' ');
        p += p != NULL;
        if (field + 1 == 9 && p && (strtoul(p, NULL, 10) & PF_EXITING))
            *state = 'X';
    }
    *birth = p ? strtoull(p, NULL, 10) : 0;
    return p != NULL;
}

im_process im_process_self(void)
{
    char state;
    im_process p = {.pid = getpid(), .machine = this_machine()};
    if (!read_stat(p.pid, &state, &p.birth))
        p.machine = 0;
    if (gethostname(p.host, sizeof p.host - 1))
        p.host[0] = 0;
    return p;
}

bool im_process_is_local(const im_process *p)
{
    return p->machine && p->pid > 0 && p->machine == this_machine();
}

char im_process_state(const im_process *p)
{
    char state;
    uint64_t birth;
    if (!im_process_is_local(p))
        return 0;
    if (!read_stat(p->pid, &state, &birth) || birth != p->birth || state == 'Z' || state == 'x' || state == 'X')
        return 'X';
    return state == 't' ? 'T' : state;
}

int im_process_watch(const im_process *p)
{
#ifdef SYS_pidfd_open
    if (!im_process_is_local(p))
        return -1;
    int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    char state;
    uint64_t birth;
    if (fd >= 0 && (!read_stat(p->pid, &state, &birth) || birth != p->birth)) { /* the number is another process's by now */
        close(fd);
        return -1;
    }
    return fd;
#else
    (void)p;
    return -1;
#endif
}
