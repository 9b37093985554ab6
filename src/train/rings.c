/* Rings of a run with several ranks: each keeps its last operations in RUN/rings/rank-N. When the run fails, the rings of all tell whose
 * fault it was; `imece ranks RUN` tells it later. */
#include "train/internal.h"

#include "comm/ring.h"

#include <stdio.h>
#include <string.h>

/* The fault is outermost: what it holds back is not yet on the wire, and the ring says so. */
im_status im_train_decorate(im_train_run *r)
{
    if (r->o.rings)
        IM_TRY(im_comm_traced(r->world, NULL, &r->world));
    if (r->o.fault) {
        im_comm_fault fault;
        int rank;
        IM_TRY(im_train_fault_parse(r->ctx, r->o.fault, r->ranks, &fault, &rank));
        if (rank == r->rank)
            IM_TRY(im_comm_faulty(r->world, &fault, &r->world));
    }
    im_comm_note(r->world, 0, "start");
    return IM_OK;
}

/* r->checkpoints is RUN/checkpoints; rank 0 made both. */
im_status im_train_place_ring(im_train_run *r)
{
    char path[IM_TRAIN_PATH + 32];
    if (r->ranks == 1 || !r->o.rings)
        return IM_OK;
    const char *slash = strrchr(r->checkpoints, '/');
    snprintf(r->rings, sizeof r->rings, "%.*s/rings", slash ? (int)(slash - r->checkpoints) : 1, slash ? r->checkpoints : ".");
    if (!im_path_is_dir(r->rings))
        return im_fail(r->ctx, IM_ERR_NOT_FOUND, "%s, which rank 0 made, is not there: the run directory must lie where all ranks see it", r->rings);
    snprintf(path, sizeof path, "%s/rank-%d", r->rings, r->rank);
    im_train_watchdog_remove(r); /* its beat, in another thread, must not write while the pages are copied */
    im_status status = im_comm_ring_place(r->world, path);
    im_train_watchdog_add(r);
    return status;
}

void im_train_tell_end(im_train_run *r, im_status status)
{
    bool alone = status != IM_OK && !r->agreed;
    if (r->world && r->ranks > 1)
        im_comm_ring_end(r->world, status, alone ? im_error_text(r->ctx) : NULL);
}

void im_train_cry(const im_train_run *r, const char *lines)
{
    while (*lines) {
        size_t n = strcspn(lines, "\n");
        im_log(r->ctx, IM_LOG_ERROR, "train", "%.*s", (int)n, lines);
        lines += n + (lines[n] == '\n');
    }
}

void im_train_tell_past(im_train_run *r, const char *rings)
{
    im_comm_rings past;
    im_context *own;
    if (!im_path_is_dir(rings) || im_context_create(&own) != IM_OK)
        return;
    im_str text = {0};
    if (im_comm_rings_read(own, rings, &past) == IM_OK) {
        im_comm_rings_verdict(&past, &text);
        im_comm_rings_free(&past);
    }
    if (text.len)
        im_train_say(r, IM_TRAIN_TEXT_EVENT, "how this run ended before: %s", im_str_text(&text));
    im_str_free(&text);
    im_context_destroy(own);
}

void im_train_report(im_train_run *r)
{
    im_comm_rings rings;
    im_context *own; /* the run's error stays the one that is told */
    if (!r->rings[0] || im_context_create(&own) != IM_OK)
        return;
    im_str text = {0};
    if (im_comm_rings_read(own, r->rings, &rings) == IM_OK) {
        im_comm_rings_verdict(&rings, &text);
        im_comm_rings_table(&rings, &text);
        im_comm_rings_free(&rings);
    }
    im_train_cry(r, im_str_text(&text));
    if (r->log_fd >= 0)
        im_train_log_lines(r, im_str_text(&text));
    im_str_free(&text);
    im_context_destroy(own);
}
