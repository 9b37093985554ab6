/* reader: a ring file, checked. Nothing in it is trusted: its writer may have been another build, or killed. */
#include "comm/traced/writer.h"

#include <stdlib.h>
#include <string.h>

const char *im_ring_state_name(im_ring_state s)
{
    static const char *const names[] = {"empty", "enqueued", "started", "done", "failed"};
    return (unsigned)s < IM_COUNT_OF(names) ? names[s] : "unknown";
}

static im_status check_header(im_context *ctx, const char *path, const im_ring_header *h, size_t len)
{
    if (len < sizeof *h || memcmp(h->magic, "imcring", 8) != 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 0: not a ring of communication", path);
    if (h->version != IM_RING_VERSION)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 8: version %u, this program reads %d", path, h->version, IM_RING_VERSION);
    if (h->header_bytes != sizeof *h || h->group_bytes != sizeof(im_ring_group) || h->record_bytes != sizeof(im_ring_record) ||
        h->max_groups != IM_RING_GROUPS || h->max_members != IM_RING_MEMBERS || h->max_records != IM_RING_RECORDS)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: byte 12: sizes of another build", path);
    if (len != im_ring_bytes())
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %zu bytes, a ring has %zu", path, len, im_ring_bytes());
    if (h->groups > IM_RING_GROUPS || h->members > IM_RING_MEMBERS || h->rank < 0 || h->rank >= h->world)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: %u groups, %u members, rank %d of %d: impossible", path, h->groups, h->members, h->rank, h->world);
    if (h->end > IM_RING_ERROR || h->saw < 0 || h->saw > h->world || h->step < 0)
        return im_fail(ctx, IM_ERR_FORMAT, "%s: end %u, saw %d, step %lld: impossible", path, h->end, h->saw, (long long)h->step);
    return IM_OK;
}

static bool is_sane(const im_ring_record *x, const im_ring_header *h)
{
    return x->number && x->number <= h->written && x->step >= 0 && x->op < IM_COMM_OP_COUNT && x->dtype < IM_DTYPE_COUNT && x->reduce <= IM_MIN &&
           x->state <= IM_RING_FAILED && x->peer >= -1 && x->peer < h->world;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const im_ring_record *)a)->number, y = ((const im_ring_record *)b)->number;
    return x < y ? -1 : x > y;
}

static im_status copy_parts(im_context *ctx, const unsigned char *data, im_comm_ring *r)
{
    const im_ring_header *h = &r->header;
    const unsigned char *groups = data + sizeof *h, *members = groups + sizeof(im_ring_group) * IM_RING_GROUPS;
    const unsigned char *records = members + sizeof(int32_t) * IM_RING_MEMBERS;
    void *p;
    IM_TRY(im_alloc(ctx, h->groups + 1u, sizeof *r->group, &p));
    r->group = p;
    IM_TRY(im_alloc(ctx, h->members + 1u, sizeof *r->member, &p));
    r->member = p;
    IM_TRY(im_alloc(ctx, IM_RING_RECORDS, sizeof *r->record, &p));
    r->record = p;
    memcpy(r->group, groups, sizeof *r->group * h->groups);
    memcpy(r->member, members, sizeof *r->member * h->members);
    for (uint32_t i = 0; i < h->groups; i++) { /* what does not fit the table has no members */
        im_ring_group *g = &r->group[i];
        if (g->size < 1 || g->members > h->members || (uint32_t)g->size > h->members - g->members)
            g->members = UINT32_MAX;
    }
    for (size_t i = 0; i < IM_RING_RECORDS; i++) {
        im_ring_record x, again;
        memcpy(&x, records + i * sizeof x, sizeof x);
        memcpy(&again, records + i * sizeof x, sizeof again);
        x.what[sizeof x.what - 1] = 0;
        if (is_sane(&x, h) && again.number == x.number)
            r->record[r->nrecord++] = x;
    }
    qsort(r->record, r->nrecord, sizeof *r->record, by_number);
    return IM_OK;
}

/* What the rank does is three values that are written together; a rank that was killed meanwhile leaves them as they are. */
static void copy_header(const unsigned char *data, im_ring_header *out)
{
    enum { TRIES = 1000 };
    const im_ring_header *h = (const im_ring_header *)data;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = __atomic_load_n(&h->note_seq, __ATOMIC_ACQUIRE);
        memcpy(out, data, sizeof *out);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (!(before & 1) && __atomic_load_n(&h->note_seq, __ATOMIC_ACQUIRE) == before)
            break;
    }
    out->backend[sizeof out->backend - 1] = 0;
    out->what[sizeof out->what - 1] = 0;
    out->text[sizeof out->text - 1] = 0;
    out->process.host[sizeof out->process.host - 1] = 0;
}

im_status im_comm_ring_parse(im_context *ctx, const char *path, const void *data, size_t len, im_comm_ring *out)
{
    im_comm_ring r = {0};
    if (len >= sizeof r.header)
        copy_header(data, &r.header);
    im_status status = check_header(ctx, path, &r.header, len);
    if (status == IM_OK)
        status = copy_parts(ctx, data, &r);
    if (status != IM_OK) {
        im_comm_ring_free(&r);
        return status;
    }
    *out = r;
    return IM_OK;
}

im_status im_comm_ring_read(im_context *ctx, const char *path, im_comm_ring *out)
{
    im_map map;
    IM_TRY(im_map_open(ctx, path, &map));
    im_status status = im_comm_ring_parse(ctx, path, map.data, map.len, out);
    im_map_close(&map);
    return status;
}

void im_comm_ring_free(im_comm_ring *r)
{
    free(r->group);
    free(r->member);
    free(r->record);
    *r = (im_comm_ring){0};
}

static const im_ring_group *group_of(const im_comm_ring *r, uint32_t id)
{
    for (uint32_t i = 0; i < r->header.groups; i++)
        if (r->group[i].id == id && r->group[i].members != UINT32_MAX)
            return &r->group[i];
    return NULL;
}

void im_comm_ring_name(const im_comm_ring *r, const im_ring_record *x, im_str *out)
{
    im_comm_signature sig = {.op = x->op, .dtype = x->dtype, .reduce = x->reduce, .peer = x->peer, .count = x->count};
    char what[384];
    bool message = x->op == IM_COMM_SEND || x->op == IM_COMM_RECV;
    im_comm_describe(&sig, what, sizeof what);
    im_str_append(out, what);
    if (message)
        im_str_printf(out, " %s rank %d, message %llu of group ", x->op == IM_COMM_SEND ? "to" : "from", x->peer, (unsigned long long)x->seq);
    else
        im_str_printf(out, ", operation %llu of group ", (unsigned long long)x->seq);
    const im_ring_group *g = group_of(r, x->group);
    if (g) {
        const im_comm c = {.size = g->size, .members = r->member + g->members};
        im_str_append(out, "[");
        im_comm_rank_list(&c, NULL, out);
        im_str_append(out, "]");
    } else {
        im_str_printf(out, "%08x", x->group);
    }
    if (x->what[0] && x->step)
        im_str_printf(out, " (step %lld, %s)", (long long)x->step, x->what);
    else if (x->what[0])
        im_str_printf(out, " (%s)", x->what);
}

void im_comm_ring_describe(const im_comm_ring *r, const im_ring_record *x, double now, im_str *out)
{
    im_comm_ring_name(r, x, out);
    double at = x->state == IM_RING_ENQUEUED ? x->enqueued : x->state == IM_RING_STARTED ? x->started : x->ended;
    im_str_printf(out, ": %s %.3f s ago", im_ring_state_name((im_ring_state)x->state), now - at);
    if (x->state >= IM_RING_DONE)
        im_str_printf(out, ", took %.6f s", x->ended - x->started);
    if (x->state == IM_RING_FAILED)
        im_str_printf(out, " (%s)", im_status_name((im_status)x->status));
}
