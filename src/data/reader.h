/* The reader of a corpus: inputs to batches. Internal to src/data. */
#ifndef IM_DATA_READER_H
#define IM_DATA_READER_H

#include "data/batch.h"
#include "data/input.h"

typedef struct im_reader {
    const im_corpus_config *cfg;
    const im_inputs *inputs;
    im_belt *belt;
    im_corpus_at from; /* where it begins */
} im_reader;
/* A thread: reads all, and sends a last batch, with its error if there was one. arg: the im_reader. */
void *im_reader_thread(void *arg);

#endif
