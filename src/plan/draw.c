#include "plan/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- spans --------------------------------------------------------------------- */

/* -1: not in the picture. */
static int kind_of(const im_bound *x, const im_step *s)
{
    int c = x->op->collective;
    if (c == IM_COLL_LOAD || c == IM_COLL_RELEASE || c == IM_COLL_SNAPSHOT)
        return -1;
    if (!x->op->kind)
        return IM_DRAW_COMM;
    switch ((im_verb)s->verb) {
    case IM_FORWARD: return IM_DRAW_FORWARD;
    case IM_LOSS: return IM_DRAW_HEAD;
    case IM_RECOMPUTE:
    case IM_BACKWARD:
    case IM_BACKWARD_INPUT: return IM_DRAW_BACKWARD;
    case IM_BACKWARD_WEIGHT: return IM_DRAW_WEIGHT;
    case IM_COUNT:
    case IM_CLIP:
    case IM_UPDATE: return IM_DRAW_UPDATE;
    default: return -1;
    }
}

static int chunk_of(const im_program *p, const im_step *s)
{
    if (s->verb == IM_SEND || s->verb == IM_RECV)
        return s->chunk;
    if (s->mb < 0) /* of a bucket, or of the step */
        return 0;
    for (int c = 0; c < p->goal.chunks; c++)
        if (s->target >= p->goal.first_unit[c] && s->target < p->goal.end_unit[c])
            return c;
    return 0;
}

static bool add_span(im_drawing *d, im_draw_span s)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 256;
        im_draw_span *more = realloc(d->span, sizeof *more * cap);
        if (!more)
            return false;
        d->span = more;
        d->cap = cap;
    }
    d->span[d->n++] = s;
    return true;
}

/* The rank's latest span of its compute row, or of its communication row. */
static im_draw_span *latest(im_drawing *d, int rank, bool comm)
{
    for (size_t i = d->n; i-- > 0;)
        if (d->span[i].rank == rank && (d->span[i].kind == IM_DRAW_COMM) == comm)
            return &d->span[i];
    return NULL;
}

void im_drawing_add(im_drawing *d, const im_program *p, uint32_t op, double start, double end)
{
    const im_bound *x = &p->bound[op];
    const im_step *s = &p->step[x->step];
    int kind = kind_of(x, s), rank = p->layout->rank;
    if (kind < 0 || end <= start)
        return;
    d->ranks = rank + 1 > d->ranks ? rank + 1 : d->ranks;
    d->end = fmax(d->end, end);
    im_draw_span new = {rank, (uint8_t)kind, (uint8_t)chunk_of(p, s), s->mb, start, end};
    im_draw_span *old = kind == IM_DRAW_COMM ? NULL : latest(d, rank, false);
    double gap = old ? start - old->end : 0, length = old ? end - old->start : 1;
    if (old && old->kind == new.kind && old->chunk == new.chunk && old->mb == new.mb &&gap <= 0.02 * length)
        old->end = fmax(old->end, end);
    else if (!add_span(d, new))
        d->failed = true;
}

void im_drawing_append(im_drawing *d, im_draw_span s)
{
    if (!add_span(d, s))
        d->failed = true;
}

im_status im_drawing_of_timeline(im_context *ctx, const im_program *const *ranks, const im_timeline *t, im_drawing *out)
{
    *out = (im_drawing){.ranks = t->n};
    for (int r = 0; r < t->n; r++)
        for (uint32_t i = 0; i < ranks[r]->nbound; i++)
            im_drawing_add(out, ranks[r], i, t->start[r][i], t->end[r][i]);
    if (!out->failed)
        return IM_OK;
    im_drawing_free(out);
    return im_fail(ctx, IM_ERR_NOMEM, "no memory for a picture");
}

void im_drawing_free(im_drawing *d)
{
    free(d->span);
    *d = (im_drawing){0};
}

double im_drawing_bubble(const im_drawing *d)
{
    double busy = 0, end = 0;
    for (size_t i = 0; i < d->n; i++)
        if (d->span[i].kind < IM_DRAW_UPDATE) {
            busy += d->span[i].end - d->span[i].start;
            end = fmax(end, d->span[i].end);
        }
    return end > 0 && d->ranks ? fmax(0, 1 - busy / (end * d->ranks)) : 0;
}

static void format_time(char *buf, size_t n, double seconds)
{
    if (seconds >= 1)
        snprintf(buf, n, "%.2f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(buf, n, "%.2f ms", seconds * 1e3);
    else
        snprintf(buf, n, "%.2f us", seconds * 1e6);
}

/* ---- terminal ----------------------------------------------------------------------- */

/* Of each kind: ANSI colours, and the letter in front of a micro-batch where there are none. */
static const struct look {
    const char *ansi, *fill, *name;
    char mark;
} look[IM_DRAW_KIND_COUNT] = {
    [IM_DRAW_FORWARD] = {"\033[30;44m", "#7aa6da", "forward", 'F'},
    [IM_DRAW_BACKWARD] = {"\033[30;42m", "#8cc68c", "backward", 'B'},
    [IM_DRAW_WEIGHT] = {"\033[30;43m", "#e2c16b", "backward, weight part", 'W'},
    [IM_DRAW_UPDATE] = {"\033[30;45m", "#b79ad6", "update", 'U'},
    [IM_DRAW_HEAD] = {"\033[30;41m", "#5fb3b3", "head and loss", 'H'},
    [IM_DRAW_COMM] = {"\033[30;46m", "#d98880", "communication", '='},
};

enum { IM_DRAW_WIDTH = 1000 };

/* What most of each of the columns of a row is: the number of the span + 1, 0 idle. */
static void columns(const im_drawing *d, int rank, int width, uint32_t *of)
{
    double share[IM_DRAW_WIDTH] = {0}, column = d->end / width;
    memset(of, 0, sizeof *of * (size_t)width);
    for (size_t i = 0; i < d->n; i++) {
        const im_draw_span *s = &d->span[i];
        if (s->rank != rank || s->kind == IM_DRAW_COMM)
            continue;
        int first = (int)(s->start / column), last = (int)(s->end / column);
        for (int c = first; c <= last && c < width; c++) {
            double in = fmin(s->end, (c + 1) * column) - fmax(s->start, c * column);
            if (in > share[c]) {
                share[c] = in;
                of[c] = (uint32_t)i + 1;
            }
        }
    }
    for (int c = 0; c < width; c++)
        if (share[c] < 0.4 * column)
            of[c] = 0;
}

static void row_text(const im_drawing *d, int rank, int width, bool colour, im_str *out)
{
    uint32_t of[IM_DRAW_WIDTH], before = 0;
    columns(d, rank, width, of);
    im_str_printf(out, "  rank %-3d ", rank);
    for (int c = 0; c < width; before = of[c++]) {
        const im_draw_span *s = of[c] ? &d->span[of[c] - 1] : NULL;
        bool begins = of[c] && of[c] != before;
        if (colour && of[c] != before)
            im_str_printf(out, "\033[0m%s", s ? look[s->kind].ansi : "");
        char mark = !s ? (colour ? ' ' : '.') : begins && s->mb >= 0 ? (char)('0' + s->mb % 10) : colour ? ' ' : look[s->kind].mark;
        im_str_append_n(out, &mark, 1);
    }
    im_str_append(out, colour ? "\033[0m\n" : "\n");
}

void im_drawing_text(const im_drawing *d, const char *title, int width, bool colour, im_str *out)
{
    char t[32];
    width = width < 20 ? 20 : width > IM_DRAW_WIDTH ? IM_DRAW_WIDTH : width;
    format_time(t, sizeof t, d->end);
    im_str_printf(out, "%s: %s a step, bubble %.1f %%\n", title, t, 100 * im_drawing_bubble(d));
    for (int r = 0; r < d->ranks && d->end > 0; r++)
        row_text(d, r, width, colour, out);
}

/* ---- SVG ------------------------------------------------------------------------------- */

static const char idle_fill[] = "#eeeeee";

enum { IM_SVG_LEFT = 70, IM_SVG_WIDTH = 1100, IM_SVG_ROW = 30, IM_SVG_HEAD = 34, IM_SVG_FOOT = 34 };

static void svg_text(im_str *out, double x, double y, const char *anchor, const char *text)
{
    im_str_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (const char *c = text; *c; c++)
        if (*c == '<' || *c == '>' || *c == '&')
            im_str_printf(out, "&#%d;", *c);
        else
            im_str_append_n(out, c, 1);
    im_str_append(out, "</text>\n");
}

static void svg_span(const im_draw_span *s, double y, double scale, im_str *out)
{
    bool comm = s->kind == IM_DRAW_COMM;
    double x = IM_SVG_LEFT + s->start * scale, w = (s->end - s->start) * scale, h = comm ? 6 : 19, top = comm ? y + 21 : y + 1;
    if (w < 0.3)
        return;
    char label[24];
    im_str_printf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\"%s><title>", x, top, w, h, look[s->kind].fill,
                  s->chunk % 2 ? " fill-opacity=\"0.65\"" : "");
    format_time(label, sizeof label, s->end - s->start);
    im_str_printf(out, "rank %d: %s", s->rank, look[s->kind].name);
    if (s->mb >= 0)
        im_str_printf(out, ", micro-batch %d, chunk %d", s->mb, s->chunk);
    im_str_printf(out, ", %s</title></rect>\n", label);
    snprintf(label, sizeof label, "%d", s->mb);
    bool fits = w > 5 + 6 * (double)strlen(label), small = !fits && w > 1 + 4.5 * (double)strlen(label);
    if (comm || s->mb < 0 || !(fits || small))
        return;
    im_str_append(out, small ? "<g font-size=\"8\">" : "");
    svg_text(out, x + w / 2, y + (small ? 14 : 15), "middle", label);
    im_str_append(out, small ? "</g>\n" : "");
}

static void svg_axis(double y, double end, double scale, im_str *out)
{
    double step = pow(10, floor(log10(end / 4)));
    step = end / step > 20 ? step * 5 : end / step > 8 ? step * 2 : step;
    double unit = end >= 1 ? 1 : end >= 1e-3 ? 1e-3 : 1e-6;
    for (double t = 0; t <= end * 1.0001; t += step) {
        char label[32];
        snprintf(label, sizeof label, "%.4g %s", t / unit, end >= 1 ? "s" : end >= 1e-3 ? "ms" : "us");
        im_str_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#999\"/>\n", IM_SVG_LEFT + t * scale, y,
                      IM_SVG_LEFT + t * scale, y + 4);
        svg_text(out, IM_SVG_LEFT + t * scale, y + 16, "middle", t > 0 ? label : "0");
    }
}

/* What occurs in the pictures, and how a picture is read. */
static void svg_legend(const im_drawing *const *d, size_t n, double y, im_str *out)
{
    double x = IM_SVG_LEFT;
    bool occurs[IM_DRAW_KIND_COUNT] = {false}, chunks = false;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < d[i]->n; k++) {
            occurs[d[i]->span[k].kind] = true;
            chunks |= d[i]->span[k].chunk > 0;
        }
    for (int k = 0; k <= IM_DRAW_KIND_COUNT; k++) {
        const char *name = k < IM_DRAW_KIND_COUNT ? look[k].name : "idle";
        if (k < IM_DRAW_KIND_COUNT && !occurs[k])
            continue;
        im_str_printf(out, "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y,
                      k < IM_DRAW_KIND_COUNT ? look[k].fill : idle_fill);
        svg_text(out, x + 17, y + 10, "start", name);
        x += 34 + 6.2 * (double)strlen(name);
    }
    im_str note = {0};
    im_str_printf(&note, "Numbers: micro-batches.%s Bubble: share of the time to the last backward in which ranks compute nothing.",
                  chunks ? " Paler: every second run of blocks of a rank." : "");
    svg_text(out, IM_SVG_LEFT, y + 28, "start", im_str_text(&note));
    im_str_free(&note);
    if (occurs[IM_DRAW_COMM])
        svg_text(out, IM_SVG_LEFT, y + 44, "start", "Communication, measured: from when a rank begins to wait for the others.");
}

void im_drawing_svg(const im_drawing *const *d, const char *const *title, size_t n, im_str *out)
{
    double end = 0, y = 10, height = 68;
    for (size_t i = 0; i < n; i++) {
        end = fmax(end, d[i]->end);
        height += IM_SVG_HEAD + IM_SVG_ROW * d[i]->ranks + IM_SVG_FOOT;
    }
    double scale = end > 0 ? (IM_SVG_WIDTH - IM_SVG_LEFT - 30) / end : 0;
    im_str_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
                  "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                  IM_SVG_WIDTH, height, IM_SVG_WIDTH, height);
    for (size_t i = 0; i < n; i++) {
        char text[256], t[32];
        format_time(t, sizeof t, d[i]->end);
        snprintf(text, sizeof text, "%s: %s a step, bubble %.1f %%", title[i], t, 100 * im_drawing_bubble(d[i]));
        im_str_append(out, "<g font-size=\"13\" font-weight=\"bold\">");
        svg_text(out, IM_SVG_LEFT, y + 20, "start", text);
        im_str_append(out, "</g>\n");
        y += IM_SVG_HEAD;
        for (int r = 0; r < d[i]->ranks; r++) {
            snprintf(text, sizeof text, "rank %d", r);
            svg_text(out, IM_SVG_LEFT - 8, y + IM_SVG_ROW * r + 15, "end", text);
            im_str_printf(out, "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"19\" fill=\"%s\"/>\n", IM_SVG_LEFT, y + IM_SVG_ROW * r + 1,
                          end * scale, idle_fill);
        }
        for (size_t k = 0; k < d[i]->n; k++)
            svg_span(&d[i]->span[k], y + IM_SVG_ROW * d[i]->span[k].rank, scale, out);
        y += IM_SVG_ROW * d[i]->ranks;
        if (end > 0)
            svg_axis(y, end, scale, out);
        y += IM_SVG_FOOT;
    }
    svg_legend(d, n, y, out);
    im_str_append(out, "</svg>\n");
}
