/* PCI functions: where each hangs in the tree, its link, its NUMA node, ACS. */
#include "topology/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASS_BRIDGE = 0x0604, CONFIG_BYTES = 4096, CONFIG_SHORT = 64, EXTENDED_AT = 0x100, ACS_CAPABILITY = 0x000d };

static const struct {
    int64_t id;
    const char *name;
} vendors[] = {
    {0x10de, "nvidia"}, {0x15b3, "mellanox"}, {0x1002, "amd"},    {0x8086, "intel"},   {0x14e4, "broadcom"}, {0x1d0f, "amazon"},
    {0x1ae0, "google"}, {0x1dd8, "pensando"}, {0x1077, "qlogic"}, {0x17aa, "lenovo"},  {0x1a03, "aspeed"},   {0x102b, "matrox"},
    {0x1af4, "virtio"}, {0x1da3, "habana"},   {0x19e5, "huawei"}, {0x1425, "chelsio"}, {0x1022, "amd"},      {0x11f8, "microchip"},
};

const char *im_pci_vendor(int64_t vendor)
{
    for (size_t i = 0; i < IM_COUNT_OF(vendors); i++)
        if (vendors[i].id == vendor)
            return vendors[i].name;
    return NULL;
}

double im_pci_rate(double gts, int64_t width)
{
    if (!(gts > 0) || width < 1 || width > 32)
        return 0;
    /* 64 GT/s sends 256-byte flits, 242 of them for packets (PCIe 6.0) */
    const double coded = gts <= 5 ? 0.8 : gts < 64 ? 128.0 / 130 : 242.0 / 256;
    return gts * 1e9 / 8 * coded * (double)width;
}

/* DDDD:BB:SS.F; domains may be longer (VMD, Hyper-V) */
bool im_is_pci_address(const char *text, size_t n)
{
    size_t domain = 0;
    while (domain < n && isxdigit((unsigned char)text[domain]))
        domain++;
    if (domain < 4 || domain > 8 || n != domain + 8)
        return false;
    const char *p = text + domain;
    return p[0] == ':' && isxdigit((unsigned char)p[1]) && isxdigit((unsigned char)p[2]) && p[3] == ':' && isxdigit((unsigned char)p[4]) &&
           isxdigit((unsigned char)p[5]) && p[6] == '.' && p[7] >= '0' && p[7] <= '7';
}

static bool is_host_bridge(const char *text, size_t n)
{
    return n >= 10 && n <= 14 && strncmp(text, "pci", 3) == 0 && isxdigit((unsigned char)text[3]) && memchr(text, ':', n);
}

static const char *text_of(im_arena *a, const char *s, size_t n)
{
    char *out = im_arena_alloc(a, n + 1);
    if (out)
        memcpy(out, s, n);
    return out;
}

/* The chain above the function, from its path. */
static void place(im_arena *a, im_pci *p)
{
    size_t n = 0;
    for (const char *s = p->path; *s; s++)
        n += *s == '/';
    p->bridge = IM_ARENA_NEW(a, const char *, n + 1);
    for (const char *s = p->path; s && p->bridge;) {
        s += strspn(s, "/");
        const size_t len = strcspn(s, "/");
        if (!len)
            break;
        if (is_host_bridge(s, len)) {
            p->host_bridge = text_of(a, s, len);
            p->nbridges = 0;
        } else if (p->host_bridge && im_is_pci_address(s, len) && s[len]) {
            const char *address = text_of(a, s, len);
            if (address)
                p->bridge[p->nbridges++] = address;
        }
        s += len;
    }
}

static double gts_of(const im_reading *r)
{
    char *end;
    if (!r->text || !isdigit((unsigned char)*r->text))
        return 0;
    const double v = strtod(r->text, &end);
    while (*end == ' ')
        end++;
    return strncmp(end, "GT/s", 4) == 0 && v > 0 && v < 1000 ? v : 0;
}

static unsigned word_at(const unsigned char *config, size_t at, size_t bytes)
{
    unsigned v = 0;
    for (size_t i = bytes; i-- > 0;)
        v = v << 8 | config[at + i];
    return v;
}

/* The list of extended capabilities starts at 0x100: 16 bits id, 4 version, 12 the next one's place (PCIe base spec, 7.6.3). */
static void read_acs(im_root *root, const char *dir, im_pci *p)
{
    unsigned char config[CONFIG_BYTES];
    size_t len;
    char path[512];
    snprintf(path, sizeof path, "%s/config", dir);
    const im_reading r = im_root_bytes(root, path, config, sizeof config, &len);
    if (r.why || len <= EXTENDED_AT) {
        p->acs_why = r.why                 ? r.why
                     : len <= CONFIG_SHORT ? "only the first bytes of config can be read: root is needed"
                                           : "config has no extended space";
        return;
    }
    size_t at = EXTENDED_AT;
    for (int hops = 0; at >= EXTENDED_AT && hops < 480; hops++) {
        if (at + 8 > len) {
            p->acs_why = "config is cut";
            return;
        }
        const unsigned head = word_at(config, at, 4);
        if ((head & 0xffff) == ACS_CAPABILITY) {
            p->acs_control = (uint16_t)word_at(config, at + 6, 2);
            p->acs = p->acs_control & 0x1d ? IM_ACS_ON : IM_ACS_OFF; /* SrcValid, ReqRedir, CmpltRedir, UpstreamFwd */
            return;
        }
        at = head == 0 || head == 0xffffffffu ? 0 : head >> 20 & 0xffc;
    }
    p->acs = IM_ACS_NONE;
}

static void read_one(im_root *root, const char *address, im_pci *p)
{
    char dir[256];
    snprintf(dir, sizeof dir, "/sys/bus/pci/devices/%s", address);
    p->address = address;
    p->path = im_root_resolve(root, dir);
    if (!p->path)
        p->path = im_arena_strdup(im_root_arena(root), dir);
    if (!p->path)
        return;
    place(im_root_arena(root), p);
    p->pci_class = im_root_number(root, "%s/class", dir);
    p->vendor = im_root_number(root, "%s/vendor", dir);
    p->device = im_root_number(root, "%s/device", dir);
    p->is_bridge = p->pci_class.is_number && p->pci_class.value >> 8 == CLASS_BRIDGE;
    p->numa_node = im_root_number(root, "%s/numa_node", dir);
    p->link_speed = im_root_read(root, "%s/current_link_speed", dir);
    p->link_speed_max = im_root_read(root, "%s/max_link_speed", dir);
    p->link_width = im_root_number(root, "%s/current_link_width", dir);
    p->link_width_max = im_root_number(root, "%s/max_link_width", dir);
    p->gts = gts_of(&p->link_speed);
    p->gts_max = gts_of(&p->link_speed_max);
    p->acs_why = "not looked at";
    if (p->is_bridge) {
        read_acs(root, dir, p);
        return;
    }
    char link[320];
    p->subsystem_vendor = im_root_number(root, "%s/subsystem_vendor", dir);
    p->subsystem_device = im_root_number(root, "%s/subsystem_device", dir);
    p->local_cpus = im_root_read(root, "%s/local_cpulist", dir);
    snprintf(link, sizeof link, "%s/driver", dir);
    p->driver = im_root_link_name(root, link);
    snprintf(link, sizeof link, "%s/iommu_group", dir);
    p->iommu_group = im_root_link_name(root, link);
    snprintf(link, sizeof link, "%s/physfn", dir);
    p->is_vf = im_root_exists(root, link);
    read_acs(root, dir, p); /* endpoints with several functions have it too */
}

/* Class 03xx is a display, 12xx a processing accelerator. A plain VGA function (0300) counts only of a maker of compute cards:
 * servers have one on the board for the console. */
static bool is_gpu(const im_pci *p)
{
    if (!p->pci_class.is_number || !p->vendor.is_number)
        return false;
    const int64_t kind = p->pci_class.value >> 8;
    const bool makes_both = p->vendor.value == 0x10de || p->vendor.value == 0x1002;
    return kind == 0x0302 || kind == 0x0380 || kind == 0x1200 || (kind == 0x0300 && makes_both);
}

void im_read_pci(im_root *root, im_machine *m)
{
    const im_names names = im_root_list(root, "/sys/bus/pci/devices");
    im_arena *a = im_root_arena(root);
    m->pci_why = names.why;
    m->pci = IM_ARENA_NEW(a, im_pci, names.n + 1);
    m->gpu = IM_ARENA_NEW(a, im_gpu, names.n + 1);
    for (size_t i = 0; m->pci && m->gpu && i < names.n; i++) {
        if (!im_is_pci_address(names.item[i], strlen(names.item[i])))
            continue;
        im_pci *p = &m->pci[m->npci++];
        read_one(root, names.item[i], p);
        if (is_gpu(p)) {
            m->gpu[m->ngpus] = (im_gpu){im_arena_printf(a, "GPU%zu", m->ngpus), p};
            m->ngpus++;
        }
    }
}

const im_pci *im_machine_pci(const im_machine *m, const char *address)
{
    for (size_t i = 0; i < m->npci; i++)
        if (strcasecmp(m->pci[i].address, address) == 0)
            return &m->pci[i];
    return NULL;
}

/* By the path that the link leads to: its last component that is an address. A bundle that copied the folder in place of the
 * link has it in uevent. */
const im_pci *im_pci_of_device(im_root *root, const im_machine *m, const char *device, const char **why)
{
    const char *path = im_root_resolve(root, device), *last = NULL;
    size_t len = 0;
    *why = NULL;
    if (!path) {
        *why = "no device behind it: a software device";
        return NULL;
    }
    for (const char *s = path; *s; s += strcspn(s, "/")) {
        s += strspn(s, "/");
        if (im_is_pci_address(s, strcspn(s, "/"))) {
            last = s;
            len = strcspn(s, "/");
        }
    }
    const char *address = last ? text_of(im_root_arena(root), last, len) : NULL;
    if (!address) {
        const im_reading uevent = im_root_read(root, "%s/uevent", device);
        address = uevent.text ? im_text_value(im_root_arena(root), uevent.text, "PCI_SLOT_NAME") : NULL;
    }
    const im_pci *p = address ? im_machine_pci(m, address) : NULL;
    if (!p)
        *why = address ? im_arena_printf(im_root_arena(root), "%s is not in /sys/bus/pci/devices", address) : "not a PCI device";
    return p;
}
