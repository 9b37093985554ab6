/* writer: the mapped ring of one rank, shared by its communicators. */
#ifndef IM_COMM_TRACED_WRITER_H
#define IM_COMM_TRACED_WRITER_H

#include "comm/backend.h"
#include "comm/ring.h"

typedef struct im_ring_writer {
    int refs; /* communicators; they are made and destroyed by one thread */
    unsigned char *map;
    size_t mapped;
    im_ring_header *header;
    im_ring_group *group;
    int32_t *member;
    im_ring_record *record;
    int64_t step; /* what the next operations are for; the caller's thread */
    char what[IM_RING_WHAT];
} im_ring_writer;

size_t im_ring_bytes(void);                                                                     /* of a whole file */
im_status im_ring_create(im_comm *inner, const char *path, im_ring_writer **out) IM_MUST_CHECK; /* path NULL: in memory, until it is placed */
im_status im_ring_place(im_ring_writer *w, im_context *ctx, const char *path) IM_MUST_CHECK;
void im_ring_note(im_ring_writer *w, int64_t step, const char *what);
void im_ring_release(im_ring_writer *w);
void im_ring_add_group(im_ring_writer *w, const im_comm *c);
void im_ring_enqueued(im_ring_writer *w, const im_comm *c, im_comm_call *call); /* gives the call its record */
void im_ring_started(im_ring_writer *w, const im_comm_call *call);
void im_ring_ended(im_ring_writer *w, const im_comm_call *call, im_status s);

#endif
