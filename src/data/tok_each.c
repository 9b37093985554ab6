/* Many texts, several threads. */
#include "data/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    size_t n;
    atomic_size_t next;
    atomic_int status;
    im_status (*work)(void *arg, int thread, size_t i);
    void *arg;
} job;

typedef struct worker {
    job *job;
    int number;
    pthread_t thread;
} worker;

static void *run(void *arg)
{
    worker *w = arg;
    job *j = w->job;
    for (size_t i; atomic_load(&j->status) == IM_OK && (i = atomic_fetch_add(&j->next, 1)) < j->n;) {
        im_status status = j->work(j->arg, w->number, i);
        int none = IM_OK;
        if (status != IM_OK)
            atomic_compare_exchange_strong(&j->status, &none, (int)status);
    }
    return NULL;
}

im_status im_tok_each(im_context *ctx, int threads, size_t n, im_status (*work)(void *arg, int thread, size_t i), void *arg)
{
    job j = {.n = n, .work = work, .arg = arg};
    worker *w;
    int started = 1;
    if (threads < 1)
        threads = 1;
    if ((size_t)threads > n)
        threads = n ? (int)n : 1;
    IM_TRY(im_alloc(ctx, (size_t)threads, sizeof *w, (void **)&w));
    for (int i = 0; i < threads; i++)
        w[i] = (worker){.job = &j, .number = i};
    while (started < threads && pthread_create(&w[started].thread, NULL, run, &w[started]) == 0)
        started++;
    run(&w[0]); /* with fewer threads than asked for it takes longer */
    for (int i = 1; i < started; i++)
        pthread_join(w[i].thread, NULL);
    free(w);
    return (im_status)atomic_load(&j.status);
}
