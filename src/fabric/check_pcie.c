/* PCIe and GPUs: links, ordering, ACS, IOMMU, GPUDirect, distances. */
#include "fabric/check_rows.h"

#include <stdio.h>
#include <string.h>

static const char *file(im_check_result *r, const im_pci *p, const char *name)
{
    return im_arena_printf(r->arena, "%s/%s", p->path, name);
}

static const char *address_of(const im_rdma_device *d)
{
    return d->pci->address;
}

/* A device that training uses: NICs with an RDMA device, and GPUs. name: "mlx5_0", "GPU3". */
typedef struct user {
    const char *name;
    const im_pci *pci;
    bool gpu;
} user;

static size_t users(const im_check_host *h, im_arena *a, user **out)
{
    size_t n = 0;
    *out = IM_ARENA_NEW(a, user, h->m->nrdma + h->m->ngpus + 1);
    for (size_t i = 0; *out && i < h->m->nrdma; i++)
        if (h->m->rdma[i].pci)
            (*out)[n++] = (user){h->m->rdma[i].name, h->m->rdma[i].pci, false};
    for (size_t i = 0; *out && i < h->m->ngpus; i++)
        if (h->m->gpu[i].pci)
            (*out)[n++] = (user){h->m->gpu[i].name, h->m->gpu[i].pci, true};
    return n;
}

/* ---- links --------------------------------------------------------------------------------------- */

static bool has_link(const im_pci *p)
{
    return p->link_width_max.is_number && p->link_width_max.value > 0 && p->link_width_max.value < 255 && p->link_width.is_number;
}

static void judge_link(const im_check_host *h, im_check_result *r, const char *name, const im_pci *p, bool gpu)
{
    if (!has_link(p)) {
        if (!p->is_vf && !h->m->is_virtual)
            im_check_say(r, IM_VERDICT_UNKNOWN, name, file(r, p, "current_link_width"), p->link_width.text, "its link is not known: %s",
                         p->link_width.why ? p->link_width.why : "no number");
        return;
    }
    const double now = im_pci_rate(p->gts, p->link_width.value), could = im_pci_rate(p->gts_max, p->link_width_max.value);
    if (p->link_width.value < p->link_width_max.value) {
        im_check_say(r, IM_VERDICT_FAIL, name, file(r, p, "current_link_width"), p->link_width.text,
                     "PCIe x%lld, and the card can x%lld: %.1f of %.1f GB/s", (long long)p->link_width.value, (long long)p->link_width_max.value,
                     now / 1e9, could / 1e9);
        im_check_mend(r,
                      "lspci -vv -s %s | grep -e LnkCap -e LnkSta    # then reseat the card, clean the edge, look at riser and slot; a x%lld slot by "
                      "design is its limit",
                      p->address, (long long)p->link_width.value);
    }
    if (p->gts > 0 && p->gts_max > 0 && p->gts < p->gts_max && !gpu) { /* a GPU without work lowers its speed to save power */
        im_check_say(r, IM_VERDICT_FAIL, name, file(r, p, "current_link_speed"), p->link_speed.text,
                     "PCIe %g GT/s, and the card can %g: %.1f of %.1f GB/s", p->gts, p->gts_max, now / 1e9, could / 1e9);
        im_check_mend(r,
                      "lspci -vv -s %s | grep -e LnkCap -e LnkSta    # then the BIOS setting of the slot's speed, riser, reseat; a slower slot by "
                      "design is its limit",
                      p->address);
    }
}

void im_check_pcie_link(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    user *u;
    const size_t n = users(h, r->arena, &u);
    for (size_t i = 0; i < n; i++)
        judge_link(h, r, u[i].name, u[i].pci, u[i].gpu);
    im_check_note(r, n ? "%zu NICs and GPUs" : "no NIC or GPU on the PCI bus", n);
}

/* Payload after TLP headers at 256 bytes each: 256 of 280. */
static double payload(const im_pci *p)
{
    const double raw = has_link(p) ? im_pci_rate(p->gts_max > 0 ? p->gts_max : p->gts, p->link_width_max.value) : 0;
    return raw * 256 / 280;
}

void im_check_pcie_feeds(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    for (size_t i = 0; i < h->m->nrdma; i++) {
        const im_rdma_device *d = &h->m->rdma[i];
        double gbps = 0;
        for (size_t k = 0; k < d->nports; k++)
            gbps += im_port_is_active(&d->port[k]) ? d->port[k].rate.data_gbps : 0;
        const double can = d->pci ? payload(d->pci) * 8e-9 : 0;
        if (!(gbps > 0) || !(can > 0))
            continue;
        n++;
        if (can >= gbps)
            continue;
        im_check_say(r, IM_VERDICT_WARN, d->name, file(r, d->pci, "max_link_speed"), d->pci->link_speed_max.text,
                     "its ports carry %g Gb/s, its PCIe link (%g GT/s x%lld at best) about %.0f Gb/s of payload: that is all it will give", gbps,
                     d->pci->gts_max, (long long)d->pci->link_width_max.value, can);
        im_check_mend(r, "lspci -vv -s %s | grep LnkCap    # another slot, or (Socket Direct) the second half of the card; else plan with %.0f Gb/s",
                      address_of(d), can);
    }
    im_check_note(r, n ? "%zu NICs" : "no NIC whose rate and link are known", n);
}

/* ---- configuration space ----------------------------------------------------------------------------- */

/* Offset of a capability in the first 256 bytes; 0: none or not readable. */
static size_t capability(const unsigned char *c, size_t len, unsigned id)
{
    size_t at = len > 0x34 ? c[0x34] & ~3u : 0;
    for (int hops = 0; at >= 0x40 && at + 2 <= len && hops < 48; hops++) {
        if (c[at] == id)
            return at;
        at = c[at + 1] & ~3u;
    }
    return 0;
}

/* Device Control of the PCI Express capability (id 0x10, offset 8); false: not readable. */
static bool device_control(const im_check_host *h, im_check_result *r, const im_pci *p, unsigned *control, const char **why)
{
    unsigned char c[256];
    size_t len = 0;
    const im_reading got = im_root_bytes(h->root, file(r, p, "config"), c, sizeof c, &len);
    const size_t at = capability(c, len, 0x10);
    *why = got.why ? got.why : len <= 64 ? "the kernel shows others than root the first 64 bytes alone" : "it has no PCI Express capability";
    if (!at || at + 10 > len)
        return false;
    *control = c[at + 8] | (unsigned)c[at + 9] << 8;
    return true;
}

static void ordering_variable(const im_check_host *h, im_check_result *r, const char *name, const char *off)
{
    const char *v = im_check_env(h, name);
    if (!v || strcmp(v, off) != 0)
        return;
    const im_env_item *item = im_env_used(&h->env, name);
    im_check_say(r, IM_VERDICT_WARN, NULL, item->file, im_arena_printf(r->arena, "%s=%s", name, v), "a variable switches relaxed ordering off");
    im_check_mend(r, "unset %s", name);
}

void im_check_relaxed_order(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    for (size_t i = 0; i < h->m->nrdma; i++) {
        const im_rdma_device *d = &h->m->rdma[i];
        unsigned control = 0;
        const char *why = NULL;
        if (!d->pci || d->pci->is_vf) /* a virtual function has its parent's */
            continue;
        const char *config = file(r, d->pci, "config");
        if (!device_control(h, r, d->pci, &control, &why)) {
            im_check_say(r, IM_VERDICT_UNKNOWN, d->name, config, NULL, "Device Control cannot be read: %s", why);
            im_check_mend(r, "sudo lspci -vv -s %s | grep RlxdOrd", address_of(d));
            continue;
        }
        n++;
        if (control >> 4 & 1)
            continue;
        im_check_say(r, IM_VERDICT_WARN, d->name, config, im_arena_printf(r->arena, "Device Control 0x%04x", control),
                     "relaxed ordering is off for this card (RlxdOrd-)");
        im_check_mend(r, "setpci -s %s CAP_EXP+8.w=0010:0010    # until the next start; for good: the BIOS, or mlxconfig -d %s set PCI_WR_ORDERING=1",
                      address_of(d), address_of(d));
    }
    ordering_variable(h, r, "NCCL_IB_PCI_RELAXED_ORDERING", "0");
    ordering_variable(h, r, "UCX_IB_PCI_RELAXED_ORDERING", "n");
    ordering_variable(h, r, "UCX_IB_PCI_RELAXED_ORDERING", "off");
    im_check_note(r, n ? "%zu NICs allow it" : "no NIC whose configuration is known", n);
}

/* ---- ACS, IOMMU ----------------------------------------------------------------------------------------- */

static bool above(const im_check_host *h, const user *u, size_t n, const im_pci *bridge, size_t *gpus, size_t *nics)
{
    (void)h;
    *gpus = *nics = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < u[i].pci->nbridges; k++)
            if (strcmp(u[i].pci->bridge[k], bridge->address) == 0) {
                *gpus += u[i].gpu;
                *nics += !u[i].gpu;
            }
    return *gpus || *nics;
}

/* The bridge is a port of a switch: there is another bridge above it. */
static bool below_switch(const im_check_host *h, const im_pci *bridge)
{
    (void)h;
    return bridge->nbridges >= 2;
}

void im_check_acs(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    user *u;
    size_t seen = 0, gpus, nics, on = 0;
    const size_t n = users(h, r->arena, &u);
    im_str list = {0};
    const im_pci *first = NULL;
    bool inside = false, unknown = false;
    for (size_t i = 0; i < h->m->npci; i++) {
        const im_pci *p = &h->m->pci[i];
        if (!p->is_bridge || !above(h, u, n, p, &gpus, &nics))
            continue;
        seen++;
        if (p->acs == IM_ACS_UNKNOWN && !unknown && h->m->ngpus) {
            unknown = true;
            im_check_say(r, IM_VERDICT_UNKNOWN, p->address, file(r, p, "config"), NULL, "ACS cannot be read: %s",
                         p->acs_why ? p->acs_why : "not told");
            im_check_mend(r, "sudo lspci -vvv | grep -e '^[0-9a-f].*bridge' -e ACSCtl    # SrcValid+ means that it is on; or run this check as root");
        }
        if (p->acs != IM_ACS_ON || !h->m->ngpus)
            continue;
        on++;
        first = first ? first : p;
        inside = inside || below_switch(h, p);
        im_str_printf(&list, "%s%s", list.len ? " " : "", p->address);
    }
    if (on && h->m->is_virtual) {
        im_check_note(r, "on, as a virtual machine needs it: the NIC must have ATS enabled");
    } else if (on) {
        im_check_say(r, inside ? IM_VERDICT_FAIL : IM_VERDICT_WARN, first->address, file(r, first, "config"),
                     im_arena_printf(r->arena, "ACSCtl 0x%04x", first->acs_control), "ACS is on for %zu of %zu bridges above GPUs and NICs%s", on,
                     seen, inside ? ", ports of PCIe switches among them" : " (root ports)");
        im_check_mend(r,
                      "for b in %s; do setpci -s $b ECAP_ACS+0x6.w=0000; done    # until the next start; for good: ACS off in the BIOS, or this line "
                      "in a start script",
                      im_str_text(&list));
    } else {
        im_check_note(r, h->m->ngpus ? "%zu bridges above GPUs and NICs" : "no GPU: it does not matter", seen);
    }
    im_str_free(&list);
}

void im_check_iommu(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    const im_reading *type = &h->m->iommu_type;
    if (h->m->iommu_why && strcmp(h->m->iommu_why, "absent") != 0) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, "/sys/kernel/iommu_groups", NULL, "whether an IOMMU is in use is not known: %s", h->m->iommu_why);
    } else if (!h->m->iommu_groups) {
        im_check_note(r, "none is in use");
    } else if (!type->text) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, type->path, NULL, "its mode is not known: %s", type->why ? type->why : "not told");
    } else if (strcmp(type->text, "identity") == 0) {
        im_check_note(r, "%zu groups, passthrough", h->m->iommu_groups);
    } else {
        im_check_say(r, IM_VERDICT_WARN, NULL, type->path, type->text, "the IOMMU translates (%zu groups); kernel command line: %s",
                     h->m->iommu_groups, h->m->cmdline.text ? h->m->cmdline.text : "not known");
        im_check_mend(r, "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub; update-grub; reboot    # with amd_iommu=on or intel_iommu=on "
                         "where virtual functions are used");
    }
}

/* ---- GPUDirect --------------------------------------------------------------------------------------------- */

static bool kernel_at_least(const char *text, int major, int minor)
{
    int a = 0, b = 0;
    return text && sscanf(text, "%d.%d", &a, &b) == 2 && (a > major || (a == major && b >= minor));
}

void im_check_gpu_direct(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t nvidia = 0;
    for (size_t i = 0; i < h->m->ngpus; i++)
        nvidia += h->m->gpu[i].pci && h->m->gpu[i].pci->vendor.value == 0x10de;
    const im_module *driver = im_machine_module(h->m, "nvidia"), *peer = im_machine_module(h->m, "nvidia_peermem");
    const bool open = h->m->nvidia_version.text && strstr(h->m->nvidia_version.text, "Open Kernel Module");
    if (!nvidia) {
        im_check_note(r, h->m->ngpus ? "no NVIDIA GPU: amdgpu has peer memory of its own" : "no GPU");
    } else if (h->m->peer_memory.text || (peer && peer->loaded && !h->m->modules_why)) {
        im_check_note(r, "nvidia_peermem %s", h->m->peer_memory.text ? h->m->peer_memory.text : "is loaded");
    } else if (open && kernel_at_least(h->m->kernel.text, 5, 12)) {
        im_check_note(r, "by dma-buf: open kernel module, kernel %s", h->m->kernel.text);
    } else if (h->m->modules_why) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, "/sys/module", NULL, "the modules cannot be listed: %s", h->m->modules_why);
    } else if (!driver || !driver->loaded) {
        im_check_say(r, IM_VERDICT_FAIL, NULL, "/sys/module/nvidia", "absent", "%zu NVIDIA GPUs, and their driver is not loaded", nvidia);
        im_check_mend(r, "modprobe nvidia nvidia_uvm; nvidia-smi");
    } else {
        im_check_say(
            r, IM_VERDICT_FAIL, NULL, "/sys/module/nvidia_peermem", "absent", "neither nvidia_peermem nor what dma-buf needs (%s, kernel %s)",
            open ? "the open kernel module is there" : "the closed kernel module is loaded", h->m->kernel.text ? h->m->kernel.text : "not known");
        im_check_mend(r, "modprobe nvidia_peermem; echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf    # look for it as nvidia_peermem: "
                         "lsmod writes the underscore");
    }
}

/* ---- distances ------------------------------------------------------------------------------------------------ */

void im_check_pairing(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    const im_graph *g = h->graph;
    size_t near = 0;
    if (!g->ngpus || !h->pairing.nrails) {
        im_check_note(r, !g->ngpus ? "no GPU" : "no NIC with an active port");
        return;
    }
    for (size_t i = 0; i < g->ngpus; i++) {
        const im_item *gpu = &g->gpu[i], *nic = h->pairing.nic[i];
        const im_path path = h->pairing.path[i];
        const char *at = im_arena_printf(r->arena, "/sys/bus/pci/devices/%s", gpu->address);
        if (!nic)
            continue;
        const char *seen = im_arena_printf(r->arena, "%s to %s: %s", gpu->name, nic->name, im_path_name(path));
        if (path == IM_PATH_UNKNOWN && !h->m->is_virtual) {
            im_check_say(r, IM_VERDICT_UNKNOWN, gpu->name, at, seen, "how far its nearest NIC is cannot be told: the firmware gives no NUMA node");
        } else if (path == IM_PATH_SYS || path == IM_PATH_NODE) {
            im_check_say(r, IM_VERDICT_FAIL, gpu->name, at, seen, "the best pairing still gives it a NIC %s: GPUDirect is not used",
                         path == IM_PATH_SYS ? "at the other socket" : "behind another host bridge");
            im_check_mend(r,
                          "imece fabric topo    # which slots are near each other; then move the card, or give the host's processes near GPUs alone");
        } else if (path == IM_PATH_PHB) {
            im_check_say(r, IM_VERDICT_WARN, gpu->name, at, seen,
                         "GPU and NIC meet at the CPU alone, farther than NCCL's PXB: it copies through host memory");
            im_check_mend(r, "export NCCL_NET_GDR_LEVEL=PHB    # where the CPU passes peer-to-peer traffic on well: measure both");
        } else {
            near++;
        }
    }
    im_check_note(r, "%zu of %zu GPUs have a NIC below their PCIe switch", near, g->ngpus);
}

void im_check_numa_spread(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    user *u;
    size_t on[64] = {0}, told = 0, untold = 0, used = 0, cpu_nodes = 0;
    const size_t n = users(h, r->arena, &u);
    for (size_t i = 0; i < h->m->nnumas; i++)
        cpu_nodes += h->m->numa[i].cpus.text && *h->m->numa[i].cpus.text && h->m->numa[i].id < 64; /* memory alone (HBM, CXL) counts not */
    for (size_t i = 0; i < n; i++) {
        const int64_t at = u[i].pci->numa_node.is_number ? u[i].pci->numa_node.value : -1;
        if (at < 0 || at > 63) {
            untold++;
            continue;
        }
        told++;
        used += on[at]++ == 0;
    }
    if (cpu_nodes < 2) {
        im_check_note(r, "one NUMA node");
    } else if (untold && !told) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, file(r, u[0].pci, "numa_node"), "-1",
                     "the firmware does not say at which NUMA node the devices are");
    } else if (h->m->ngpus + h->m->nrdma >= 4 && used == 1 && h->m->nrdma >= 2 && h->m->ngpus >= 2) {
        im_check_say(r, IM_VERDICT_WARN, NULL, file(r, u[0].pci, "numa_node"), u[0].pci->numa_node.text,
                     "all %zu NICs and GPUs say NUMA node %lld, of %zu nodes with CPUs", told, (long long)u[0].pci->numa_node.value, cpu_nodes);
        im_check_mend(r, "cat /sys/bus/pci/devices/*/numa_node | sort | uniq -c    # true? then run the ranks with: numactl --cpunodebind=N "
                         "--membind=N; else the BIOS (SLIT, _PXM)");
    }
    im_check_note(r, "%zu devices on %zu of %zu NUMA nodes", told, used, cpu_nodes);
}
