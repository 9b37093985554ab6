/* Which files a bundle holds, and copying them. A test reads machines and their bundles with every check and compares. */
#include "fabric/bundle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum kind { TEXT, BYTES, LINK, NAME_ONLY, DIRECTORY } kind;

/* A '*' ends its component: "libnccl.so.*". {a,b} lists are what `names` has, each below `dir`. */
typedef struct part {
    kind kind;
    const char *dir;
    const char *names; /* blanks between */
} part;

static const part parts[] = {
    {LINK, "/sys/class/infiniband", "*"},
    {TEXT, "/sys/class/infiniband/*", "node_type node_guid sys_image_guid node_desc fw_ver hw_rev hca_type board_id parent"},
    {LINK, "/sys/class/infiniband/*", "device"},
    {TEXT, "/sys/class/infiniband/*/ports/*", "state phys_state rate link_layer lid sm_lid sm_sl lid_mask_count cap_mask"},
    {TEXT, "/sys/class/infiniband/*/ports/*/gids", "*"},
    {TEXT, "/sys/class/infiniband/*/ports/*/gid_attrs/types", "*"},
    {TEXT, "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs", "*"},
    {TEXT, "/sys/class/infiniband/*/ports/*/pkeys", "*"},
    {TEXT, "/sys/class/infiniband/*/ports/*/counters", "*"},
    {TEXT, "/sys/class/infiniband/*/ports/*/hw_counters", "*"},
    {TEXT, "/sys/class/infiniband/*/hw_counters", "*"},
    {TEXT, "/sys/class/infiniband/*/tc/*", "traffic_class"},
    {TEXT, "/sys/class/infiniband/*/device", "uevent"},
    {DIRECTORY, "/sys/class/infiniband/*/device/net", "*"},
    {TEXT, "/sys/class/infiniband/*/device/net/*", "dev_port"},
    {LINK, "/sys/class/infiniband_verbs", "*"},
    {TEXT, "/sys/class/infiniband_verbs/*", "ibdev abi_version"},
    {LINK, "/sys/class/net", "*"},
    {TEXT, "/sys/class/net/*", "operstate carrier speed mtu address type ifindex flags carrier_changes dev_port"},
    {LINK, "/sys/class/net/*", "device master"},
    {LINK, "/sys/class/net/*/device", "driver"},
    {TEXT, "/sys/class/net/*/qos", "trust"},
    {TEXT, "/sys/class/net/*/ecn/*/enable", "*"},
    {LINK, "/sys/bus/pci/devices", "*"},
    {TEXT, "/sys/bus/pci/devices/*",
     "class vendor device subsystem_vendor subsystem_device numa_node local_cpulist current_link_speed max_link_speed current_link_width "
     "max_link_width uevent"},
    {BYTES, "/sys/bus/pci/devices/*", "config"},
    {LINK, "/sys/bus/pci/devices/*", "driver iommu_group physfn"},
    {TEXT, "/sys/devices/system/node/*", "cpulist distance"},
    {DIRECTORY, "/sys/devices/system/cpu", "cpu*"},
    {TEXT, "/sys/devices/system/cpu/*/cpufreq", "scaling_governor"},
    {DIRECTORY, "/sys/module", "*"},
    {TEXT, "/sys/module/*", "version"},
    {TEXT, "/sys/kernel/mm/memory_peers/*", "version"},
    {TEXT, "/sys/kernel/iommu_groups/*", "type"},
    {TEXT, "/sys/kernel/config/rdma_cm/*/ports/*", "default_roce_tos"},
    {TEXT, "/proc", "cmdline cpuinfo meminfo modules self/limits self/mounts net/if_inet6 net/route 1/cgroup driver/nvidia/version"},
    {TEXT, "/proc/sys/kernel", "hostname osrelease numa_balancing"},
    {TEXT, "/etc", "hostname nccl.conf opensm/opensm.conf opensm/qos-policy.conf rdma/opensm.conf rdma/qos-policy.conf"},
    {TEXT, "/commands", "*"},
    {NAME_ONLY, "/dev/infiniband", "*"},
    {NAME_ONLY, "", ".dockerenv run/.containerenv"},
    {NAME_ONLY, "/usr/lib/x86_64-linux-gnu", "libnccl.so.*"},
    {NAME_ONLY, "/usr/lib/aarch64-linux-gnu", "libnccl.so.*"},
    {NAME_ONLY, "/usr/lib64", "libnccl.so.*"},
    {NAME_ONLY, "/usr/lib", "libnccl.so.*"},
    {NAME_ONLY, "/usr/local/lib", "libnccl.so.*"},
    {NAME_ONLY, "/usr/local/nccl/lib", "libnccl.so.*"},
    {NAME_ONLY, "/opt/nccl/build/lib", "libnccl.so.*"},
    {NAME_ONLY, "/usr/local/cuda/lib64", "libnccl.so.*"},
    {NAME_ONLY, "/usr/lib/python3*/dist-packages", "nvidia_nccl*"},
    {NAME_ONLY, "/usr/local/lib/python3*/dist-packages", "nvidia_nccl*"},
    {NAME_ONLY, "/usr/local/lib/python3*/site-packages", "nvidia_nccl*"},
    {NAME_ONLY, "/opt/conda/lib/python3*/site-packages", "nvidia_nccl*"},
    {NAME_ONLY, "/opt/venv/lib/python3*/site-packages", "nvidia_nccl*"},
};

typedef struct copier {
    im_context *ctx;
    im_root *root;
    const im_bundle_to *to;
    uint64_t *seen; /* hashes of the paths that were written; 0: free */
    size_t nseen, cap;
    size_t files;
    im_str unreadable;
} copier;

/* ---- out ----------------------------------------------------------------------------------------- */

static im_status parent_of(im_context *ctx, const char *dir, const char *path, char **full)
{
    im_str s = {0};
    im_str_printf(&s, "%s/%s", dir, path + strspn(path, "/"));
    char *slash = s.failed ? NULL : strrchr(s.data, '/');
    if (!slash) {
        im_str_free(&s);
        return im_fail(ctx, IM_ERR_NOMEM, "no memory for %s", path);
    }
    *slash = '\0';
    const im_status status = im_mkdirs(ctx, s.data);
    *slash = '/';
    *full = s.data;
    if (status != IM_OK)
        im_str_free(&s);
    return status;
}

static im_status write_plain(im_context *ctx, const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "wbx");
    if (!f)
        return errno == EEXIST ? IM_OK : im_fail_errno(ctx, "%s: cannot be made", path);
    const bool written = fwrite(data ? data : "", 1, len, f) == len;
    const bool closed = fclose(f) == 0;
    return written && closed ? IM_OK : im_fail_errno(ctx, "%s: cannot be written", path);
}

im_status im_bundle_add(im_context *ctx, const im_bundle_to *to, const char *path, const void *data, size_t len)
{
    char *full;
    if (to->tar)
        return im_tar_add(to->tar, path, NULL, data, len);
    IM_TRY(parent_of(ctx, to->dir, path, &full));
    const im_status status = write_plain(ctx, full, data, len);
    free(full);
    return status;
}

static im_status add_link(copier *c, const char *path, const char *target)
{
    char *full;
    if (c->to->tar)
        return im_tar_add(c->to->tar, path, target, NULL, 0);
    IM_TRY(parent_of(c->ctx, c->to->dir, path, &full));
    const bool made = symlink(target, full) == 0 || errno == EEXIST;
    const im_status status = made ? IM_OK : im_fail_errno(c->ctx, "%s: cannot be made", full);
    free(full);
    return status;
}

static im_status add_dir(copier *c, const char *path)
{
    char *full;
    if (c->to->tar)
        return im_tar_add_dir(c->to->tar, path);
    im_str s = {0};
    im_str_printf(&s, "%s/x", path);
    const im_status status = parent_of(c->ctx, c->to->dir, im_str_text(&s), &full);
    im_str_free(&s);
    if (status == IM_OK)
        free(full);
    return status;
}

/* ---- in -------------------------------------------------------------------------------------------- */

/* True the first time that a path is asked for. */
static bool is_new(copier *c, const char *path)
{
    uint64_t hash = im_hash64(path, strlen(path), 0) | 1;
    if (2 * (c->nseen + 1) > c->cap) {
        const size_t cap = c->cap ? 2 * c->cap : 4096;
        uint64_t *more = calloc(cap, sizeof *more);
        if (!more)
            return false;
        for (size_t i = 0; i < c->cap; i++)
            if (c->seen[i]) {
                size_t at = c->seen[i] >> 8 & (cap - 1);
                while (more[at])
                    at = (at + 1) & (cap - 1);
                more[at] = c->seen[i];
            }
        free(c->seen);
        c->seen = more;
        c->cap = cap;
    }
    size_t at = hash >> 8 & (c->cap - 1);
    while (c->seen[at] && c->seen[at] != hash)
        at = (at + 1) & (c->cap - 1);
    if (c->seen[at])
        return false;
    c->seen[at] = hash;
    c->nseen++;
    return true;
}

/* "../../devices/x" from the directory of `from` to `to`; both absolute. */
static void relative(const char *from, const char *to, im_str *out)
{
    size_t same = 0;
    for (size_t i = 0; from[i] && from[i] == to[i]; i++)
        if (from[i] == '/')
            same = i + 1;
    for (const char *p = from + same; (p = strchr(p, '/')); p++)
        im_str_append(out, "../");
    im_str_append(out, to + same);
}

static im_status copy_link(copier *c, const char *at)
{
    const char *target = im_root_resolve(c->root, at);
    im_str s = {0};
    if (!target)
        return IM_OK;
    if (strcmp(target, at) == 0)
        return is_new(c, at) ? add_dir(c, at) : IM_OK; /* a folder that stands here itself */
    if (!is_new(c, at))
        return IM_OK;
    relative(at, target, &s);
    im_status status = add_link(c, at, im_str_text(&s));
    im_str_free(&s);
    if (status == IM_OK && is_new(c, target))
        status = add_dir(c, target); /* a link to nothing is absent */
    return status;
}

static im_status copy_text(copier *c, const char *path, const char *real)
{
    const im_reading r = im_root_read(c->root, "%s", path);
    if (!r.text) {
        if (r.why && strcmp(r.why, "absent") != 0)
            im_str_printf(&c->unreadable, "%s: %s\n", path, r.why);
        return IM_OK;
    }
    im_str s = {0};
    im_str_printf(&s, "%s\n", r.text);
    c->files++;
    const im_status status = im_bundle_add(c->ctx, c->to, real, im_str_text(&s), s.len);
    im_str_free(&s);
    return status;
}

static im_status copy_bytes(copier *c, const char *path, const char *real)
{
    unsigned char bytes[4096];
    size_t len = 0;
    const im_reading r = im_root_bytes(c->root, path, bytes, sizeof bytes, &len);
    c->files += len > 0;
    if (!len && r.why && strcmp(r.why, "absent") != 0)
        im_str_printf(&c->unreadable, "%s: %s\n", path, r.why);
    return len ? im_bundle_add(c->ctx, c->to, real, bytes, len) : IM_OK;
}

/* One path without stars. It is written where its folder really is. */
static im_status copy(copier *c, kind what, const char *path)
{
    char dir[1024];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    const char *folder = *dir ? im_root_resolve(c->root, dir) : "";
    if (folder && strncmp(path, "/proc/", 6) == 0)
        folder = dir; /* /proc/self leads to the number of a process, which means nothing elsewhere */
    if (!folder)
        return IM_OK;
    if (strcmp(folder, "/") == 0)
        folder = "";
    im_str real = {0};
    im_str_printf(&real, "%s%s", folder, slash);
    const char *at = im_str_text(&real);
    im_status status = IM_OK;
    if (what == LINK)
        status = copy_link(c, at);
    else if (what == DIRECTORY)
        status = im_root_resolve(c->root, path) && is_new(c, at) ? add_dir(c, at) : IM_OK;
    else if (!is_new(c, at))
        ;
    else if (what == TEXT)
        status = copy_text(c, path, at);
    else if (what == BYTES)
        status = copy_bytes(c, path, at);
    else if (im_root_exists(c->root, path))
        status = im_bundle_add(c->ctx, c->to, at, "", 0);
    im_str_free(&real);
    return status;
}

/* Replaces the first star of the pattern by what is there, and goes on; without one: copies. */
static im_status expand(copier *c, kind what, const char *pattern, int depth)
{
    const char *star = strchr(pattern, '*');
    if (!star || depth > 6)
        return star ? IM_OK : copy(c, what, pattern);
    const char *name = star;
    while (name > pattern && name[-1] != '/')
        name--;
    const im_names names = im_root_list(c->root, "%.*s", (int)(name - pattern - 1), pattern);
    for (size_t i = 0; i < names.n; i++) {
        if (strncmp(names.item[i], name, (size_t)(star - name)) != 0 || strchr(names.item[i], '*'))
            continue;
        im_str s = {0};
        im_str_printf(&s, "%.*s%s%s", (int)(name - pattern), pattern, names.item[i], star + 1);
        const im_status status = expand(c, what, im_str_text(&s), depth + 1);
        im_str_free(&s);
        IM_TRY(status);
    }
    return IM_OK;
}

static im_status copy_part(copier *c, const part *p)
{
    for (const char *name = p->names; *name;) {
        const size_t n = strcspn(name, " ");
        im_str s = {0};
        im_str_printf(&s, "%s/%.*s", p->dir, (int)n, name);
        const im_status status = expand(c, p->kind, im_str_text(&s), 0);
        im_str_free(&s);
        IM_TRY(status);
        name += n + strspn(name + n, " ");
    }
    return IM_OK;
}

im_status im_bundle_write(im_context *ctx, im_root *root, const im_bundle_to *to, size_t *files)
{
    copier c = {.ctx = ctx, .root = root, .to = to};
    im_status status = IM_OK;
    for (size_t i = 0; i < IM_COUNT_OF(parts) && status == IM_OK; i++)
        status = copy_part(&c, &parts[i]);
    if (status == IM_OK && c.unreadable.len && is_new(&c, "/commands/unreadable.txt"))
        status = im_bundle_add(ctx, to, "/commands/unreadable.txt", im_str_text(&c.unreadable), c.unreadable.len);
    *files = c.files;
    im_str_free(&c.unreadable);
    free(c.seen);
    return status;
}
