/* imece ranks: what the ranks of a run do, or did when it ended, from the rings in its directory. */
#include "cli/cli.h"
#include "comm/ring.h"

#include <inttypes.h>
#include <string.h>

typedef struct ranks_options {
    int64_t last;
    bool json;
} ranks_options;

#define AT(member) offsetof(ranks_options, member)
static const im_option rows[] = {
    {.name = "last",
     .type = IM_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = IM_RING_RECORDS,
     .help = "Operations of each rank to list, the latest.",
     .value = "N",
     .offset = AT(last)},
    {.name = "json", .type = IM_OPT_BOOL, .fallback = "false", .help = "The result as JSON.", .offset = AT(json)},
};

/* ---- text ------------------------------------------------------------------------------- */

static void print_text(const im_comm_rings *r, int64_t last)
{
    im_str text = {0};
    im_comm_rings_table(r, &text);
    if (r->nfault) {
        im_str_append(&text, "\n\n");
        im_str verdict = {0};
        im_comm_rings_verdict(r, &verdict);
        im_str_append(&text, im_str_text(&verdict));
        im_str_free(&verdict);
    }
    for (int i = 0; last && i < r->n; i++) {
        const im_comm_ring *g = &r->ring[i];
        im_str_printf(&text, "\n%s", g->nrecord ? "" : "\n");
        for (size_t k = g->nrecord > (size_t)last ? g->nrecord - (size_t)last : 0; k < g->nrecord; k++) {
            im_str_printf(&text, "\nrank %d  %" PRIu64 "  ", i, g->record[k].number);
            im_comm_ring_describe(g, &g->record[k], r->now - g->header.wall, &text);
        }
    }
    printf("%s\n", im_str_text(&text));
    im_str_free(&text);
}

/* ---- JSON --------------------------------------------------------------------------------- */

static void put_string(im_str *out, const char *key, const char *value)
{
    im_str_printf(out, "\"%s\": ", key);
    im_str_json_string(out, value, strlen(value));
}

static void put_operation(const im_comm_ring *r, const im_ring_record *x, im_str *out)
{
    static const char *const reduce[] = {"sum", "max", "min"};
    if (!x) {
        im_str_append(out, "null");
        return;
    }
    im_str_printf(out, "{\"number\": %" PRIu64 ", \"operation\": \"%s\", \"group\": \"%08x\", \"seq\": %" PRIu64 ", \"count\": %" PRIu64 ", ",
                  x->number, im_comm_op_name((im_comm_op)x->op), x->group, x->seq, x->count);
    im_str_printf(out, "\"type\": \"%s\", ", im_dtype_name((im_dtype)x->dtype));
    if (x->op == IM_COMM_ALL_REDUCE || x->op == IM_COMM_REDUCE_SCATTER)
        im_str_printf(out, "\"reduce\": \"%s\", ", reduce[x->reduce]);
    if (x->peer >= 0)
        im_str_printf(out, "\"peer\": %d, ", x->peer);
    im_str_printf(out, "\"state\": \"%s\", \"step\": %" PRId64 ", ", im_ring_state_name((im_ring_state)x->state), x->step);
    put_string(out, "instruction", x->what);
    const double times[] = {x->enqueued, x->started, x->ended};
    static const char *const names[] = {"called", "started", "ended"};
    for (size_t i = 0; i < IM_COUNT_OF(times); i++)
        if (times[i] > 0)
            im_str_printf(out, ", \"%s\": %.6f", names[i], times[i] + r->header.wall);
    im_str_append(out, "}");
}

static void put_rank(const im_comm_rings *r, int i, int64_t last, im_str *out)
{
    static const char *const ends[] = {"runs", "ended", "failed"};
    const im_comm_ring *g = &r->ring[i];
    const im_ring_header *h = &g->header;
    const im_ring_view *v = &r->view[i];
    im_str_printf(out, "%s{\"rank\": %d, \"known\": %s", i ? ", " : "", i, v->known ? "true" : "false");
    if (!v->known) {
        im_str_append(out, "}");
        return;
    }
    im_str_printf(out, ", \"fault\": \"%s\", \"pid\": %d, ", im_ring_fault_name(v->fault), h->process.pid);
    put_string(out, "host", h->process.host);
    char state[2] = {v->process, 0};
    im_str_append(out, ", ");
    put_string(out, "process", v->process == 'X' ? "over" : v->process ? state : "unknown");
    im_str_printf(out, ", \"alive\": %.3f, \"end\": \"%s\", ", h->alive + h->wall, ends[h->end]);
    put_string(out, "error", h->text);
    im_str_printf(out, ", \"step\": %" PRId64 ", ", h->step);
    put_string(out, "instruction", h->what);
    im_str_printf(out, ", \"operations\": %" PRIu64 ", \"in\": ", h->written);
    put_operation(g, v->at, out);
    im_str_append(out, ", \"missing\": [");
    for (int k = 0, n = 0; k < r->n; k++)
        if (v->missing[k])
            im_str_printf(out, "%s%d", n++ ? ", " : "", k);
    im_str_append(out, "], \"last\": ");
    put_operation(g, v->last, out);
    if (last)
        im_str_append(out, ", \"ring\": [");
    for (size_t k = g->nrecord > (size_t)last ? g->nrecord - (size_t)last : 0, n = 0; last && k < g->nrecord; k++) {
        im_str_append(out, n++ ? ", " : "");
        put_operation(g, &g->record[k], out);
    }
    im_str_append(out, last ? "]}" : "}");
}

static void print_json(const im_comm_rings *r, int64_t last)
{
    im_str out = {0}, verdict = {0};
    im_comm_rings_verdict(r, &verdict);
    im_str_printf(&out, "{\"live\": %s, \"at\": %.3f, ", r->live ? "true" : "false", r->now);
    put_string(&out, "verdict", im_str_text(&verdict));
    im_str_append(&out, ", \"ranks\": [");
    for (int i = 0; i < r->n; i++)
        put_rank(r, i, last, &out);
    im_str_append(&out, "]}");
    printf("%s\n", im_str_text(&out));
    im_str_free(&verdict);
    im_str_free(&out);
}

/* ---- the command ------------------------------------------------------------------------------ */

/* In a run that lives, ranks wait for one another all the time: that alone is nothing. */
static bool is_finding(const im_comm_rings *r)
{
    int late = 0;
    for (int i = 0; i < r->n; i++)
        late += r->view[i].fault == IM_RING_ABSENT;
    return r->nfault > (r->live ? late : 0);
}

static int run_ranks(im_cli *cli, int argc, char **argv)
{
    ranks_options o = {0};
    im_option_list paths = {0};
    im_comm_rings rings;
    bool found = false;
    im_status status = im_cli_options(cli, argc, argv, &o, NULL, &paths);
    if (status == IM_OK && paths.n != 1)
        status = im_fail(cli->ctx, IM_ERR_ARG, "which run? give one run directory");
    if (status != IM_OK)
        return im_cli_exit(cli, status);
    char *inside = im_arena_printf(cli->arena, "%s/rings", paths.item[0]);
    status = im_comm_rings_read(cli->ctx, inside && im_path_is_dir(inside) ? inside : paths.item[0], &rings);
    if (status == IM_OK) {
        if (o.json)
            print_json(&rings, o.last);
        else
            print_text(&rings, o.last);
        found = is_finding(&rings);
        im_comm_rings_free(&rings);
    }
    int code = im_cli_exit(cli, status);
    return status == IM_OK && found ? IM_EXIT_FOUND : code;
}

const im_cli_command im_cli_ranks_command = {
    .name = "ranks",
    .args = "RUN",
    .help = "What the ranks of a run do, or did when it ended.",
    .about = "Reads the rings in RUN/rings, of a run that is at work, stands still, failed or was killed: for each rank the step, the instruction,\n"
             "the operation that it waits in and who has not come to it. When a rank is at fault it is named, and the exit code is 3.",
    .rows = rows,
    .nrows = IM_COUNT_OF(rows),
    .run = run_ranks,
};
