#include "observe/observe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct im_observe_file {
    im_context *ctx;
    int fd;
    char *path;
};

/* JSON has no NaN and no infinity. */
static void real(im_str *out, const char *key, double x, bool known)
{
    if (known && isfinite(x))
        im_str_printf(out, ", \"%s\": %.9g", key, x);
    else
        im_str_printf(out, ", \"%s\": null", key);
}

void im_observe_step_json(const im_observe_step *s, im_str *out)
{
    im_str_printf(out, "{\"step\": %" PRId64 ", \"tokens\": %" PRId64, s->step, s->tokens);
    real(out, "loss", s->loss, true);
    real(out, "grad_norm", s->grad_norm, true);
    real(out, "lr", s->lr, true);
    real(out, "step_s", s->step_s, true);
    real(out, "tokens_per_s", s->tokens_per_s, true);
    real(out, "mfu", s->mfu, s->mfu >= 0);
    im_str_printf(out, ", \"rss_bytes\": %zu, \"mem_peak_bytes\": %zu, \"mem_predicted_bytes\": %zu, \"finite\": %s}", s->rss_bytes,
                  s->mem_peak_bytes, s->mem_predicted_bytes, s->finite ? "true" : "false");
}

void im_observe_eval_json(const im_observe_eval *e, im_str *out)
{
    im_str_printf(out, "{\"step\": %" PRId64 ", \"event\": \"eval\"", e->step);
    real(out, "valid_loss", e->loss, true);
    real(out, "perplexity", exp(e->loss), true);
    real(out, "bits_per_byte", e->bits_per_byte, e->bits_per_byte >= 0);
    im_str_printf(out, ", \"counted\": %" PRId64, e->counted);
    real(out, "seconds", e->seconds, true);
    im_str_append(out, "}");
}

void im_observe_summary_json(const im_observe_summary *s, im_str *out)
{
    im_str_printf(out, "{\"steps\": %" PRId64 ", \"tokens\": %" PRId64, s->steps, s->tokens);
    real(out, "seconds", s->seconds, true);
    real(out, "first_step_s", s->first_step_s, true);
    real(out, "first_loss", s->first_loss, s->steps > 0);
    real(out, "last_loss", s->last_loss, s->steps > 0);
    real(out, "first_valid_loss", s->first_valid, s->have_valid);
    real(out, "last_valid_loss", s->last_valid, s->have_valid);
    real(out, "first_bits_per_byte", s->first_bits, s->have_valid && s->first_bits >= 0);
    real(out, "last_bits_per_byte", s->last_bits, s->have_valid && s->last_bits >= 0);
    real(out, "tokens_per_s", s->tokens_per_s, true);
    real(out, "mfu", s->mfu, s->mfu >= 0);
    im_str_printf(out, ", \"mem_predicted_bytes\": %zu, \"mem_peak_bytes\": %zu, \"mem_start_bytes\": %zu, \"run\": ", s->mem_predicted, s->mem_peak,
                  s->mem_start);
    im_str_json_string(out, s->run, strlen(s->run));
    im_str_append(out, ", \"checkpoint\": ");
    if (s->checkpoint)
        im_str_json_string(out, s->checkpoint, strlen(s->checkpoint));
    else
        im_str_append(out, "null");
    im_str_append(out, "}");
}

im_status im_observe_open(im_context *ctx, const char *path, im_observe_file **out)
{
    void *memory;
    IM_TRY(im_alloc(ctx, 1, sizeof(im_observe_file), &memory));
    im_observe_file *f = memory;
    f->ctx = ctx;
    f->path = strdup(path);
    f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (!f->path || f->fd < 0) {
        im_status status = im_fail_errno(ctx, "%s: open for appending", path);
        im_observe_close(f);
        return status;
    }
    *out = f;
    return IM_OK;
}

void im_observe_close(im_observe_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f);
}

static im_status put_line(im_observe_file *f, im_str *line)
{
    im_str_append(line, "\n");
    im_status status = IM_OK;
    off_t before = lseek(f->fd, 0, SEEK_END);
    ssize_t n = -1;
    if (line->failed) {
        status = im_fail(f->ctx, IM_ERR_NOMEM, "%s: no memory for a line", f->path);
    } else {
        do
            n = write(f->fd, line->data, line->len);
        while (n < 0 && errno == EINTR);
        if (n != (ssize_t)line->len) {
            if (n >= 0)
                errno = ENOSPC; /* a short write to a file is a full disk */
            status = im_fail_errno(f->ctx, "%s: append", f->path);
            int ignored = before >= 0 ? ftruncate(f->fd, before) : 0;
            (void)ignored;
        }
    }
    im_str_free(line);
    return status;
}

im_status im_observe_put_step(im_observe_file *f, const im_observe_step *s)
{
    im_str line = {0};
    im_observe_step_json(s, &line);
    return put_line(f, &line);
}

im_status im_observe_put_eval(im_observe_file *f, const im_observe_eval *e)
{
    im_str line = {0};
    im_observe_eval_json(e, &line);
    return put_line(f, &line);
}

im_status im_observe_put_event(im_observe_file *f, int64_t step, const char *name, const char *text)
{
    im_str line = {0};
    im_str_printf(&line, "{\"step\": %" PRId64 ", \"event\": ", step);
    im_str_json_string(&line, name, strlen(name));
    if (text) {
        im_str_append(&line, ", \"text\": ");
        im_str_json_string(&line, text, strlen(text));
    }
    im_str_append(&line, "}");
    return put_line(f, &line);
}

static void put_classes(im_str *line, const char *key, const im_observe_memory *m, bool measured)
{
    im_str_printf(line, ", \"%s\": {", key);
    for (size_t i = 0; i < m->n; i++)
        im_str_printf(line, "%s\"%s\": %.0f", i ? ", " : "", m->by_class[i].name, measured ? m->by_class[i].measured : m->by_class[i].predicted);
    im_str_append(line, "}");
}

void im_observe_memory_json(const im_observe_memory *m, im_str *out)
{
    im_str_printf(out, "\"rank\": %d", m->rank);
    put_classes(out, "predicted", m, false);
    put_classes(out, "measured", m, true);
}

im_status im_observe_put_memory(im_observe_file *f, int64_t step, const im_observe_memory *m)
{
    im_str line = {0};
    im_str_printf(&line, "{\"step\": %" PRId64 ", \"event\": \"memory\", ", step);
    im_observe_memory_json(m, &line);
    im_str_append(&line, "}");
    return put_line(f, &line);
}

/* The step of a line; -1 when it is none of ours. */
static int64_t step_of(const char *line, size_t len)
{
    static const char head[] = "{\"step\": ";
    char digits[24];
    size_t n = len < sizeof head - 1 ? 0 : len - (sizeof head - 1);
    if (!n || memcmp(line, head, sizeof head - 1))
        return -1;
    if (n > sizeof digits - 1)
        n = sizeof digits - 1;
    memcpy(digits, line + sizeof head - 1, n);
    digits[n] = '\0';
    return strtoll(digits, NULL, 10);
}

/* Bytes of the file that stay. */
static size_t keep_of(const char *data, size_t len, int64_t step)
{
    while (len && data[len - 1] != '\n')
        len--;
    while (len) {
        size_t start = len - 1;
        while (start && data[start - 1] != '\n')
            start--;
        if (step_of(data + start, len - start) <= step)
            return len;
        len = start;
    }
    return 0;
}

im_status im_observe_cut(im_context *ctx, const char *path, int64_t step)
{
    if (!im_path_exists(path))
        return IM_OK;
    im_map map;
    IM_TRY(im_map_open(ctx, path, &map));
    size_t len = map.len, keep = keep_of((const char *)map.data, map.len, step);
    im_map_close(&map);
    if (keep < len && truncate(path, (off_t)keep))
        return im_fail_errno(ctx, "%s: cut to %zu bytes", path, keep);
    return IM_OK;
}
