/* Figures with units: a number, a blank or none, a unit of the right quantity. */
#include "topology/cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit bytes[] = {{"B", 1},        {"KB", 1e3},     {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9}, {"TB", 1e12},
                             {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PB", 1e15}};
static const unit byte_rate[] = {{"B/s", 1},        {"KB/s", 1e3},     {"MB/s", 1e6},     {"GB/s", 1e9},     {"TB/s", 1e12},    {"KiB/s", 0x1p10},
                                 {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {"TiB/s", 0x1p40}, {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8}};
static const unit flop_rate[] = {{"FLOP/s", 1}, {"MFLOP/s", 1e6}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
static const unit seconds[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600}, {"d", 86400}};
static const unit watts[] = {{"W", 1}, {"kW", 1e3}, {"MW", 1e6}};

typedef struct quantity {
    const unit *unit;
    size_t n;
    const char *no_unit, *bad_unit;
} quantity;

#define TABLE(t) t, IM_COUNT_OF(t)
static const quantity table[IM_QUANTITY_COUNT] = {
    [IM_QUANTITY_BYTES] = {TABLE(bytes), "has no unit; write for example 80 GB or 64 GiB",
                           "has no unit of memory; one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"},
    [IM_QUANTITY_BYTE_RATE] = {TABLE(byte_rate), "has no unit; write for example 300 GB/s, or 200 Gb/s for bits",
                               "has no unit of a rate; one of MB/s, GB/s, TB/s (bytes), MiB/s, GiB/s, or Mb/s, Gb/s, Tb/s (bits)"},
    [IM_QUANTITY_FLOP_RATE] = {TABLE(flop_rate), "has no unit; write for example 312 TFLOP/s",
                               "has no unit of arithmetic; one of MFLOP/s, GFLOP/s, TFLOP/s, PFLOP/s"},
    [IM_QUANTITY_SECONDS] = {TABLE(seconds), "has no unit; write for example 2 us", "has no unit of time; one of ns, us, ms, s, min, h, d"},
    [IM_QUANTITY_WATTS] = {TABLE(watts), "has no unit; write for example 400 W", "has no unit of power; one of W, kW, MW"},
};

bool im_quantity_parse(im_quantity q, const char *text, double *out, const char **why)
{
    const quantity *t = &table[q];
    if (!(text[0] >= '0' && text[0] <= '9') && text[0] != '.') {
        *why = "is no number with a unit";
        return false;
    }
    size_t digits = strspn(text, "0123456789.eE+-");
    while (digits > 1 && strchr("eE+-", text[digits - 1])) /* "3 E..." is no exponent */
        digits--;
    char number[64], *end;
    if (digits >= sizeof number) {
        *why = "is no number with a unit";
        return false;
    }
    memcpy(number, text, digits);
    number[digits] = 0;
    double x = strtod(number, &end);
    if (*end || !isfinite(x)) {
        *why = "is no number with a unit";
        return false;
    }
    const char *name = text + digits + strspn(text + digits, " ");
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->unit[i].name, name)) {
            *out = x * t->unit[i].factor;
            return true;
        }
    *why = *name ? t->bad_unit : t->no_unit;
    return false;
}

const char *im_quantity_format(im_quantity q, double value, char *buf, size_t buflen)
{
    const quantity *t = &table[q];
    const unit *best = &t->unit[0];
    for (size_t i = 0; i < t->n; i++) {
        const unit *u = &t->unit[i];
        bool powers_of_two = strchr(u->name, 'i') && u->factor >= 0x1p10 && u->name[0] != 'm', bits = strchr(u->name, 'b') != NULL;
        bool fits = u->factor <= value * (1 + 1e-12);
        if (!powers_of_two && !bits && u->name[0] != 'k' && fits && (best->factor > value * (1 + 1e-12) || u->factor > best->factor))
            best = u;
    }
    snprintf(buf, buflen, "%.12g %s", value / best->factor, best->name);
    return buf;
}
