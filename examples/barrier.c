/* A barrier with a deadline, which names the ranks that have not come. One rank stays away: the others wait a second for it, and every rank is told.
 *     cc barrier.c $(pkg-config --cflags --libs imece) -lm -o barrier && ./barrier 4
 */
#include "example.h"

#include <time.h>

static const double SECONDS = 1;

/* Whether "... not arrived: rank 1 3-5; arrived: ..." names the rank. */
static bool names(const char *text, int rank)
{
    const char *at = strstr(text, "not arrived: rank ");
    for (at = at ? at + strlen("not arrived: rank ") : ""; *at && *at != ';'; at += *at == ' ') {
        char *end;
        long first = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (end == at)
            return false;
        if (first <= rank && rank <= last)
            return true;
        at = end;
    }
    return false;
}

/* The rank that stays away: busy with something else until it hears that the others gave up. */
static im_status stay_away(im_group *world)
{
    im_status status = IM_OK;
    for (int i = 0; i < 6000 && !status; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        status = im_group_error(world);
    }
    return status;
}

static im_status run(im_rank *r, void *arg)
{
    im_group *world = im_rank_world(r);
    const int me = im_rank_number(r), late = im_rank_count(r) - 1;
    bool *good = arg;
    if (late < 1)
        return im_fail(im_rank_context(r), IM_ERR_ARG, "2 ranks or more");
    TRY(im_group_barrier(world, 0));
    if (me == 0)
        printf("all %d ranks have come; now rank %d stays away\n", late + 1, late);
    im_status status = me == late ? stay_away(world) : im_group_barrier(world, SECONDS);
    const char *text = im_error_text(im_rank_context(r));
    const bool told = (status == IM_ERR_TIMEOUT || status == IM_ERR_ABORTED) && names(text, late);
    printf("rank %d, %s: %s\n", me, im_status_name(status), text);
    good[me] = told;
    return status; /* after that the ranks can only leave */
}

int main(int argc, char **argv)
{
    enum { MOST = 64 };
    bool good[MOST] = {false};
    im_context *ctx;
    im_job *job = NULL;
    const im_job_config how = {.environment = getenv};
    if (im_context_create(&ctx) != IM_OK)
        return 1;
    im_status status = im_job_join(ctx, &how, &job);
    const int ranks = job ? im_job_size(job) : argc > 1 ? atoi(argv[1]) : 4, me = im_job_rank(job);
    const im_ranks_config config = {.ranks = ranks, .job = job};
    if (!status && ranks > MOST)
        status = im_fail(ctx, IM_ERR_ARG, "at most %d ranks", MOST);
    if (!status)
        status = im_ranks_run(ctx, &config, run, good); /* an error, as it must be: a rank did not come */
    int named = 0;
    for (int i = 0; i < MOST; i++)
        named += good[i];
    const bool all = named == (job ? 1 : ranks);
    if (all && me == 0)
        printf("every rank was told that rank %d had not come within %g s\n", ranks - 1, SECONDS);
    if (!all)
        fprintf(stderr, "%s: %s\n", argv[0], status ? im_error_text(ctx) : "no rank was missed");
    fflush(stdout);
    im_job_leave(job); /* MPI is not finalized: the launcher reports the job as failed, as it is */
    im_context_destroy(ctx);
    return all ? 0 : 1;
}
