/* values: the two maps that place, link and check share. */
#include "plan/values.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash(const im_value *v)
{
    uint64_t x = (uint64_t)v->role << 56 ^ (uint64_t)v->index << 48 ^ (uint64_t)v->owner << 32 ^ (uint32_t)v->mb;
    x *= 0x9E3779B97F4A7C15u; /* Fibonacci hashing */
    return (uint32_t)(x >> 32);
}

static bool rehash(im_value_map *m, uint32_t nslot)
{
    uint32_t *slot = calloc(nslot, sizeof *slot);
    if (!slot)
        return false;
    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t at = hash(&m->key[i]) & (nslot - 1);
        while (slot[at])
            at = (at + 1) & (nslot - 1);
        slot[at] = i + 1;
    }
    free(m->slot);
    m->slot = slot;
    m->nslot = nslot;
    return true;
}

uint32_t im_value_map_find(const im_value_map *m, const im_value *v)
{
    if (!m->nslot)
        return UINT32_MAX;
    for (uint32_t at = hash(v) & (m->nslot - 1); m->slot[at]; at = (at + 1) & (m->nslot - 1))
        if (im_value_equal(&m->key[m->slot[at] - 1], v))
            return m->slot[at] - 1;
    return UINT32_MAX;
}

uint32_t im_value_map_add(im_value_map *m, const im_value *v)
{
    uint32_t i = im_value_map_find(m, v);
    if (i != UINT32_MAX)
        return i;
    if (m->n == m->cap) {
        uint32_t cap = m->cap ? m->cap * 2 : 256;
        im_value *key = realloc(m->key, sizeof *key * cap);
        if (!key)
            return UINT32_MAX;
        m->key = key;
        m->cap = cap;
    }
    m->key[m->n++] = *v;
    if (m->n * 2 > m->nslot) {
        if (!rehash(m, m->nslot ? m->nslot * 2 : 1024)) {
            m->n--;
            return UINT32_MAX;
        }
        return m->n - 1;
    }
    uint32_t at = hash(v) & (m->nslot - 1);
    while (m->slot[at])
        at = (at + 1) & (m->nslot - 1);
    m->slot[at] = m->n;
    return m->n - 1;
}

void im_value_map_free(im_value_map *m)
{
    free(m->key);
    free(m->slot);
    *m = (im_value_map){0};
}

/* ---- bytes ------------------------------------------------------------------ */

static bool insert(im_span_map *m, size_t at, const im_span *s)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 64;
        im_span *span = realloc(m->span, sizeof *span * cap);
        if (!span)
            return false;
        m->span = span;
        m->cap = cap;
    }
    memmove(m->span + at + 1, m->span + at, sizeof *m->span * (m->n - at));
    m->span[at] = *s;
    m->n++;
    return true;
}

/* index of the first span that ends after `lo` */
static size_t search(const im_span_map *m, size_t lo)
{
    size_t a = 0, b = m->n;
    while (a < b) {
        size_t mid = (a + b) / 2;
        if (m->span[mid].hi > lo)
            b = mid;
        else
            a = mid + 1;
    }
    return a;
}

static bool split(im_span_map *m, size_t i, size_t at)
{
    im_span right = m->span[i];
    right.lo = at;
    if (!insert(m, i + 1, &right))
        return false;
    m->span[i].hi = at;
    return true;
}

bool im_span_map_cover(im_span_map *m, size_t lo, size_t hi, size_t *first, size_t *end)
{
    size_t i = search(m, lo);
    if (i < m->n && m->span[i].lo < lo) {
        if (!split(m, i, lo))
            return false;
        i++;
    }
    *first = i;
    for (size_t at = lo; at < hi; i++) {
        if (i < m->n && m->span[i].lo <= at) {
            if (m->span[i].hi > hi && !split(m, i, hi))
                return false;
        } else {
            im_span fresh = {.lo = at, .hi = i < m->n && m->span[i].lo < hi ? m->span[i].lo : hi, .write = -1};
            for (int q = 0; q < IM_QUEUE_MAX; q++)
                fresh.read[q] = -1;
            if (!insert(m, i, &fresh))
                return false;
        }
        at = m->span[i].hi;
    }
    *end = i;
    return true;
}

void im_span_map_free(im_span_map *m)
{
    free(m->span);
    *m = (im_span_map){0};
}
