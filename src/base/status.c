/* Contexts: the error slot, the rank, the log sink. */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct im_context {
    pthread_mutex_t mutex; /* guards code and text: kernels and savers fail on threads of their own */
    im_status code;
    char text[4096];
    int rank;
    im_log_sink sink;
    void *sink_arg;
    im_log_level max_level;
};

im_status im_context_create(im_context **out)
{
    im_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return IM_ERR_NOMEM;
    if (pthread_mutex_init(&ctx->mutex, NULL) != 0) {
        free(ctx);
        return IM_ERR_NOMEM;
    }
    ctx->max_level = IM_LOG_INFO;
    *out = ctx;
    return IM_OK;
}

void im_context_destroy(im_context *ctx)
{
    if (!ctx)
        return;
    pthread_mutex_destroy(&ctx->mutex);
    free(ctx);
}

static im_status fail_v(im_context *ctx, im_status code, int errnum, const char *fmt, va_list ap)
{
    if (!ctx)
        return code;
    pthread_mutex_lock(&ctx->mutex);
    if (ctx->code == IM_OK) {
        ctx->code = code;
        int n = vsnprintf(ctx->text, sizeof ctx->text, fmt, ap);
        if (errnum && n >= 0 && (size_t)n < sizeof ctx->text) {
            char buf[128];
            snprintf(ctx->text + n, sizeof ctx->text - (size_t)n, ": %s", strerror_r(errnum, buf, sizeof buf));
        }
    }
    pthread_mutex_unlock(&ctx->mutex);
    return code;
}

im_status im_fail(im_context *ctx, im_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_v(ctx, code, 0, fmt, ap);
    va_end(ap);
    return code;
}

im_status im_fail_errno(im_context *ctx, const char *fmt, ...)
{
    int errnum = errno;
    va_list ap;
    va_start(ap, fmt);
    fail_v(ctx, IM_ERR_IO, errnum, fmt, ap);
    va_end(ap);
    return IM_ERR_IO;
}

/* The slot is written once until im_error_clear, so the text may be read after the lock is dropped. */
const char *im_error_text(const im_context *ctx)
{
    return im_error_code(ctx) == IM_OK ? "" : ctx->text;
}

im_status im_error_code(const im_context *ctx)
{
    if (!ctx)
        return IM_OK;
    pthread_mutex_t *mutex = (pthread_mutex_t *)&ctx->mutex; /* locking changes nothing the caller sees */
    pthread_mutex_lock(mutex);
    im_status code = ctx->code;
    pthread_mutex_unlock(mutex);
    return code;
}

void im_error_clear(im_context *ctx)
{
    if (!ctx)
        return;
    pthread_mutex_lock(&ctx->mutex);
    ctx->code = IM_OK;
    ctx->text[0] = 0;
    pthread_mutex_unlock(&ctx->mutex);
}

const char *im_status_name(im_status s)
{
    switch (s) {
    case IM_OK: return "ok";
    case IM_ERR_ARG: return "argument";
    case IM_ERR_IO: return "io";
    case IM_ERR_FORMAT: return "format";
    case IM_ERR_NOMEM: return "memory";
    case IM_ERR_UNSUPPORTED: return "unsupported";
    case IM_ERR_NOT_FOUND: return "not found";
    case IM_ERR_EXISTS: return "exists";
    case IM_ERR_CHECK: return "check";
    case IM_ERR_NONFINITE: return "not finite";
    case IM_ERR_STOPPED: return "stopped";
    case IM_ERR_TIMEOUT: return "timeout";
    case IM_ERR_ABORTED: return "aborted";
    case IM_ERR_INTERNAL: return "internal";
    }
    return "unknown";
}

/* ---- log ----------------------------------------------------------------- */

void im_context_set_log(im_context *ctx, im_log_sink sink, void *arg, im_log_level max_level)
{
    ctx->sink = sink;
    ctx->sink_arg = arg;
    ctx->max_level = max_level;
}

void im_context_copy_log(im_context *ctx, const im_context *from, im_log_level max_level)
{
    im_context_set_log(ctx, from->sink, from->sink_arg, max_level < from->max_level ? max_level : from->max_level);
}

void im_context_set_rank(im_context *ctx, int rank)
{
    ctx->rank = rank;
}

int im_context_rank(const im_context *ctx)
{
    return ctx ? ctx->rank : 0;
}

void im_log(im_context *ctx, im_log_level level, const char *part, const char *fmt, ...)
{
    if (!ctx || !ctx->sink || level > ctx->max_level)
        return;
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ctx->sink(ctx->sink_arg, level, ctx->rank, part, text);
}
