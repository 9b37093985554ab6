/* cli_plan_parts.h (internal): between the files of imece plan. */
#ifndef IM_CLI_PLAN_PARTS_H
#define IM_CLI_PLAN_PARTS_H

#include "cli/cli.h"
#include "plan/search.h"

/* cli_plan_search.c: imece plan itself. */
typedef struct im_cli_plan_options {
    const char *model, *data, *out;
    im_option_list cluster, fix;
    int64_t global_batch, seq_len, devices, top;
    int objective, precision, attention;
    bool json;
} im_cli_plan_options;
enum { IM_CLI_PLAN_ROWS = 13 };
extern const im_option im_cli_plan_rows[IM_CLI_PLAN_ROWS];
int im_cli_plan_run(im_cli *cli, int argc, char **argv);

extern const im_cli_command im_cli_plan_export_command; /* cli_plan_export.c */

#define IM_CLI_PLAN_HEAD "# imece plan" /* how a plan that the search wrote begins */

/* A search on one cluster, and what was asked. */
typedef struct im_cli_search {
    const im_cli_plan_options *o;
    const im_model *model;
    im_cluster *cluster;
    im_search_request request;
    im_search found;
    bool precision_assumed;
    im_str advice; /* when nothing fits: what would */
} im_cli_search;

/* cli_plan_fix.c: "tp=8". */
im_status im_cli_plan_fix(im_context *ctx, const char *text, im_search_fix *out) IM_MUST_CHECK;
/* The search again with one thing changed at a time: appends what makes it fit, a line each. memory: it is what is missing; else
 * no layout has so many devices. */
im_status im_cli_plan_advise(im_context *ctx, const im_search_request *r, bool memory, im_str *out) IM_MUST_CHECK;

/* cli_plan_print.c */
void im_cli_plan_layout_text(const im_search_found *f, im_str *out); /* "tp 8 x pp 4 x dp 2, 1f1b, ZeRO 1, micro-batch 2 (8 of them)" */
void im_cli_plan_text(const im_cli_search *s, im_str *out);
void im_cli_plan_json(const im_cli_search *s, im_str *out);
/* plan.yaml of an answer, as imece train --config reads it. */
void im_cli_plan_yaml(const im_cli_search *s, const im_search_found *f, im_str *out);

#endif
