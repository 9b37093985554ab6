/* Verdicts of fabric check's table as metrics. */
#include "fabric/export.h"

#include <string.h>

im_status im_export_checks(im_context *ctx, im_arena *a, im_prom *p, const im_check_host *h, double expect_gbps)
{
    static const im_verdict verdicts[] = {IM_VERDICT_OK, IM_VERDICT_UNKNOWN, IM_VERDICT_WARN, IM_VERDICT_FAIL};
    const im_check_options how = {.expect_gbps = expect_gbps, .storage_sl = -1};
    im_check_report report;
    im_check_report_init(a, &report);
    IM_TRY(im_check_run(ctx, &report, h, &how));
    im_prom_family *f = im_prom_find(p, "imece_fabric_check_verdict", IM_PROM_GAUGE,
                                     "1: the verdict of that check of imece fabric check: ok, unknown, warn or fail; 0: another is.");
    im_prom_family *found = im_prom_find(p, "imece_fabric_check_findings", IM_PROM_GAUGE, "What that check found, by verdict.");
    for (size_t i = 0; i < report.n; i++)
        for (size_t k = 0; k < report.part[i].n; k++) {
            const im_check_result *r = &report.part[i].result[k];
            if (!(expect_gbps > 0) && strcmp(r->row->id, "expect") == 0) /* nobody asked */
                continue;
            uint64_t count[IM_COUNT_OF(verdicts)] = {0};
            for (size_t n = 0; n < r->n; n++)
                count[r->item[n].verdict]++;
            for (size_t v = 0; v < IM_COUNT_OF(verdicts); v++) {
                const im_prom_label l[] = {{"check", r->row->id}, {"verdict", im_verdict_names[verdicts[v]]}};
                im_prom_add_count(p, f, l, IM_COUNT_OF(l), r->verdict == verdicts[v]);
                if (verdicts[v] != IM_VERDICT_OK)
                    im_prom_add_count(p, found, l, IM_COUNT_OF(l), count[verdicts[v]]);
            }
        }
    return IM_OK;
}
