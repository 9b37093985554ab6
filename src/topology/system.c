/* What of the kernel and its limits concerns RDMA: modules, memlock, /dev/shm, NUMA, governor, IOMMU. */
#include "topology/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_modules(im_root *root, im_machine *m)
{
    static const char *const of_interest[] = {
        "ib_core", "ib_uverbs",  "ib_umad",        "ib_ipoib",    "rdma_cm",  "rdma_ucm", "mlx5_core", "mlx5_ib",
        "mlx4_ib", "bnxt_re",    "irdma",          "efa",         "rdma_rxe", "siw",      "hns_roce",  "ionic_rdma",
        "nvidia",  "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv",   "amdgpu",   "xpmem",     "knem",
    };
    im_arena *a = im_root_arena(root);
    m->module = IM_ARENA_NEW(a, im_module, IM_COUNT_OF(of_interest));
    const im_names loaded = im_root_list(root, "/sys/module");
    const im_reading listed = loaded.why ? im_root_read(root, "/proc/modules") : (im_reading){0};
    m->modules_why = loaded.why && !listed.text ? loaded.why : NULL;
    for (size_t i = 0; m->module && i < IM_COUNT_OF(of_interest); i++) {
        im_module *k = &m->module[m->nmodules++];
        k->name = of_interest[i];
        for (size_t j = 0; j < loaded.n; j++)
            k->loaded = k->loaded || strcmp(loaded.item[j], k->name) == 0;
        k->loaded = k->loaded || (listed.text && im_text_value(a, listed.text, k->name));
        k->version = k->loaded ? im_root_read(root, "/sys/module/%s/version", k->name) : (im_reading){.why = "not loaded"};
    }
    static const char *const peers[] = {"/sys/module/nvidia_peermem/version", "/sys/kernel/mm/memory_peers/nv_mem/version",
                                        "/sys/kernel/mm/memory_peers/nv_mem_nc/version"};
    for (size_t i = 0; i < IM_COUNT_OF(peers) && !m->peer_memory.text; i++)
        m->peer_memory = im_root_read(root, "%s", peers[i]);
    m->nvidia_version = im_root_read(root, "/proc/driver/nvidia/version");
}

const im_module *im_machine_module(const im_machine *m, const char *name)
{
    for (size_t i = 0; i < m->nmodules; i++)
        if (strcmp(m->module[i].name, name) == 0)
            return &m->module[i];
    return NULL;
}

/* "Max locked memory         65536                65536                bytes" */
static void read_memlock(im_root *root, im_machine *m)
{
    const im_reading r = im_root_read(root, "/proc/self/limits");
    const char *line = r.text ? im_text_value(im_root_arena(root), r.text, "Max locked memory") : NULL;
    m->memlock_soft = m->memlock_hard = -2;
    m->memlock_why = r.why ? r.why : "no line \"Max locked memory\" in /proc/self/limits";
    char soft[32], hard[32];
    if (!line || sscanf(line, "%31s %31s", soft, hard) != 2)
        return;
    int64_t v[2];
    for (int i = 0; i < 2; i++) {
        const char *s = i ? hard : soft;
        if (strcmp(s, "unlimited") == 0)
            v[i] = -1;
        else if (!im_parse_number(s, &v[i]) || v[i] < 0)
            return;
    }
    m->memlock_soft = v[0];
    m->memlock_hard = v[1];
    m->memlock_why = NULL;
}

/* "size=64k" in bytes, "size=50%" of memory; -1: not so written. */
static int64_t shm_size(const char *options, int64_t memory)
{
    const char *p = options;
    while (p && strncmp(p, "size=", 5) != 0) {
        p = strchr(p, ',');
        p = p ? p + 1 : NULL;
    }
    if (!p)
        return memory > 0 ? memory / 2 : -1; /* tmpfs's default */
    char *end;
    const long long v = strtoll(p + 5, &end, 10);
    if (v < 0 || v > INT64_MAX >> 31)
        return v > 0 && (*end == ',' || !*end) ? v : -1;
    switch (*end) {
    case 'k':
    case 'K': return v << 10;
    case 'm':
    case 'M': return v << 20;
    case 'g':
    case 'G': return v << 30;
    case '%': return memory > 0 && v <= 100 ? memory / 100 * v : -1;
    case ',':
    case '\0': return v;
    default: return -1;
    }
}

static void read_shm(im_root *root, im_machine *m)
{
    const im_reading mounts = im_root_read(root, "/proc/self/mounts"), memory = im_root_read(root, "/proc/meminfo");
    const char *total = memory.text ? im_text_value(im_root_arena(root), memory.text, "MemTotal") : NULL;
    int64_t kib = 0;
    m->shm_bytes = -1;
    m->shm_why = mounts.why ? mounts.why : "/dev/shm is not mounted";
    if (total && (!im_parse_number(total, &kib) || kib < 0 || kib > INT64_MAX >> 10))
        kib = 0;
    for (const char *line = mounts.text; line && *line;) {
        char from[256], where[256], kind[64], options[512];
        if (sscanf(line, "%255s %255s %63s %511s", from, where, kind, options) == 4 && strcmp(where, "/dev/shm") == 0) {
            m->shm_bytes = shm_size(options, kib << 10);
            m->shm_why = m->shm_bytes < 0 ? "its mount options do not tell the size" : NULL;
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
}

static void read_numa(im_root *root, im_machine *m)
{
    const im_names names = im_root_list(root, "/sys/devices/system/node");
    m->numa = IM_ARENA_NEW(im_root_arena(root), im_numa, names.n + 1);
    for (size_t i = 0; m->numa && i < names.n; i++) {
        int64_t id;
        if (strncmp(names.item[i], "node", 4) != 0 || !im_parse_number(names.item[i] + 4, &id) || id < 0 || id > 1023)
            continue;
        m->numa[m->nnumas++] = (im_numa){.id = (int)id,
                                         .cpus = im_root_read(root, "/sys/devices/system/node/%s/cpulist", names.item[i]),
                                         .distance = im_root_read(root, "/sys/devices/system/node/%s/distance", names.item[i])};
    }
}

static void read_governors(im_root *root, im_machine *m)
{
    enum { KINDS = 16 };
    const im_names names = im_root_list(root, "/sys/devices/system/cpu");
    m->governor = IM_ARENA_NEW(im_root_arena(root), im_governor, KINDS);
    m->governor_why = names.why ? names.why : "no cpufreq: the firmware or the hypervisor decides";
    for (size_t i = 0; m->governor && i < names.n; i++) {
        int64_t id;
        if (strncmp(names.item[i], "cpu", 3) != 0 || !im_parse_number(names.item[i] + 3, &id))
            continue;
        const im_reading r = im_root_read(root, "/sys/devices/system/cpu/%s/cpufreq/scaling_governor", names.item[i]);
        size_t g = 0;
        while (r.text && g < m->ngovernors && strcmp(m->governor[g].name, r.text) != 0)
            g++;
        if (!r.text || g == KINDS)
            continue;
        m->governor[g].name = r.text;
        m->governor[g].cpus++;
        m->ngovernors += g == m->ngovernors;
        m->governor_why = NULL;
    }
}

static void read_kind(im_root *root, im_machine *m)
{
    const im_reading cpu = im_root_read(root, "/proc/cpuinfo"), cgroup = im_root_read(root, "/proc/1/cgroup");
    const char *flags = cpu.text ? im_text_value(im_root_arena(root), cpu.text, "flags") : NULL;
    m->cpu_model = cpu.text ? im_text_value(im_root_arena(root), cpu.text, "model name") : NULL;
    m->is_virtual = flags && strstr(flags, "hypervisor");
    m->in_container = im_root_exists(root, "/.dockerenv") || im_root_exists(root, "/run/.containerenv") ||
                      (cgroup.text && (strstr(cgroup.text, "docker") || strstr(cgroup.text, "kubepods") || strstr(cgroup.text, "containerd")));
}

static void read_iommu(im_root *root, im_machine *m)
{
    const im_names groups = im_root_list(root, "/sys/kernel/iommu_groups");
    m->iommu_groups = groups.n;
    m->iommu_why = groups.why;
    m->iommu_type = groups.n ? im_root_read(root, "/sys/kernel/iommu_groups/%s/type", groups.item[0]) : (im_reading){.why = "no IOMMU group"};
}

void im_read_system(im_root *root, im_machine *m)
{
    m->hostname = im_root_read(root, "/proc/sys/kernel/hostname");
    if (!m->hostname.text)
        m->hostname = im_root_read(root, "/etc/hostname");
    m->kernel = im_root_read(root, "/proc/sys/kernel/osrelease");
    m->cmdline = im_root_read(root, "/proc/cmdline");
    m->dev_infiniband = im_root_list(root, "/dev/infiniband");
    read_modules(root, m);
    read_memlock(root, m);
    read_shm(root, m);
    read_numa(root, m);
    read_governors(root, m);
    read_iommu(root, m);
    read_kind(root, m);
}

const im_rdma_device *im_machine_rdma(const im_machine *m, const char *name)
{
    for (size_t i = 0; i < m->nrdma; i++)
        if (strcmp(m->rdma[i].name, name) == 0)
            return &m->rdma[i];
    return NULL;
}

im_status im_machine_read(im_context *ctx, im_root *root, im_machine **out)
{
    *out = NULL;
    im_machine *m = IM_ARENA_NEW(im_root_arena(root), im_machine, 1);
    if (!m)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for what is read of the machine", im_root_dir(root));
    m->root = root;
    im_read_pci(root, m);
    im_read_rdma(root, m);
    im_read_net(root, m);
    im_read_port_mtu(root, m);
    im_read_system(root, m);
    if (!m->pci || !m->gpu || !m->rdma || !m->net || !m->module || !m->numa || !m->governor)
        return im_fail(ctx, IM_ERR_NOMEM, "%s: no memory for what is read of the machine", im_root_dir(root));
    *out = m;
    return IM_OK;
}
