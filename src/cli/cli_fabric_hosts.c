/* imece fabric check: from bundles, archives and other hosts to directories that can be read. */
#include "cli/cli_fabric_check.h"
#include "cli/cli_fabric_jobs.h"
#include "fabric/tar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A directory of ours, below TMPDIR, that goes away at the end. */
static im_status scratch(check_places *p, const char **out)
{
    const char *tmp = getenv("TMPDIR");
    if (!p->scratch) {
        char *dir = im_arena_printf(p->cli->arena, "%s/imece-check-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!dir || !mkdtemp(dir))
            return im_fail_errno(p->cli->ctx, "no directory can be made below %s", tmp && *tmp ? tmp : "/tmp");
        p->scratch = dir;
    }
    *out = im_arena_printf(p->cli->arena, "%s/%d", p->scratch, p->nscratch++);
    return *out ? IM_OK : im_fail(p->cli->ctx, IM_ERR_NOMEM, "no memory for a path");
}

void im_check_places_end(check_places *p)
{
    if (p->scratch)
        (void)!im_remove_tree(p->cli->ctx, p->scratch);
    p->scratch = NULL;
}

static bool has_machine(im_arena *a, const char *dir)
{
    static const char *const marks[] = {"sys", "proc", "commands"};
    for (size_t i = 0; i < IM_COUNT_OF(marks); i++)
        if (im_path_is_dir(im_arena_printf(a, "%s/%s", dir, marks[i])))
            return true;
    return false;
}

/* The directory itself, or the one directory in it: an archive that somebody packed from outside. */
static const char *top_of(check_places *p, const char *dir)
{
    im_root *root;
    const char *inside = NULL;
    if (has_machine(p->cli->arena, dir) || im_root_open(p->cli->ctx, p->cli->arena, dir, &root) != IM_OK)
        return dir;
    const im_names names = im_root_list(root, "/");
    for (size_t i = 0; i < names.n && !inside; i++) {
        const char *sub = im_arena_printf(p->cli->arena, "%s/%s", dir, names.item[i]);
        if (has_machine(p->cli->arena, sub))
            inside = sub;
    }
    im_root_close(root);
    return inside ? inside : dir;
}

im_status im_check_place_of(check_places *p, const char *bundle, const char **dir)
{
    if (im_path_is_dir(bundle)) {
        *dir = top_of(p, bundle);
    } else {
        const char *into;
        IM_TRY(scratch(p, &into));
        IM_TRY(im_mkdirs(p->cli->ctx, into));
        IM_TRY(im_tar_extract(p->cli->ctx, bundle, into));
        *dir = top_of(p, into);
    }
    return has_machine(p->cli->arena, *dir) ? IM_OK
                                            : im_fail(p->cli->ctx, IM_ERR_FORMAT, "%s: no bundle: it has neither sys, proc nor commands", bundle);
}

/* ---- hosts -------------------------------------------------------------------------------------------- */

im_status im_check_hosts_read(im_cli *cli, const char *file, const char *peer, im_option_list *out)
{
    char *text = NULL;
    size_t len = 0, lines = 2;
    if (file)
        IM_TRY(im_file_read(cli->ctx, file, 4 << 20, &text, &len));
    for (size_t i = 0; i < len; i++)
        lines += text[i] == '\n';
    out->item = IM_ARENA_NEW(cli->arena, const char *, lines);
    out->n = 0;
    for (char *p = text; p && *p && out->item;) {
        const size_t line = strcspn(p, "\n");
        const char *from = p + strspn(p, " \t\r");
        const size_t n = strcspn(from, " \t\r\n#"); /* what follows the name (slots=8) is for launchers */
        if (n && from < p + line)
            out->item[out->n++] = im_arena_printf(cli->arena, "%.*s", (int)n, from);
        p = p[line] ? p + line + 1 : NULL;
    }
    free(text);
    if (peer && out->item)
        out->item[out->n++] = peer;
    for (size_t i = 0; out->item && i < out->n; i++)
        if (!out->item[i] || *out->item[i] == '-')
            return im_fail(cli->ctx, IM_ERR_ARG, "%s: \"%s\" is no host name", file ? file : "--peer", out->item[i] ? out->item[i] : "");
    if (file && !out->n)
        return im_fail(cli->ctx, IM_ERR_FORMAT, "%s: no host in it: one name a line", file);
    return out->item ? IM_OK : im_fail(cli->ctx, IM_ERR_NOMEM, "no memory for the hosts of %s", file ? file : "--peer");
}

/* The last line that says something. */
static const char *last_line(im_arena *a, const char *text)
{
    const char *last = "no answer";
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, "\n");
        if (n && n < 400)
            last = im_arena_printf(a, "%.*s", (int)n, p);
        p += n + (p[n] == '\n');
    }
    return last;
}

/* Where the archive begins: a login shell may have printed something before. NULL: there is none. */
static const char *archive_in(const im_cli_job *job)
{
    for (size_t i = 0; i + 20 < job->out.len && i < 65536; i++)
        if (memcmp(job->out.data + i, "\x1f\x8b\x08", 3) == 0)
            return job->out.data + i;
    return NULL;
}

/* What a host sent becomes a directory; NULL with a message where it is no bundle. */
static im_status unpack(check_places *p, const char *host, const im_cli_job *job, const char **dir)
{
    const char *file;
    *dir = NULL;
    const char *archive = archive_in(job);
    if (!job->started || job->late || job->code || !archive) {
        const bool text = job->out.len && !archive;
        im_log(p->cli->ctx, IM_LOG_ERROR, "check", "%s is left out: %s (%s)", host,
               job->late ? "it did not answer in time" : "no bundle came from it",
               text ? last_line(p->cli->arena, im_str_text(&job->out)) : im_arena_printf(p->cli->arena, "exit code %d", job->code));
        p->missing++;
        return IM_OK;
    }
    IM_TRY(scratch(p, &file));
    IM_TRY(im_mkdirs(p->cli->ctx, p->scratch));
    IM_TRY(im_file_write_atomic(p->cli->ctx, file, archive, job->out.len - (size_t)(archive - job->out.data)));
    return im_check_place_of(p, file, dir);
}

im_status im_check_fetch(check_places *p, const check_options *o, const im_option_list *hosts, const char **dirs)
{
    enum { AT_ONCE = 32, SECONDS = 120 };
    char *interval = im_arena_printf(p->cli->arena, "%g", o->interval), *remote = im_arena_strdup(p->cli->arena, o->remote);
    char *argv[] = {remote, "fabric", "bundle", "-", "--interval", interval, NULL};
    for (size_t from = 0; from < hosts->n; from += AT_ONCE) {
        const size_t n = hosts->n - from < AT_ONCE ? hosts->n - from : AT_ONCE;
        im_cli_job jobs[AT_ONCE];
        im_status status = IM_OK;
        size_t started = 0;
        for (; started < n && status == IM_OK; started++) {
            char **words = im_cli_via(p->cli->arena, o->via, hosts->item[from + started], argv);
            status = words ? im_cli_job_start(p->cli->ctx, words, IM_CLI_STDERR_KEEP, &jobs[started])
                           : im_fail(p->cli->ctx, IM_ERR_NOMEM, "no memory for a command");
        }
        started -= status != IM_OK;
        im_cli_jobs_finish(jobs, started, status == IM_OK ? started : 0, SECONDS + o->interval);
        for (size_t i = 0; i < started; i++) {
            if (status == IM_OK)
                status = unpack(p, hosts->item[from + i], &jobs[i], &dirs[from + i]);
            im_cli_job_free(&jobs[i]);
        }
        IM_TRY(status);
    }
    return IM_OK;
}
