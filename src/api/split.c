/* split: a matrix whose rows or columns lie on the ranks of a group; and whether all ranks ask for the same layer. */
#include "api/internal.h"

#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWN = 1 << 18 }; /* elements at once */

void im_api_split_part(const im_api_split *s, const im_group *g, int member, int64_t *first, int64_t *end)
{
    int64_t n = s->by_columns ? s->cols : s->rows;
    *first = 0;
    *end = n;
    if (!s->replicated)
        im_part(n, im_group_size(g), member, first, end);
}

/* The local matrix of a member, and where it begins in the whole. */
typedef struct place {
    int64_t rows, cols, row0, col0;
} place;

static place place_of(const im_api_split *s, const im_group *g, int member)
{
    int64_t first, end;
    im_api_split_part(s, g, member, &first, &end);
    if (s->by_columns)
        return (place){.rows = s->rows, .cols = end - first, .col0 = first};
    return (place){.rows = end - first, .cols = s->cols, .row0 = first};
}

im_status im_api_split_create(im_group *g, const im_api_split *s, im_api_use use, im_dtype t, int ndim, im_tensor **out)
{
    place p = place_of(s, g, im_group_rank(g));
    return im_api_tensor(g->rank, use, t, ndim, ndim == 1 ? (int64_t[]){p.rows * p.cols} : (int64_t[]){p.rows, p.cols}, out);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Whole rows are one run; else a run a row. `block` rows are put at once. */
static int64_t block_rows(const place *p)
{
    int64_t n = p->cols ? DRAWN / p->cols : 1;
    return n < 1 ? 1 : n > p->rows ? p->rows : n;
}

im_status im_api_split_draw(im_group *g, const im_api_split *s, im_tensor *t, uint64_t seed, const char *name, double std)
{
    const im_param param = {.name = name, .init = {.kind = IM_INIT_NORMAL, .std = std}};
    place p = place_of(s, g, im_group_rank(g));
    int64_t block = block_rows(&p);
    void *memory;
    if (!p.rows || !p.cols)
        return IM_OK;
    IM_TRY(im_alloc(g->rank->ctx, (size_t)(block * p.cols), sizeof(float), &memory));
    float *values = memory;
    im_status status = IM_OK;
    for (int64_t row = 0; row < p.rows && status == IM_OK; row += block) {
        int64_t n = p.rows - row < block ? p.rows - row : block;
        if (p.cols == s->cols)
            im_param_init(&param, seed, (p.row0 + row) * s->cols, n * p.cols, values);
        else
            for (int64_t i = 0; i < n; i++)
                im_param_init(&param, seed, (p.row0 + row + i) * s->cols + p.col0, p.cols, values + i * p.cols);
        status = im_api_put(t, row * p.cols, n * p.cols, values);
    }
    free(memory);
    return status;
}

/* Between a block of local rows and their places in the whole. */
static void exchange(const im_api_split *s, const place *p, int64_t row, int64_t n, float *local, float *whole, bool to_whole)
{
    for (int64_t i = 0; i < n; i++) {
        float *there = whole + (p->row0 + row + i) * s->cols + p->col0, *here = local + i * p->cols;
        memcpy(to_whole ? there : here, to_whole ? here : there, (size_t)p->cols * sizeof *here);
    }
}

/* Member `member`'s part lies in t. */
static im_status move(const im_api_split *s, const im_group *g, int member, im_tensor *t, float *whole, bool to_whole)
{
    place p = place_of(s, g, member);
    int64_t block = block_rows(&p);
    void *memory;
    if (!p.rows || !p.cols)
        return IM_OK;
    IM_TRY(im_alloc(g->rank->ctx, (size_t)(block * p.cols), sizeof(float), &memory));
    im_status status = IM_OK;
    for (int64_t row = 0; row < p.rows && status == IM_OK; row += block) {
        int64_t n = p.rows - row < block ? p.rows - row : block;
        if (to_whole) {
            status = im_api_take(t, row * p.cols, n * p.cols, memory);
            if (status == IM_OK)
                exchange(s, &p, row, n, memory, whole, true);
        } else {
            exchange(s, &p, row, n, memory, whole, false);
            status = im_api_put(t, row * p.cols, n * p.cols, memory);
        }
    }
    free(memory);
    return status;
}

im_status im_api_split_set(im_group *g, const im_api_split *s, im_tensor *t, const float *whole)
{
    return move(s, g, im_group_rank(g), t, (float *)whole, false); /* read only in this direction */
}

static im_status receive_part(im_group *g, const im_api_split *s, im_dtype t, int member, float *whole)
{
    place p = place_of(s, g, member);
    im_tensor *part;
    if (!p.rows || !p.cols)
        return IM_OK;
    IM_TRY(im_api_matrix(g->rank, IM_API_STAGING, t, p.rows, p.cols, &part));
    im_status status = im_group_recv(g, part, member);
    if (status == IM_OK)
        status = move(s, g, member, part, whole, true);
    im_api_tensor_end(part);
    return status;
}

im_status im_api_split_get(im_group *g, const im_api_split *s, const im_tensor *t, int root, float *whole)
{
    int me = im_group_rank(g);
    if (root < 0 || root >= im_group_size(g))
        return im_fail(g->rank->ctx, IM_ERR_ARG, "root %d of a group of %d ranks", root, im_group_size(g));
    if (me != root)
        return s->replicated || !im_tensor_count(t) ? IM_OK : im_group_send(g, t, root);
    if (!whole)
        return im_fail(g->rank->ctx, IM_ERR_ARG, "rank %d is the root and gives no memory", me);
    IM_TRY(move(s, g, me, (im_tensor *)t, whole, true));
    for (int i = 0; i < im_group_size(g) && !s->replicated; i++)
        if (i != me)
            IM_TRY(receive_part(g, s, im_tensor_dtype(t), i, whole));
    return IM_OK;
}

/* ---- do all ask for the same? -------------------------------------------------------------------- */

static void describe(const im_api_wish *w, im_str *out)
{
    im_str_printf(out, "%s %lld -> %lld %s, seed %llu, name \"%s\", std %g%s%s%s", w->layer, (long long)w->in, (long long)w->out,
                  im_dtype_name(w->dtype), (unsigned long long)w->seed, w->name, w->std, w->bias ? ", bias" : "",
                  w->gather_output ? ", gather_output" : "", w->input_is_parallel ? ", input_is_parallel" : "");
}

/* Texts, cut to what fits; that and a hash of the whole are what is compared. */
enum { TEXT = 232 };
typedef struct record {
    uint64_t hash;
    char text[TEXT];
} record;

static im_status tell(im_group *g, const record *all, const char *layer)
{
    im_str s = {0};
    int size = im_group_size(g);
    im_str_printf(&s, "%s: the ranks of the group ask for different layers:", layer);
    for (int i = 0; i < size; i++)
        if (i == 0 || all[i].hash != all[i - 1].hash)
            im_str_printf(&s, "%s rank %d%s: %.*s", i ? ";" : "", i, i + 1 < size && all[i + 1].hash == all[i].hash ? " and on" : "", TEXT,
                          all[i].text);
    im_status status = im_fail(g->rank->ctx, IM_ERR_ARG, "%s", im_str_text(&s));
    im_str_free(&s);
    return status;
}

static im_status compare(im_group *g, im_tensor *all, record *told, const char *layer)
{
    im_tensor *mine;
    int size = im_group_size(g), differ = 0;
    IM_TRY(im_tensor_rows(all, im_group_rank(g), 1, &mine));
    im_status status = im_tensor_write(mine, &told[0]);
    if (status == IM_OK)
        status = im_group_all_gather(g, mine, all, NULL);
    im_tensor_destroy(mine);
    IM_TRY(status);
    IM_TRY(im_tensor_read(all, told));
    for (int i = 1; i < size; i++)
        differ += told[i].hash != told[0].hash;
    return differ ? tell(g, told, layer) : IM_OK;
}

im_status im_api_compare(im_group *g, const im_api_wish *w)
{
    int size = im_group_size(g);
    im_tensor *all;
    im_str text = {0};
    void *p;
    if (size == 1)
        return IM_OK;
    IM_TRY(im_alloc(g->rank->ctx, (size_t)size, sizeof(record), &p));
    record *told = p;
    describe(w, &text);
    told[0].hash = im_hash64(im_str_text(&text), text.len, 0);
    snprintf(told[0].text, sizeof told[0].text, "%s", im_str_text(&text));
    im_str_free(&text);
    im_status status = im_api_tensor(g->rank, IM_API_STAGING, IM_U8, 2, (int64_t[]){size, sizeof(record)}, &all);
    if (status == IM_OK) {
        status = compare(g, all, told, w->layer);
        im_api_tensor_end(all);
    }
    free(told);
    return status;
}
