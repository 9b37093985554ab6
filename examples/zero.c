/* What ZeRO 1, 2 and 3 save: the published table, what the planner says for a model of that size, and bytes measured on a small one.
 *     cc zero.c $(pkg-config --cflags --libs imece) -lm -o zero && ./zero zero_table1.csv RUNS [RANKS]
 * RUNS: a directory that is made, for the runs.
 */
#include "example.h"

#include <sys/stat.h>

enum { STAGES = 4, STATES = 3, MOST_RANKS = 64 };
static const char *const states[STATES] = {"weights", "gradients", "optimizer"};

/* Bytes of one rank by state: what ZeRO shares out. Everything else is `rest`. */
typedef struct bytes {
    double predicted[STATES], measured[STATES], rest;
} bytes;

static double total(const double *x)
{
    return x[0] + x[1] + x[2];
}

/* Bytes a parameter on one of dp ranks: each state is whole, or shared out from a stage on. */
static double formula(int stage, double dp, double weights, double gradients, double optimizer)
{
    return weights / (stage >= 3 ? dp : 1) + gradients / (stage >= 2 ? dp : 1) + optimizer / (stage >= 1 ? dp : 1);
}

/* ---- the published table ------------------------------------------------------------------------------- */

/* One line "7.5B,Pos+g,64,16.6" as stage, dp, parameters in 1e9, GB and the worth of the last digit. */
static bool parse_row(const char *line, int *stage, double *dp, double *billions, double *gb, double *digit)
{
    char unit, name[16], figure[32];
    if (sscanf(line, "%lf%c,%15[^,],%lf,%31s", billions, &unit, name, dp, figure) != 5)
        return false;
    *billions *= unit == 'T' ? 1000 : 1;
    *stage = !strcmp(name, "Pos") ? 1 : !strcmp(name, "Pos+g") ? 2 : 3;
    *gb = atof(figure);
    const char *point = strchr(figure, '.');
    *digit = point ? pow(10, -(double)strlen(point + 1)) : 1;
    return true;
}

/* Every published figure against 2 + 2 + 12 bytes a parameter (fp16 weights and gradients, fp32 Adam); of 7.5B they are kept. */
static im_status check_table(im_context *ctx, const char *path, double published[STAGES][MOST_RANKS + 1])
{
    char line[256];
    int rows = 0, wrong = 0, stage;
    double dp, billions, gb, digit;
    FILE *f = fopen(path, "r");
    if (!f)
        return im_fail(ctx, IM_ERR_IO, "%s: cannot open", path);
    while (fgets(line, sizeof line, f)) {
        if (!parse_row(line, &stage, &dp, &billions, &gb, &digit))
            continue;
        rows++;
        wrong += fabs(formula(stage, dp, 2, 2, 12) * billions - gb) >= digit; /* some are cut, some rounded */
        if (billions == 7.5 && dp <= MOST_RANKS)
            published[stage][(int)dp] = gb;
    }
    fclose(f);
    printf("%d published figures, %d of them as 2 + 2 + 12 bytes a parameter say\n", rows, rows - wrong);
    return rows > 0 && !wrong ? IM_OK : im_fail(ctx, IM_ERR_CHECK, "%s: %d of %d figures differ from the formula", path, wrong, rows);
}

/* ---- what the planner says ------------------------------------------------------------------------------- */

typedef struct heard {
    bytes most; /* of the rank that has most */
    int told;
} heard;

static void hear(void *arg, int rank, const im_class_bytes *classes, size_t n)
{
    heard *h = arg;
    bytes b = {0};
    (void)rank;
    for (size_t i = 0; i < n; i++) {
        bool shared = false;
        for (int s = 0; s < STATES; s++)
            if (!strcmp(classes[i].name, states[s])) {
                b.predicted[s] = classes[i].predicted;
                b.measured[s] = classes[i].measured;
                shared = true;
            }
        b.rest += shared ? 0 : classes[i].predicted;
    }
    h->told++;
    if (total(b.predicted) > total(h->most.predicted))
        h->most = b;
}

static im_status check_plan(im_context *ctx, double published[STAGES][MOST_RANKS + 1])
{
    double parameters = 0;
    printf("7.5B parameters, GB of model states on a rank: published (fp16 gradients) | planned here (bf16, gradients summed in fp32: 18 bytes)\n");
    for (int stage = 0; stage < STAGES; stage++) {
        printf("  ZeRO %d ", stage);
        for (int dp = 4; dp <= MOST_RANKS; dp *= 4) {
            char z[12], d[12];
            snprintf(z, sizeof z, "%d", stage);
            snprintf(d, sizeof d, "%d", dp);
            const char *options[] = {"--model", "megatron-7.5b", "--precision", "bf16", "--seq-len", "32", "--dp", d, "--zero", z};
            heard h = {0};
            const im_hooks hooks = {.arg = &h, .memory = hear};
            TRY(im_predict(ctx, options, 10, &hooks));
            if (!parameters)
                parameters = h.most.predicted[0] / 2;
            const double planned = total(h.most.predicted), expected = parameters * formula(stage, dp, 2, 4, 12);
            printf("  dp %-2d %6.2f | %6.2f", dp, stage ? published[stage][dp] : 120, planned / 1e9);
            if (fabs(planned - expected) > 1e-3 * expected)
                return im_fail(ctx, IM_ERR_CHECK, "ZeRO %d, dp %d: %.4g bytes are planned, the formula says %.4g", stage, dp, planned, expected);
        }
        printf("\n");
    }
    return IM_OK;
}

/* ---- measured ------------------------------------------------------------------------------------------------- */

static im_status make_data(im_context *ctx, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s.txt", name);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 500; i++)
        fprintf(f, "line %d: the village works together\n", i);
    if (!f || fclose(f))
        return im_fail(ctx, IM_ERR_IO, "%s: cannot write", path);
    return im_data_build(ctx, name, (const char *[]){path}, 1, 0);
}

static im_status show(im_context *ctx, int stage, const bytes *b, const bytes *none)
{
    printf("  ZeRO %d ", stage);
    for (int s = 0; s < STATES; s++)
        printf(" %s %5.2f | %5.2f", states[s], b->measured[s] / 1e6, b->predicted[s] / 1e6);
    printf("; together %5.2f, saved %4.1f %%; all else %.2f\n", total(b->measured) / 1e6, 100 * (1 - total(b->measured) / total(none->measured)),
           b->rest / 1e6);
    for (int s = 0; s < STATES; s++)
        if (fabs(b->measured[s] - b->predicted[s]) > 0.02 * b->predicted[s] + 8192) /* two pages */
            return im_fail(ctx, IM_ERR_CHECK, "ZeRO %d: %.0f bytes of %s, predicted were %.0f", stage, b->measured[s], states[s], b->predicted[s]);
    return IM_OK;
}

/* One step of training at each stage. The rank that has most is told: shards are as even as they can be. */
static im_status measure(im_context *ctx, im_job *job, const char *dir, int ranks)
{
    char data[4096], run[4200], z[12], d[12], train[4200];
    bytes none = {0};
    const bool first = im_job_rank(job) == 0;
    snprintf(data, sizeof data, "%s/data-%d", dir, im_job_rank(job));
    snprintf(train, sizeof train, "%s-train", data);
    snprintf(d, sizeof d, "%d", ranks);
    mkdir(dir, 0777); /* what is wrong with it is told when it is used */
    TRY(make_data(ctx, data));
    if (first)
        printf("llama-bytes-small (4.6M parameters) in bf16 on %d ranks, MB on a rank, measured | predicted\n", ranks);
    for (int stage = 0; stage < STAGES; stage++) {
        snprintf(run, sizeof run, "%s/zero-%d", dir, stage);
        snprintf(z, sizeof z, "%d", stage);
        const char *options[] = {"--model",     "llama-bytes-small",
                                 "--data",      train,
                                 "--out",       run,
                                 "--precision", "bf16",
                                 "--steps",     "1",
                                 "--seq-len",   "32",
                                 "--dp",        d,
                                 "--zero",      z};
        heard h = {0};
        const im_hooks hooks = {.arg = &h, .memory = hear, .job = job};
        TRY(im_train(ctx, options, 16, &hooks));
        if (h.told != ranks)
            return im_fail(ctx, IM_ERR_CHECK, "the bytes of %d ranks were told, not of %d", h.told, ranks);
        if (!stage)
            none = h.most;
        if (first)
            TRY(show(ctx, stage, &h.most, &none));
    }
    return IM_OK;
}

int main(int argc, char **argv)
{
    double published[STAGES][MOST_RANKS + 1] = {{0}};
    im_context *ctx;
    im_job *job = NULL;
    const im_job_config how = {.environment = getenv};
    if (argc < 3) {
        fprintf(stderr, "usage: %s TABLE RUNS [RANKS]\n", argv[0]);
        return 2;
    }
    if (im_context_create(&ctx) != IM_OK)
        return 1;
    im_status status = im_job_join(ctx, &how, &job);
    if (!status && im_job_rank(job) == 0)
        status = check_table(ctx, argv[1], published);
    if (!status && im_job_rank(job) == 0)
        status = check_plan(ctx, published);
    if (!status)
        status = measure(ctx, job, argv[2], job ? im_job_size(job) : argc > 3 ? atoi(argv[3]) : 4);
    if (status)
        fprintf(stderr, "%s: %s\n", argv[0], im_error_text(ctx));
    if (status && job)
        im_job_abort(job, im_error_text(ctx)); /* or the others would wait for this rank */
    fflush(stdout);
    im_job_leave(job);
    im_context_destroy(ctx);
    return status ? 1 : 0;
}
