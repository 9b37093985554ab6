/* Ports: up, managed, of one rate with their twins, MTU, firmware. */
#include "fabric/check_rows.h"

#include <math.h>
#include <string.h>

static const char *file(const im_check_result *r, const im_rdma_port *p, const char *name)
{
    return im_arena_printf(r->arena, "%s/%s", p->path, name);
}

static bool same_text(const im_reading *a, const im_reading *b)
{
    return a->text && b->text && strcmp(a->text, b->text) == 0;
}

/* Two cards of one kind: of one board where that is told, else of one type. */
static bool alike(const im_rdma_device *a, const im_rdma_device *b)
{
    return a->board_id.text && *a->board_id.text ? same_text(&a->board_id, &b->board_id) : same_text(&a->hca_type, &b->hca_type);
}

void im_check_rdma_devices(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t cards = 0;
    const im_pci *first = NULL;
    for (size_t i = 0; i < h->m->npci; i++) {
        const im_pci *p = &h->m->pci[i];
        const bool network = p->pci_class.is_number && (p->pci_class.value >> 16) == 2;
        if (network && p->vendor.is_number && p->vendor.value == 0x15b3) {
            cards++;
            first = first ? first : p;
        }
    }
    if (h->m->nrdma) {
        im_check_note(r, "%zu RDMA devices", h->m->nrdma);
    } else if (h->m->rdma_why && strcmp(h->m->rdma_why, "absent") != 0) {
        im_check_say(r, IM_VERDICT_UNKNOWN, NULL, "/sys/class/infiniband", h->m->rdma_why, "the RDMA devices cannot be listed: %s", h->m->rdma_why);
    } else if (cards) {
        im_check_say(r, IM_VERDICT_FAIL, first->address, "/sys/class/infiniband", "absent",
                     "%zu functions of Mellanox/NVIDIA cards stand on the PCI bus, and no RDMA device: the RDMA driver is not loaded", cards);
        im_check_mend(r, "modprobe mlx5_ib ib_uverbs    # rdma link then lists the devices; else see dmesg | grep mlx5");
    } else {
        im_check_say(r, IM_VERDICT_FAIL, NULL, "/sys/class/infiniband", "absent", "this machine has no RDMA device: NCCL and UCX take TCP");
        im_check_mend(
            r, "lspci -nn | grep -i -e mellanox -e infiniband    # is there a card? then load its driver; in a container: pass the devices in");
    }
}

/* ---- up and managed ------------------------------------------------------------------------- */

static bool twin_is_active(const im_check_host *h, const im_rdma_device *of, const im_rdma_port *like)
{
    IM_EACH_PORT(h)
    {
        if (p != like && alike(d, of) && p->number == like->number && im_port_is_active(p))
            return true;
    }
    return false;
}

static bool any_active(const im_check_host *h)
{
    IM_EACH_PORT(h)
    {
        if (im_port_is_active(p))
            return true;
    }
    return false;
}

static void mend_down(im_check_result *r, const im_rdma_device *d, const im_rdma_port *p)
{
    const int64_t phys = p->phys_state.is_number ? p->phys_state.value : 0;
    if (phys == 3 && p->ethernet)
        im_check_mend(r, "ip link set dev %s up", im_check_netdev(p));
    else if (phys == 3)
        im_check_mend(r, "mlxlink -d %s -a UP    # it was disabled; or: ibportstate -D 0 %d enable", d->name, p->number);
    else if (p->ethernet)
        im_check_mend(r, "ip link set dev %s up; ethtool %s; ethtool -m %s    # then cable, transceiver, the switch's port", im_check_netdev(p),
                      im_check_netdev(p), im_check_netdev(p));
    else
        im_check_mend(r, "mlxlink -d %s -m    # signal and module; then reseat or change the cable, try another switch port", d->name);
}

static const char *what_is_down(const im_rdma_port *p)
{
    switch (p->phys_state.is_number ? p->phys_state.value : 0) {
    case 1: return "the port sleeps";
    case 2: return "it looks for a signal and finds none: no cable, the other end off, a broken transceiver, or no common speed";
    case 3: return "it was disabled, by the host or by the firmware";
    case 4: return "the link trains and does not come to an end: cable or speeds";
    case 5: return "the link is up and the port is not: on Ethernet its net device is down, on InfiniBand a partner is missing";
    case 6: return "the link recovers from errors all the time: cable or connector";
    default: return "the link is not up";
    }
}

void im_check_port_down(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t up = 0, all = 0;
    IM_EACH_PORT(h)
    {
        const char *where = im_check_port_name(r->arena, d, p);
        all++;
        up += im_port_is_active(p);
        if (!p->state.is_number) {
            im_check_say(r, IM_VERDICT_UNKNOWN, where, file(r, p, "state"), p->state.text, "its state is not known: %s",
                         p->state.why ? p->state.why : "no number");
        } else if (p->state.value <= 1) {
            const bool needed = twin_is_active(h, d, p) || !any_active(h);
            im_check_say(r, needed ? IM_VERDICT_FAIL : IM_VERDICT_WARN, where, file(r, p, "state"), p->state.text, "down (%s): %s%s",
                         p->phys_state.text ? p->phys_state.text : "physical state not told", what_is_down(p),
                         needed ? "" : "; no other card of its kind is up in that place, so it may be one that is not used");
            mend_down(r, d, p);
        }
    }
    im_check_note(r, all ? "%zu of %zu ports are active" : "no RDMA port", up, all);
}

void im_check_subnet_manager(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    IM_EACH_PORT(h)
    {
        if (p->ethernet || !p->link_layer.text || !p->state.is_number || p->state.value <= 1)
            continue;
        const char *where = im_check_port_name(r->arena, d, p);
        n++;
        if (p->state.value == 2 || p->state.value == 3) {
            im_check_say(r, IM_VERDICT_FAIL, where, file(r, p, "state"), p->state.text,
                         p->state.value == 2 ? "the link is up and no subnet manager has configured the port"
                                             : "the subnet manager has begun with this port and not ended");
            im_check_mend(r, "sminfo -C %s -P %d    # is one there? else start it on the switch, or on one host: systemctl start opensm", d->name,
                          p->number);
        } else if (p->sm_lid.is_number && p->sm_lid.value == 0) {
            im_check_say(r, IM_VERDICT_FAIL, where, file(r, p, "sm_lid"), p->sm_lid.text,
                         "the port is active and knows no subnet manager: nothing new can connect");
            im_check_mend(r, "sminfo -C %s -P %d", d->name, p->number);
        } else if (p->lid.is_number && (p->lid.value == 0 || p->lid.value == 0xffff)) {
            im_check_say(r, IM_VERDICT_FAIL, where, file(r, p, "lid"), p->lid.text, "the port has no LID");
            im_check_mend(r, "sminfo -C %s -P %d", d->name, p->number);
        }
    }
    im_check_note(r, n ? "%zu InfiniBand ports are managed" : "no InfiniBand port that is up", n);
}

/* ---- rates -------------------------------------------------------------------------------------- */

/* The twin with the highest rate; NULL: none is faster. */
static const im_rdma_port *faster_twin(const im_check_host *h, const im_rdma_device *of, const im_rdma_port *than, const char **name)
{
    const im_rdma_port *best = NULL;
    IM_EACH_PORT(h)
    {
        if (p == than || !alike(d, of) || p->ethernet != than->ethernet || !im_port_is_active(p))
            continue;
        if (p->rate.data_gbps > (best ? best->rate.data_gbps : than->rate.data_gbps) * 1.01) {
            best = p;
            *name = d->name;
        }
    }
    return best;
}

void im_check_link_rate(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    IM_EACH_PORT(h)
    {
        const char *name = NULL;
        if (!im_port_is_active(p)) /* the rate of a port that is down is a placeholder */
            continue;
        const char *where = im_check_port_name(r->arena, d, p);
        if (!(p->rate.gbps > 0)) {
            im_check_say(r, IM_VERDICT_UNKNOWN, where, file(r, p, "rate"), p->rate_text.text, "its rate is not known: %s",
                         p->rate_text.why ? p->rate_text.why : "not as the kernel writes it");
            continue;
        }
        n++;
        const im_rdma_port *twin = faster_twin(h, d, p, &name);
        if (!twin)
            continue;
        const bool narrow = p->rate.width && p->rate.width < twin->rate.width;
        im_check_say(r, IM_VERDICT_FAIL, where, file(r, p, "rate"), p->rate_text.text, "%s than %s (%s), a card of the same kind: %s",
                     narrow ? "narrower" : "slower", name, twin->rate_text.text,
                     narrow ? "lanes are missing: a bad or wrong cable, or a split port"
                            : "it trained at a lower speed: cable, transceiver, or the switch's port");
        if (p->ethernet)
            im_check_mend(r, "ethtool %s; ethtool -m %s    # then clean or change the cable; the switch's port: speed and FEC", im_check_netdev(p),
                          im_check_netdev(p));
        else
            im_check_mend(r, "mlxlink -d %s -m -c    # then clean or change the cable and: mlxlink -d %s -a TG", d->name, d->name);
    }
    im_check_note(r, n ? "%zu active ports have the rate of their kind" : "no active port", n);
}

void im_check_rate_named(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    IM_EACH_PORT(h)
    {
        /* cards of Gen3 and later make EDR at least; SDR is what the kernel writes for a speed that it does not know */
        const bool modern = d->pci && d->pci->gts_max >= 8;
        if (!im_port_is_active(p) || !modern || !p->rate.speed || strcmp(p->rate.speed, "SDR") != 0 || p->rate.width < 4)
            continue;
        im_check_say(r, IM_VERDICT_WARN, im_check_port_name(r->arena, d, p), file(r, p, "rate"), p->rate_text.text,
                     "SDR on a PCIe Gen%s card: the kernel (%s) does not know this speed and prints the lowest; the cable is not at fault",
                     d->pci->gts_max >= 32   ? "5"
                     : d->pci->gts_max >= 16 ? "4"
                                             : "3",
                     h->m->kernel.text ? h->m->kernel.text : "version not told");
        im_check_mend(
            r, "ibv_devinfo -d %s -v | grep -e active_speed -e active_width    # the true speed; a newer kernel or the vendor's driver names it",
            d->name);
    }
}

void im_check_expect(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    size_t n = 0;
    if (!(o->expect_gbps > 0)) {
        im_check_note(r, "not asked: --expect 400 says what ports should have");
        return;
    }
    IM_EACH_PORT(h)
    {
        const im_item *rail = NULL;
        for (size_t i = 0; i < h->pairing.nrails; i++)
            rail = strcmp(h->pairing.rail[i]->name, d->name) == 0 ? h->pairing.rail[i] : rail;
        if ((!rail && h->pairing.nrails) || !im_port_is_active(p) || !(p->rate.gbps > 0))
            continue;
        n++;
        if (fabs(p->rate.gbps - o->expect_gbps) <= o->expect_gbps * 0.01)
            continue;
        im_check_say(r, IM_VERDICT_FAIL, im_check_port_name(r->arena, d, p), file(r, p, "rate"), p->rate_text.text, "%g Gb/s expected, %g there",
                     o->expect_gbps, p->rate.gbps);
        im_check_mend(r,
                      "mlxlink -d %s    # what is supported and what is enabled; then the switch port's speed, and whether the cable is a split one",
                      d->name);
    }
    if (!n) {
        im_check_say(r, IM_VERDICT_FAIL, NULL, "/sys/class/infiniband", NULL, "%g Gb/s expected, and no active port to have it", o->expect_gbps);
        im_check_mend(r, "imece fabric status");
    }
    im_check_note(r, "%zu ports have %g Gb/s", n, o->expect_gbps);
}

/* ---- MTU ------------------------------------------------------------------------------------------- */

/* RoCE v2 over IPv4: 82 bytes of headers and gaps for each packet (FABRIC: preamble 8, gap 12, Ethernet 14, IP 20, UDP 8, BTH 12, ICRC 4, FCS 4). */
static double share_left(int mtu)
{
    return mtu / (mtu + 82.0);
}

void im_check_mtu(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    size_t n = 0;
    IM_EACH_PORT(h)
    {
        if (!im_port_is_active(p))
            continue;
        const char *where = im_check_port_name(r->arena, d, p);
        if (!p->mtu_active) {
            im_check_say(r, IM_VERDICT_UNKNOWN, where, file(r, p, "state"), NULL, "its RDMA MTU is not known: %s",
                         p->mtu_why ? p->mtu_why : "not told");
            im_check_mend(r, "ibv_devinfo -d %s -v | grep active_mtu", d->name);
            continue;
        }
        n++;
        const im_net *net = p->netdev ? im_machine_net(h->m, p->netdev) : NULL;
        if (p->ethernet && p->mtu_active < 4096 && (!p->mtu_max || p->mtu_max > p->mtu_active)) {
            im_check_say(r, IM_VERDICT_WARN, where, net ? net->mtu.path : p->mtu_from, net ? net->mtu.text : NULL,
                         "RDMA MTU %d: at most %.1f %% of the link is payload, with 4096 it is %.1f %%", p->mtu_active,
                         100 * share_left(p->mtu_active), 100 * share_left(4096));
            im_check_mend(r, "ip link set dev %s mtu 9000    # 4200 is enough; the switch's ports must allow it, on every host alike",
                          im_check_netdev(p));
        } else if (!p->ethernet && p->mtu_max && p->mtu_active < p->mtu_max) {
            im_check_say(r, IM_VERDICT_WARN, where, p->mtu_from, im_arena_printf(r->arena, "%d", p->mtu_active), "RDMA MTU %d, and the port can %d",
                         p->mtu_active, p->mtu_max);
            im_check_mend(r, "smpquery portinfo -C %s -P %d %lld | grep -i mtu    # the subnet manager sets it: partitions.conf, mtu=5 is 4096",
                          d->name, p->number, (long long)(p->lid.is_number ? p->lid.value : 0));
        }
    }
    im_check_note(r, n ? "%zu active ports" : "no active port", n);
}

/* ---- firmware ---------------------------------------------------------------------------------------- */

void im_check_firmware(const im_check_host *h, const im_check_options *o, im_check_result *r)
{
    (void)o;
    for (size_t i = 0; i < h->m->nrdma; i++) {
        const im_rdma_device *x = &h->m->rdma[i], *most = NULL;
        size_t same = 0, other = 0, best = 0;
        if (!x->fw_ver.text || !*x->fw_ver.text)
            continue;
        for (size_t j = 0; j < h->m->nrdma; j++) {
            const im_rdma_device *y = &h->m->rdma[j];
            if (!alike(x, y) || !y->fw_ver.text)
                continue;
            size_t votes = 0;
            for (size_t k = 0; k < h->m->nrdma; k++)
                votes += alike(x, &h->m->rdma[k]) && same_text(&y->fw_ver, &h->m->rdma[k].fw_ver);
            if (votes > best || (votes == best && most && strcmp(y->fw_ver.text, most->fw_ver.text) > 0)) {
                best = votes;
                most = y;
            }
            if (same_text(&x->fw_ver, &y->fw_ver))
                same++;
            else
                other++;
        }
        if (!other || !most || same_text(&x->fw_ver, &most->fw_ver))
            continue;
        im_check_say(r, IM_VERDICT_WARN, x->name, x->fw_ver.path, x->fw_ver.text, "%s has %s, a card of the same kind (%s); so have %zu of %zu",
                     most->name, most->fw_ver.text, x->board_id.text ? x->board_id.text : "board not told", best, same + other);
        im_check_mend(r, "mlxfwmanager -d %s --query    # then flash the version of the others and reset: mlxfwreset -d %s reset",
                      x->pci ? x->pci->address : x->name, x->pci ? x->pci->address : x->name);
    }
    im_check_note(r, "%zu devices", h->m->nrdma);
}
