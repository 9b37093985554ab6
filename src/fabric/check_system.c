/* Kernel and limits. */
#include "fabric/check_rows.h"

#include <string.h>

void im_check_memlock(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    const int64_t soft = h->m->memlock_soft;
    char text[32];
    if (soft == -2) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, "/proc/self/limits", NULL, "the limit is not known: %s", h->m->memlock_why);
    } else if (soft == -1) {
        im_check_note(r, "unlimited");
    } else {
        /* of the process that looked (or wrote the bundle); a job may get other limits */
        const char *limit = im_arena_strdup(r->arena, im_format_bytes(text, sizeof text, (double)soft));
        im_check_say(r, soft < INT64_C(64) << 30 ? IM_VERDICT_FAIL : IM_VERDICT_WARN, NULL, "/proc/self/limits", limit,
                     "memory that may be locked is limited to %s (hard limit %s)", limit ? limit : "",
                     h->m->memlock_hard == -1 ? "unlimited: the job may raise it itself" : "no more than that is sure");
        if (h->m->in_container)
            im_check_mend(r, "docker run --ulimit memlock=-1 ...    # Kubernetes: LimitMEMLOCK=infinity in containerd's unit, then restart it");
        else
            im_check_mend(r, "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' > /etc/security/limits.d/rdma.conf    # Slurm: "
                             "LimitMEMLOCK=infinity in slurmd's unit");
    }
}

void im_check_shm(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    char text[32];
    const int64_t enough = INT64_C(1) << 30;
    if (h->m->shm_bytes < 0) {
        const bool none = h->m->shm_why && strstr(h->m->shm_why, "not mounted");
        im_check_say(r, none ? IM_VERDICT_FAIL : IM_VERDICT_UNKNOWN, NULL, "/proc/self/mounts", NULL, none ? "%s" : "its size is not known: %s",
                     h->m->shm_why);
        if (none)
            im_check_mend(r, "mount -t tmpfs -o size=50%% tmpfs /dev/shm");
        return;
    }
    im_format_bytes(text, sizeof text, (double)h->m->shm_bytes);
    if (h->m->shm_bytes >= enough) {
        im_check_note(r, "%s", text);
        return;
    }
    im_check_say(r, IM_VERDICT_FAIL, NULL, "/proc/self/mounts", im_arena_strdup(r->arena, text),
                 "/dev/shm has %s, a host full of ranks needs 1 GiB and more", text);
    if (h->m->in_container)
        im_check_mend(r, "docker run --shm-size=16g ...    # Kubernetes: an emptyDir with medium: Memory at /dev/shm");
    else
        im_check_mend(r, "mount -o remount,size=50%% /dev/shm    # for good: /etc/fstab");
}

void im_check_dev_infiniband(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t verbs = 0;
    bool cm = false;
    const im_names *dev = &h->m->dev_infiniband;
    for (size_t i = 0; i < dev->n; i++) {
        verbs += strncmp(dev->item[i], "uverbs", 6) == 0;
        cm = cm || strcmp(dev->item[i], "rdma_cm") == 0;
    }
    if (!h->m->nrdma) {
        im_check_note(r, "no RDMA device needs it");
        return;
    }
    if (dev->why && strcmp(dev->why, "absent") != 0) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, "/dev/infiniband", NULL, "it cannot be listed: %s", dev->why);
    } else if (!verbs) {
        im_check_say(r, IM_VERDICT_FAIL, NULL, "/dev/infiniband", dev->why ? "absent" : "no uverbsN",
                     "%zu RDMA devices, and no /dev/infiniband/uverbsN to use them by", h->m->nrdma);
        if (h->m->in_container)
            im_check_mend(
                r,
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK ...    # Kubernetes: the RDMA shared device plug-in, or an SR-IOV resource");
        else
            im_check_mend(r, "modprobe ib_uverbs rdma_ucm; ls -l /dev/infiniband");
    } else if (verbs < h->m->nrdma) {
        im_check_say(r, IM_VERDICT_WARN, NULL, "/dev/infiniband", im_arena_printf(r->arena, "%zu of uverbsN", verbs),
                     "%zu RDMA devices, %zu of them can be opened", h->m->nrdma, verbs);
        im_check_mend(r, "ls -l /dev/infiniband    # pass in the missing ones, or name the usable ones: export NCCL_IB_HCA==mlx5_0,...");
    }
    im_check_note(r, "%zu devices%s", verbs, cm ? " and rdma_cm" : ", no rdma_cm (needed by UCX's rdmacm and perftest -R alone)");
}

void im_check_numa_balancing(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    const im_reading v = im_root_number(h->root, "/proc/sys/kernel/numa_balancing");
    if (!v.is_number) {
        if (v.why && strcmp(v.why, "absent") == 0)
            im_check_note(r, "this kernel has it not");
        else
            im_check_say(r, IM_VERDICT_UNKNOWN, NULL, v.path, NULL, "it is not known: %s", v.why ? v.why : "no number");
    } else if (v.value && h->m->nnumas > 1) {
        im_check_say(r, IM_VERDICT_WARN, NULL, v.path, v.text, "automatic NUMA balancing is on, on %zu nodes", h->m->nnumas);
        im_check_mend(r, "sysctl -w kernel.numa_balancing=0; echo kernel.numa_balancing=0 > /etc/sysctl.d/90-numa.conf");
    } else {
        im_check_note(r, v.value ? "on, without effect on one node" : "off");
    }
}

void im_check_governor(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    int all = 0;
    for (size_t i = 0; i < h->m->ngovernors; i++)
        all += h->m->governor[i].cpus;
    for (size_t i = 0; i < h->m->ngovernors; i++) {
        const im_governor *g = &h->m->governor[i];
        if (strcmp(g->name, "performance") == 0)
            continue;
        /* intel_pstate and amd_pstate in active mode call their dynamic governor powersave, and schedutil is quick: slower, not broken */
        im_check_say(r, IM_VERDICT_WARN, NULL, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", g->name, "%d of %d CPUs have the governor %s",
                     g->cpus, all, g->name);
        im_check_mend(r, "cpupower frequency-set -g performance    # or: tuned-adm profile throughput-performance");
    }
    if (all)
        im_check_note(r, "%d CPUs: performance", all);
    else
        im_check_note(r, "%s", h->m->governor_why ? h->m->governor_why : "not told");
}

void im_check_readable(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    enum { SHOWN = 3 };
    const im_trouble *first;
    size_t nfirst;
    size_t refused = 0;
    im_root_troubles(h->root, &first, &nfirst);
    for (size_t i = 0; i < nfirst; i++) {
        if (!strstr(first[i].why, "ermission denied") && !strstr(first[i].why, "not permitted"))
            continue; /* files of sysfs that answer "invalid argument" have nothing to tell */
        if (++refused <= SHOWN)
            im_check_say(r, IM_VERDICT_UNKNOWN, NULL, first[i].path, NULL, "%s", first[i].why);
    }
    if (refused > SHOWN)
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, NULL, NULL, "and %zu more files", refused - SHOWN);
    if (refused)
        im_check_mend(r, "sudo imece fabric check    # or: sudo imece fabric bundle");
    im_check_note(r, "no file was refused");
}
