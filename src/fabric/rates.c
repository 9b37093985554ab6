/* The table of `fabric status --watch`. */
#include "fabric/json_out.h"
#include "fabric/status.h"

#include <stdio.h>
#include <string.h>

/* 12345678 -> "12.3 M" */
static void scaled(im_str *out, int width, double v, const char *unit)
{
    static const char *const prefix[] = {"", "k", "M", "G", "T"};
    size_t k = 0;
    char buf[32];
    if (v < 0) {
        im_str_printf(out, "%*s", width, "?");
        return;
    }
    while (v >= 999.5 && k + 1 < IM_COUNT_OF(prefix)) {
        v /= 1000;
        k++;
    }
    snprintf(buf, sizeof buf, "%.*f %s%s", v >= 99.95 || k == 0 ? 0 : 1, v, prefix[k], unit);
    im_str_printf(out, "%*s", width, buf);
}

static void row(const im_rdma_device *d, const im_rdma_port *p, const im_port_rates *r, const im_paint *paint, im_str *out)
{
    const bool active = p->state.is_number && p->state.value == 4;
    char name[64];
    snprintf(name, sizeof name, "%.48s/%d", d->name, p->number);
    im_str_printf(out, "%-14s %s%-7s%s", name, active ? paint->good : paint->bad, p->state.is_number ? im_port_state_ibstat(p->state.value) : "?",
                  paint->off);
    if (active && p->rate.gbps > 0)
        im_str_printf(out, " %5g G", p->rate.gbps);
    else
        im_str_printf(out, " %7s", "");
    scaled(out, 12, r->tx_bits, "b/s");
    scaled(out, 12, r->rx_bits, "b/s");
    const double most = r->tx_bits > r->rx_bits ? r->tx_bits : r->rx_bits;
    if (active && p->rate.data_gbps > 0 && most >= 0)
        im_str_printf(out, " %4.0f %%", most / (p->rate.data_gbps * 1e7));
    else
        im_str_printf(out, " %6s", "?");
    scaled(out, 10, r->tx_packets, "p/s");
    scaled(out, 10, r->rx_packets, "p/s");
    scaled(out, 10, r->congestion, "/s");
    if (r->errors)
        im_str_printf(out, "  %s+%llu %s%s", paint->bad, (unsigned long long)r->errors, r->worst, paint->off);
    else if (r->errors_standing)
        im_str_printf(out, "  %llu before", (unsigned long long)r->errors_standing);
    else
        im_str_append(out, "  0");
    im_str_printf(out, "%s\n", r->reset ? "  (a counter went back)" : "");
}

void im_rates_text(const im_machine *m, const im_port_rates *rates, const im_look *look, im_str *out)
{
    const im_paint paint = im_paint_of(look);
    im_str_printf(out, "%s%-14s %-7s %7s %11s %11s %6s %9s %9s %9s  errors%s\n", paint.bold, "port", "state", "link", "sent", "received", "share",
                  "sent", "received", "congested", paint.off);
    for (size_t d = 0; d < m->nrdma; d++)
        for (size_t p = 0; p < m->rdma[d].nports; p++)
            row(&m->rdma[d], &m->rdma[d].port[p], rates++, &paint, out);
}

static void known(im_json_out *w, const char *key, double v)
{
    if (v >= 0)
        im_json_out_real(w, key, v);
}

void im_rates_json(const im_machine *m, const im_port_rates *rates, double seconds, im_str *out)
{
    im_json_out w = {out, false};
    im_json_out_open(&w, NULL, '{');
    im_json_out_real(&w, "seconds", seconds);
    im_json_out_open(&w, "ports", '[');
    for (size_t d = 0; d < m->nrdma; d++)
        for (size_t p = 0; p < m->rdma[d].nports; p++, rates++) {
            im_json_out_open(&w, NULL, '{');
            im_json_out_text(&w, "device", m->rdma[d].name);
            im_json_out_int(&w, "port", m->rdma[d].port[p].number);
            im_json_out_reading(&w, "state", &m->rdma[d].port[p].state);
            known(&w, "sent_bits_per_second", rates->tx_bits);
            known(&w, "received_bits_per_second", rates->rx_bits);
            known(&w, "sent_packets_per_second", rates->tx_packets);
            known(&w, "received_packets_per_second", rates->rx_packets);
            known(&w, "congestion_per_second", rates->congestion);
            im_json_out_uint(&w, "errors_risen", rates->errors);
            im_json_out_uint(&w, "errors", rates->errors_standing);
            im_json_out_text(&w, "worst", rates->worst);
            im_json_out_bool(&w, "counter_went_back", rates->reset);
            im_json_out_close(&w, '}');
        }
    im_json_out_close(&w, ']');
    im_json_out_close(&w, '}');
    im_str_append(out, "\n");
}
