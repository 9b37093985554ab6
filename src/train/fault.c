/* --fault: one operation of one rank of a real run goes wrong on purpose, for the tests of everything that must notice. */
#include "train/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fault_kind {
    const char *name;
    im_comm_fault_kind kind;
    bool process;
} fault_kind;

static const fault_kind kinds[] = {
    {"delay", IM_FAULT_DELAY, false},     {"drop", IM_FAULT_DROP, false}, {"die", IM_FAULT_DIE, false},           {"kill", IM_FAULT_DIE, true},
    {"corrupt", IM_FAULT_CORRUPT, false}, {"nan", IM_FAULT_NAN, false},   {"mismatch", IM_FAULT_MISMATCH, false},
};

static im_status set_kind(im_context *ctx, const char *word, size_t n, im_comm_fault *f)
{
    for (size_t i = 0; i < IM_COUNT_OF(kinds); i++)
        if (strlen(kinds[i].name) == n && !memcmp(kinds[i].name, word, n)) {
            f->kind = kinds[i].kind;
            f->process = kinds[i].process;
            return IM_OK;
        }
    return im_fail(ctx, IM_ERR_ARG, "--fault %.*s: delay, drop, die, kill, corrupt, nan or mismatch", (int)n, word);
}

/* KEY=VALUE of n characters */
static im_status set_value(im_context *ctx, const char *word, size_t n, im_comm_fault *f, int *rank)
{
    char buf[64], *end;
    if (n >= sizeof buf || !memchr(word, '=', n))
        return im_fail(ctx, IM_ERR_ARG, "--fault: \"%.*s\" is not KEY=VALUE", (int)n, word);
    memcpy(buf, word, n);
    buf[n] = 0;
    char *value = strchr(buf, '=');
    *value++ = 0;
    if (!strcmp(buf, "what")) {
        if (snprintf(f->what, sizeof f->what, "%s", value) >= (int)sizeof f->what)
            return im_fail(ctx, IM_ERR_ARG, "--fault: what=%s: at most %zu characters", value, sizeof f->what - 1);
        return IM_OK;
    }
    errno = 0;
    double x = strtod(value, &end);
    if (errno || !*value || *end || !(x >= 0 && x <= 1e15))
        return im_fail(ctx, IM_ERR_ARG, "--fault: %s=%s: not a number from 0 to 1e15", buf, value);
    if (!strcmp(buf, "at"))
        f->at = (uint64_t)x;
    else if (!strcmp(buf, "within"))
        f->within = (uint64_t)x;
    else if (!strcmp(buf, "step"))
        f->step = (int64_t)x;
    else if (!strcmp(buf, "seed"))
        f->seed = (uint64_t)x;
    else if (!strcmp(buf, "seconds"))
        f->seconds = x;
    else if (!strcmp(buf, "rank"))
        *rank = x < INT32_MAX ? (int)x : INT32_MAX;
    else
        return im_fail(ctx, IM_ERR_ARG, "--fault: unknown key \"%s\": at, step, what, within, seed, seconds, rank", buf);
    return IM_OK;
}

im_status im_train_fault_parse(im_context *ctx, const char *text, int n, im_comm_fault *out, int *rank)
{
    im_comm_fault f = {0};
    int who = n - 1;
    size_t len = strcspn(text, ",");
    IM_TRY(set_kind(ctx, text, len, &f));
    for (text += len; *text; text += len) {
        len = strcspn(++text, ",");
        IM_TRY(set_value(ctx, text, len, &f, &who));
    }
    if (!f.at && !f.within)
        return im_fail(ctx, IM_ERR_ARG, "--fault needs at=N, or within=N and seed=N");
    if (who >= n || n < 2)
        return im_fail(ctx, IM_ERR_ARG, "--fault of rank %d: the run has %d rank%s", who, n, n > 1 ? "s" : "; it needs several");
    *out = f;
    *rank = who;
    return IM_OK;
}
