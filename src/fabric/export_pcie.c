/* PCIe links of cards and GPUs as metrics, and the share of a card's link that its ports' data take. */
#include "fabric/export.h"

#include <string.h>

double im_export_pcie_usable(double gts, int64_t width)
{
    const double coded = im_pci_rate(gts, width);
    return gts < 64 ? coded * 256 / (256 + 24) : coded;
}

static void gauge(im_prom *p, const im_prom_label *label, size_t n, const char *name, const char *help, double value)
{
    im_prom_add(p, im_prom_find(p, name, IM_PROM_GAUGE, help), label, n, value);
}

static bool is_width(const im_reading *r)
{
    return r->is_number && r->value > 0 && r->value <= 32; /* 0 and 255: no link */
}

static void link_of(im_prom *p, const char *name, const char *kind, const im_pci *pci)
{
    const im_prom_label l[] = {{"device", name}, {"address", pci->address}, {"kind", kind}};
    const size_t n = IM_COUNT_OF(l);
    const bool width = is_width(&pci->link_width), width_max = is_width(&pci->link_width_max);
    if (pci->gts > 0)
        gauge(p, l, n, "imece_fabric_pcie_speed_transfers_per_second", "Transfers a second and lane of the PCIe link now. GPUs lower it when idle.",
              pci->gts * 1e9);
    if (pci->gts_max > 0)
        gauge(p, l, n, "imece_fabric_pcie_speed_max_transfers_per_second", "Transfers a second and lane that the device can do.", pci->gts_max * 1e9);
    if (width)
        gauge(p, l, n, "imece_fabric_pcie_width_lanes", "Lanes of the PCIe link now.", (double)pci->link_width.value);
    if (width_max)
        gauge(p, l, n, "imece_fabric_pcie_width_max_lanes", "Lanes that the device can use.", (double)pci->link_width_max.value);
    if (width && pci->gts > 0) {
        gauge(p, l, n, "imece_fabric_pcie_link_bytes_per_second", "Rate of the PCIe link in each direction after its encoding, headers included.",
              im_pci_rate(pci->gts, pci->link_width.value));
        gauge(p, l, n, "imece_fabric_pcie_usable_bytes_per_second", "Payload that the PCIe link can carry in each direction, packets of 256 bytes.",
              im_export_pcie_usable(pci->gts, pci->link_width.value));
    }
    if (width_max && pci->gts_max > 0)
        gauge(p, l, n, "imece_fabric_pcie_usable_max_bytes_per_second", "Payload that the device's PCIe link could carry in each direction.",
              im_export_pcie_usable(pci->gts_max, pci->link_width_max.value));
}

/* ---- use -------------------------------------------------------------------------------------------------- */

/* Two functions of one card share its link: the address without the function. */
static bool same_card(const im_pci *a, const im_pci *b)
{
    const char *dot = strrchr(a->address, '.');
    return dot && strncmp(a->address, b->address, (size_t)(dot - a->address) + 1) == 0;
}

static const im_rdma_port *find_port(const im_machine *m, const char *device, int number)
{
    const im_rdma_device *d = im_machine_rdma(m, device);
    for (size_t i = 0; d && i < d->nports; i++)
        if (d->port[i].number == number)
            return &d->port[i];
    return NULL;
}

/* Bytes that the card's ports moved between the readings; false: some port of it cannot tell. */
static bool moved(const im_machine *m, const im_machine *before, const im_pci *card, const char *counter, double *bytes)
{
    bool some = false;
    *bytes = 0;
    for (size_t i = 0; i < m->nrdma; i++) {
        const im_rdma_device *d = &m->rdma[i];
        for (size_t k = 0; d->pci && same_card(card, d->pci) && k < d->nports; k++) {
            const im_rdma_port *was = find_port(before, d->name, d->port[k].number);
            const im_counter *now = im_port_counter(&d->port[k], counter), *then = was ? im_port_counter(was, counter) : NULL;
            if (!now || !then || !now->known || !then->known || now->value < then->value)
                return false;
            *bytes += 4 * (double)(now->value - then->value);
            some = true;
        }
    }
    return some;
}

static void use(im_prom *p, const im_machine *m, const im_machine *before, double seconds, const im_rdma_device *d)
{
    static const char *const counters[] = {"port_xmit_data", "port_rcv_data"}, *const directions[] = {"transmit", "receive"};
    const double usable = is_width(&d->pci->link_width) ? im_export_pcie_usable(d->pci->gts, d->pci->link_width.value) : 0;
    for (size_t k = 0; usable > 0 && k < IM_COUNT_OF(counters); k++) {
        double bytes;
        const im_prom_label l[] = {
            {"device", d->name}, {"address", d->pci->address}, {"kind", "nic"}, {"direction", directions[k]}, {"source", "port_counters"}};
        if (moved(m, before, d->pci, counters[k], &bytes))
            gauge(p, l, IM_COUNT_OF(l), "imece_fabric_pcie_saturation_ratio",
                  "Share of the PCIe link's usable rate in use, by where it is known from. transmit: out of memory onto the wire.",
                  bytes / seconds / usable);
    }
}

void im_export_pcie(im_prom *p, const im_machine *m, const im_machine *before, double seconds)
{
    for (size_t i = 0; i < m->nrdma; i++)
        if (m->rdma[i].pci)
            link_of(p, m->rdma[i].name, "nic", m->rdma[i].pci);
    for (size_t i = 0; i < m->ngpus; i++)
        link_of(p, m->gpu[i].name, "gpu", m->gpu[i].pci);
    for (size_t i = 0; before && seconds > 0 && i < m->nrdma; i++)
        if (m->rdma[i].pci)
            use(p, m, before, seconds, &m->rdma[i]);
}
