/* account: bytes of memory as other systems and their papers count them. Not what this program's own runs take (that is a walk over the program). */
#ifndef IM_PLAN_ACCOUNT_H
#define IM_PLAN_ACCOUNT_H

#include "plan/plan.h"

/* ZeRO (Rajbhandari et al., arXiv:1910.02054, section 3 and table 1): weights and gradients of 2 bytes, optimizer state of `k` (Adam: 12), for each of `params`
 * parameters on one of dp devices. Stage 0..3. */
double im_account_zero(double params, int stage, int dp, double k);

/* Activations of one layer on one device (Korthikanti et al., arXiv:2205.05198, table 2), of 2 bytes, dropout masks of 1: s tokens, b sequences, h hidden,
 * a heads, t tensor parallel. */
double im_account_layer(double s, double b, double h, double a, double t, bool sequence_parallel, im_recompute recompute);
/* Of the first stage of a pipeline of p stages and L layers under 1F1B (their section 4.2.3): all L layers' worth; with v > 1 chunks a stage (1 + (p-1)/(p v)) as
 * much. */
double im_account_first_stage(double layer, double L, double p, double v);

/* FSDP2 (PyTorch): fp32 parameters, gradients and two moments shared out over dp, two units of `unit` parameters gathered in 2 bytes. */
double im_account_fsdp(double params, double unit, int dp);

#endif
