/* Rule 1 where a rank is a process: chosen layouts of 2, 4 and 8 ranks under mpirun, with each MPI that is here, against one rank. The program
 * starts mpirun with itself; `test_layout_mpi --rank PLUGIN` is one rank of a job that any launcher started, of 1, 2, 4 or 8 processes. */
#include "layout/cases.h"
#include "mpi_job.h"

#include <stdlib.h>

typedef struct chosen {
    const char *config;
    layout_case c;
} chosen;

/* {tp, sp, dp, pp, zero, recompute, micro-batch}: every axis, kind of ZeRO and of recompute, in one process a rank */
static const chosen all_chosen[] = {
    {llama, {1, 0, 1, 1, 0, 0, 3}},      {llama, {2, 1, 1, 1, 0, 0, 4}}, {llama, {1, 0, 2, 1, 3, 0, 2}},      {gpt2, {2, 0, 1, 1, 0, 2, 3}},
    {llama_tied, {1, 0, 2, 1, 1, 1, 2}}, {llama, {1, 0, 1, 2, 0, 0, 2}}, {llama, {2, 1, 2, 1, 1, 0, 2}},      {gpt2, {2, 1, 2, 1, 3, 0, 1}},
    {llama_tied, {4, 1, 1, 1, 0, 1, 2}}, {llama, {1, 0, 2, 2, 1, 0, 1}}, {llama_tied, {4, 1, 2, 1, 3, 2, 2}}, {llama, {2, 1, 4, 1, 2, 1, 1}},
    {gpt2, {2, 0, 2, 2, 1, 0, 2}},
};

/* ---- one rank --------------------------------------------------------------------------------- */

typedef struct process {
    im_context *ctx;
    im_comm_mpi_world *mpi;
    im_comm_mpi_place at;
} process;

/* values[i] summed over the ranks. */
static im_status add_up(const process *me, im_device *d, im_comm *world, float *values, size_t n)
{
    im_queue *q = im_device_queue(d, IM_QUEUE_COMM0);
    im_buffer b = {.arena = IM_CLASS_COMM, .nbytes = n * sizeof *values};
    if (!q)
        return im_error_code(me->ctx);
    IM_TRY(im_device_reserve(d, IM_CLASS_COMM, b.nbytes));
    im_status status;
    IM_TRY_GOTO(im_queue_upload(q, b, values, b.nbytes), release);
    IM_TRY_GOTO(im_comm_all_reduce(world, q, b, b, n, IM_F32, IM_SUM, NULL), release);
    IM_TRY_GOTO(im_queue_download(q, values, b, b.nbytes), release);
    status = im_device_sync(d);
release:
    im_device_release(d, IM_CLASS_COMM);
    return status;
}

/* A tensor of which each rank has what it owns, NaN elsewhere: whole on all ranks, and each element owned once. */
static im_status bring_together(const process *me, im_device *d, im_comm *world, const im_param *q, float *tensor)
{
    size_t n = (size_t)im_param_count(q);
    float *owners = malloc(n * sizeof *owners);
    im_status status = owners ? IM_OK : IM_ERR_NOMEM;
    for (size_t i = 0; i < n && owners; i++) {
        owners[i] = !isnan(tensor[i]);
        tensor[i] = owners[i] > 0 ? tensor[i] : 0;
    }
    if (status == IM_OK)
        status = add_up(me, d, world, owners, n);
    if (status == IM_OK)
        status = add_up(me, d, world, tensor, n);
    for (size_t i = 0; i < n && status == IM_OK; i++)
        if (owners[i] != 1)
            status = im_fail(me->ctx, IM_ERR_CHECK, "element %zu of %s is owned by %g ranks", i, q->name, owners[i]);
    free(owners);
    return status;
}

static im_status gather(const process *me, im_device *d, im_comm *world, const im_model *m, rig_result *r)
{
    for (size_t i = 0; i < m->nparam; i++) {
        IM_TRY(bring_together(me, d, world, &m->param[i], r->weight[i]));
        IM_TRY(bring_together(me, d, world, &m->param[i], r->grad[i]));
    }
    return IM_OK;
}

/* As rig_train, of this process's rank. Loss, norm and tokens are rank 0's alone. */
static im_status train_rank(const process *me, const im_plan *p, rig_result *out)
{
    rig_job j = {.plan = p, .steps = STEPS, .eval_batch = 3, .out = out};
    rig_rank rank = {.job = &j, .rank = me->at.rank};
    im_device_config cfg = {.threads = 1, .kernels = IM_KERNELS_FAST, .comm_threads = true};
    im_device *d = NULL;
    im_comm *world = NULL;
    im_status status;
    *out = (rig_result){.steps = STEPS, .weight = rig_tensors(p->model), .grad = rig_tensors(p->model)};
    pthread_mutex_init(&j.lock, NULL);
    IM_TRY_GOTO(im_device_open(me->ctx, &cfg, &d), close_device);
    IM_TRY_GOTO(im_comm_mpi_attach(me->mpi, d, &world), close_device);
    IM_TRY_GOTO(rig_run(&rank, me->ctx, d, world), close_device);
    status = gather(me, d, world, p->model, out);
close_device:
    im_comm_destroy(world);
    im_device_close(d);
    pthread_mutex_destroy(&j.lock);
    return status;
}

/* Against one rank; when twice, bit for bit against itself too. */
static bool try_one(const process *me, const chosen *x, bool twice, char *why, size_t size)
{
    im_model *m = open_model(me->ctx, x->config);
    im_plan p = plan_of(m, &(layout_case){.tp = 1, .dp = 1, .pp = 1, .mbs = 7});
    rig_result one = {0}, got = {0}, again = {0};
    bool good = rig_train(&p, STEPS, false, IM_KERNELS_FAST, &one) == IM_OK;
    if (!good)
        snprintf(why, size, "one rank: %s", one.error);
    p = plan_of(m, &x->c);
    if (good && (train_rank(me, &p, &got) != IM_OK || (twice && train_rank(me, &p, &again) != IM_OK))) {
        name_of(&x->c, why, size);
        snprintf(why + strlen(why), size - strlen(why), ": %s", im_error_text(me->ctx));
        good = false;
    }
    if (good && me->at.rank == 0)
        good = !differs(m, &x->c, &got, &one, why, size) && !(twice && differs_in_bits(m, &x->c, &again, &got, why, size));
    rig_free(m, &one);
    rig_free(m, &got);
    rig_free(m, &again);
    im_model_close(m);
    return good;
}

static void say(void *arg, im_log_level level, int rank, const char *part, const char *message)
{
    (void)arg, (void)level;
    fprintf(stderr, "%d %s: %s\n", rank, part, message);
}

static int rank_main(const char *plugin)
{
    process me = {0};
    im_comm_mpi_config cfg = {.plugin = plugin, .deadline = 60};
    char why[1024] = "";
    int n = 0;
    alarm(600); /* who starts it has a shorter limit */
    if (im_context_create(&me.ctx) != IM_OK)
        return 1;
    im_context_set_log(me.ctx, say, NULL, IM_LOG_INFO);
    if (im_comm_mpi_world_create(me.ctx, &cfg, &me.mpi) != IM_OK) {
        fprintf(stderr, "%s\n", im_error_text(me.ctx));
        return 1;
    }
    me.at = im_comm_mpi_where(me.mpi);
    im_context_set_rank(me.ctx, me.at.rank);
    bool good = true;
    for (size_t i = 0; i < IM_COUNT_OF(all_chosen) && good; i++) {
        const layout_case *c = &all_chosen[i].c;
        if (c->tp * c->dp * c->pp != me.at.size)
            continue;
        good = try_one(&me, &all_chosen[i], n++ == 0, why, sizeof why);
    }
    if (!good) {
        fprintf(stderr, "FAIL %s\n", why);
        im_comm_mpi_world_abort(me.mpi, why);
    } else if (n) {
        printf("PASS rank\n");
    }
    (void)fflush(stdout);
    im_comm_mpi_world_destroy(me.mpi);
    im_context_destroy(me.ctx);
    return good && n ? 0 : 1;
}

/* ---- mpirun --------------------------------------------------------------------------------------- */

static void test_ranks(const mpi_flavour *f, int ranks)
{
    char out[65536];
    double t0 = im_clock_now();
    int code = mpi_job(f, ranks, "", out, sizeof out);
    if (code || mpi_count(out, "PASS rank") != ranks)
        fail_msg("%s, %d ranks: exit %d, %d ranks passed\n%s", f->name, ranks, code, mpi_count(out, "PASS rank"), out);
    print_message("%s, %d ranks: %.1f s\n", f->name, ranks, im_clock_now() - t0);
}

static void test_1(void **state)
{
    test_ranks(mpi_here(state), 1);
}

static void test_2(void **state)
{
    test_ranks(mpi_here(state), 2);
}

static void test_4(void **state)
{
    test_ranks(mpi_here(state), 4);
}

static void test_8(void **state)
{
    test_ranks(mpi_here(state), 8);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--rank"))
        return rank_main(argv[2]);
    static const CMUnitTestFunction sizes[] = {test_1, test_2, test_4, test_8};
    struct CMUnitTest tests[MPI_FLAVOURS * IM_COUNT_OF(sizes)];
    char names[IM_COUNT_OF(tests)][64];
    for (size_t i = 0; i < IM_COUNT_OF(tests); i++) {
        const mpi_flavour *f = &mpi_flavours[i / IM_COUNT_OF(sizes)];
        snprintf(names[i], sizeof names[i], "%s_%d", f->name, 1 << i % IM_COUNT_OF(sizes));
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = sizes[i % IM_COUNT_OF(sizes)], .initial_state = (void *)(uintptr_t)f};
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
