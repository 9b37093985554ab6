/* The run directory: made whole before the first step, found again by --resume. */
#include "train/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static im_status path_in(im_train_run *r, char *out, const char *name)
{
    if (snprintf(out, IM_TRAIN_PATH, "%s/%s", r->o.out, name) >= IM_TRAIN_PATH)
        return im_fail(r->ctx, IM_ERR_ARG, "%s/%s: the path is too long", r->o.out, name);
    return IM_OK;
}

/* ---- resume ------------------------------------------------------------------------ */

im_status im_train_find_resume(im_train_run *r)
{
    char root[IM_TRAIN_PATH];
    r->o.out = r->o.resume;
    IM_TRY(path_in(r, root, "checkpoints"));
    im_status status = im_checkpoint_latest_verified(r->ctx, root, r->from, sizeof r->from);
    if (status == IM_ERR_NOT_FOUND) {
        /* stopped before its first save: there is nothing to lose, the run begins again */
        im_log(r->ctx, IM_LOG_WARN, "train", "%s has no checkpoint yet; it starts from the beginning", r->o.resume);
        im_error_clear(r->ctx);
        return IM_OK;
    }
    IM_TRY(status);
    return im_checkpoint_meta_read(r->ctx, r->from, false, &r->meta);
}

/* The value of key=... in a plan key, compared as text. */
static bool same_word(const char *a, const char *b, const char *key)
{
    const char *x = strstr(a, key), *y = strstr(b, key);
    if (!x || !y)
        return !x && !y;
    size_t n = strcspn(x, " "), m = strcspn(y, " ");
    return n == m && !memcmp(x, y, n);
}

static im_status fail_data(im_train_run *r, uint64_t was)
{
    im_str changes = {0};
    char plan[IM_TRAIN_PATH];
    IM_TRY(path_in(r, plan, "plan.yaml"));
    im_train_data_changes(r, plan, &changes);
    im_status status = im_fail(r->ctx, IM_ERR_ARG,
                               "%s: not the data of this run (fingerprint %016" PRIx64 ", the checkpoint has %016" PRIx64
                               "); a resumed run goes on with the same files%s%s",
                               r->o.data, r->meta.data_fingerprint, was, changes.len ? ": " : "", im_str_text(&changes));
    im_str_free(&changes);
    return status;
}

/* `was` is the manifest's, r->meta the same fields as this process has them. */
static im_status compare(im_train_run *r, const im_checkpoint_meta *was)
{
    const im_checkpoint_meta *is = &r->meta;
    if (was->data_fingerprint != is->data_fingerprint)
        return fail_data(r, was->data_fingerprint);
    if (was->seed != is->seed)
        return im_fail(r->ctx, IM_ERR_ARG, "seed %" PRIu64 ": the run has %" PRIu64 "; another seed is another order of the data", is->seed,
                       was->seed);
    static const char *const fixed[] = {"seq_len=", "order=", "pack=", "long="};
    for (size_t i = 0; i < IM_COUNT_OF(fixed); i++)
        if (!same_word(was->plan_key, is->plan_key, fixed[i]))
            return im_fail(r->ctx, IM_ERR_ARG, "%.*s cannot change on resume, the position in the data counts in it (was: %s; is: %s)",
                           (int)strlen(fixed[i]) - 1, fixed[i], was->plan_key, is->plan_key);
    if (strcmp(was->plan_key, is->plan_key))
        im_log(r->ctx, IM_LOG_WARN, "train", "the plan changed: right, but not bit-equal to the run left alone (was: %s; is: %s)", was->plan_key,
               is->plan_key);
    if (was->threads != is->threads || strcmp(was->isa, is->isa))
        im_log(r->ctx, IM_LOG_WARN, "train",
               "another machine: right, but not bit-equal to the run left alone (was: %d threads, %s; is: %d threads, %s)", was->threads, was->isa,
               is->threads, is->isa);
    return IM_OK;
}

im_status im_train_check_resume(im_train_run *r)
{
    im_checkpoint_meta was;
    IM_TRY(im_checkpoint_meta_read(r->ctx, r->from, false, &was));
    return compare(r, &was);
}

/* ---- making it ------------------------------------------------------------------------- */

/* runs/NAME-1, -2 ...: the first that is free. */
static im_status choose_out(im_train_run *r)
{
    char model[IM_TRAIN_PATH];
    snprintf(model, sizeof model, "%s", r->o.model);
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/')
        model[--n] = '\0';
    const char *name = strrchr(model, '/') ? strrchr(model, '/') + 1 : model;
    const char *dot = strrchr(name, '.');
    int len = dot && !strcmp(dot, ".json") ? (int)(dot - name) : (int)strlen(name);
    for (int i = 1; i < 100000; i++) {
        char *path = im_arena_printf(r->arena, "runs/%.*s-%d", len, name, i);
        if (!path)
            return im_fail(r->ctx, IM_ERR_NOMEM, "no memory for a path");
        if (!im_path_exists(path)) {
            r->o.out = path;
            return IM_OK;
        }
    }
    return im_fail(r->ctx, IM_ERR_EXISTS, "runs/%.*s-1 to -99999 all exist; give --out DIR", len, name);
}

/* So that a resume works from any directory: an existing path becomes absolute. The last component need not exist (a prefix). */
static const char *absolute(im_train_run *r, const char *path)
{
    char dir[IM_TRAIN_PATH], real[PATH_MAX];
    if (!path || path[0] == '/')
        return path;
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) : 1;
    snprintf(dir, sizeof dir, "%.*s", n, slash ? path : ".");
    if (!realpath(dir, real))
        return path;
    const char *out = im_arena_printf(r->arena, "%s/%s", real, slash ? slash + 1 : path);
    return out ? out : path;
}

/* Each name of a spec of data. */
static const char *absolute_name(void *arg, const char *name)
{
    return absolute(arg, name);
}

static const char *absolute_data(im_train_run *r, const char *spec)
{
    const char *out = spec ? im_feed_spec_map(r->ctx, r->arena, spec, absolute_name, r) : NULL;
    return out ? out : spec;
}

/* Three mappings: the options under `train`, as --config and --resume read them back, what the plan made of them, and what the data was. */
static im_status write_plan_yaml(im_train_run *r)
{
    char path[IM_TRAIN_PATH];
    IM_TRY(path_in(r, path, "plan.yaml"));
    im_train_options o = r->o;
    o.out = absolute(r, o.out);
    o.data = absolute_data(r, o.data);
    o.valid = absolute_data(r, o.valid);
    if (o.model && im_path_exists(o.model))
        o.model = absolute(r, o.model);
    im_str rows = {0}, plan = {0}, data = {0}, out = {0};
    im_option_to_yaml(im_train_rows, IM_TRAIN_SAVED_ROWS, &o, &rows);
    im_plan_to_yaml(&r->plan, &plan);
    im_train_data_yaml(r, &data);
    im_str_printf(&out, "# imece %s. `imece train --resume %s` goes on; `imece train --config THIS --out NEW` does it again.\n", IM_VERSION_STRING,
                  r->o.out);
    const char *const head[] = {"train:\n", "plan:\n", "data:\n"};
    const char *const body[] = {im_str_text(&rows), im_str_text(&plan), im_str_text(&data)};
    for (size_t i = 0; i < IM_COUNT_OF(body); i++) {
        im_str_append(&out, head[i]);
        for (const char *line = body[i]; *line; line += strcspn(line, "\n") + 1) {
            im_str_printf(&out, "  %.*s\n", (int)strcspn(line, "\n"), line);
            if (!line[strcspn(line, "\n")])
                break;
        }
    }
    im_status status = out.failed || rows.failed || plan.failed || data.failed ? im_fail(r->ctx, IM_ERR_NOMEM, "%s: no memory for its text", path)
                                                                               : im_file_write_atomic(r->ctx, path, out.data, out.len);
    im_str_free(&rows);
    im_str_free(&plan);
    im_str_free(&data);
    im_str_free(&out);
    return status;
}

static im_status refuse_existing(im_train_run *r)
{
    char plan[IM_TRAIN_PATH + 16];
    snprintf(plan, sizeof plan, "%s/plan.yaml", r->o.out);
    if (access(plan, F_OK) != 0)
        return im_fail(r->ctx, IM_ERR_EXISTS, "--out %s exists, and is no run (no plan.yaml in it); a run makes its directory: choose another name",
                       r->o.out);
    return im_fail(r->ctx, IM_ERR_EXISTS, "--out %s exists; choose another, or go on with the run in it: imece train --resume %s", r->o.out,
                   r->o.out);
}

/* mkdir -p of the parent, mkdir of the last: only one that did not exist is ours. */
static im_status make_new(im_train_run *r)
{
    char parent[IM_TRAIN_PATH];
    snprintf(parent, sizeof parent, "%s", r->o.out);
    size_t n = strlen(parent);
    while (n > 1 && parent[n - 1] == '/')
        parent[--n] = '\0';
    char *slash = strrchr(parent, '/');
    if (slash && slash != parent) {
        *slash = '\0';
        IM_TRY(im_mkdirs(r->ctx, parent));
    }
    if (mkdir(r->o.out, 0777)) {
        if (errno == EEXIST)
            return refuse_existing(r);
        return im_fail_errno(r->ctx, "--out %s", r->o.out);
    }
    return IM_OK;
}

im_status im_train_make_dir(im_train_run *r)
{
    char path[IM_TRAIN_PATH];
    if (!r->o.resume) {
        if (!r->o.out)
            IM_TRY(choose_out(r));
        IM_TRY(make_new(r));
    }
    IM_TRY(path_in(r, path, "logs"));
    IM_TRY(im_mkdirs(r->ctx, path));
    IM_TRY(path_in(r, path, "logs/rank-0.log"));
    r->log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (r->log_fd < 0)
        return im_fail_errno(r->ctx, "%s: open", path);
    if (flock(r->log_fd, LOCK_EX | LOCK_NB)) /* let go by the kernel when the process ends, however it ends */
        return im_fail(r->ctx, IM_ERR_EXISTS, "%s: another process is training in this directory", r->o.out);
    IM_TRY(write_plan_yaml(r));
    IM_TRY(path_in(r, r->checkpoints, "checkpoints"));
    IM_TRY(im_mkdirs(r->ctx, r->checkpoints));
    IM_TRY(path_in(r, path, "rings"));
    im_train_tell_past(r, path);
    IM_TRY(im_remove_tree(r->ctx, path));
    if (r->ranks > 1 && r->o.rings)
        IM_TRY(im_mkdirs(r->ctx, path));
    IM_TRY(path_in(r, path, "metrics.jsonl"));
    IM_TRY(im_observe_cut(r->ctx, path, r->o.resume ? r->meta.step : -1));
    return im_observe_open(r->ctx, path, &r->metrics);
}
