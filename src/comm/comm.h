/* comm: one communicator = one list of ranks, used on one queue. Backend now: self (one rank).
 *
 * Calls enqueue and return; the result is there when *done is. A count is in elements and never without its dtype.
 * Sums of bf16 and fp16 are made in fp32, in the order of ranks, so that the same layout twice gives the same bits.
 */
#ifndef IM_COMM_H
#define IM_COMM_H

#include "device/device.h"

typedef enum im_reduce { IM_SUM, IM_MAX, IM_MIN } im_reduce;
typedef struct im_comm im_comm;

im_status im_comm_self(im_device *d, im_comm **out) IM_MUST_CHECK; /* the world of one rank */
/* ranks are of `world`; every one of them calls with the same list. */
im_status im_comm_split(im_comm *world, const int *ranks, int n, im_comm **out) IM_MUST_CHECK;
void im_comm_destroy(im_comm *c); /* NULL is allowed */
int im_comm_rank(const im_comm *c);
int im_comm_size(const im_comm *c);
const char *im_comm_backend(const im_comm *c);

im_status im_comm_all_reduce(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count, im_dtype t, im_reduce r, im_event *done) IM_MUST_CHECK;
/* in: sum of counts[0..size) elements; out: counts[rank]. */
im_status im_comm_reduce_scatter(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_reduce r, im_event *done) IM_MUST_CHECK;
im_status im_comm_all_gather(im_comm *c, im_queue *q, im_buffer in, im_buffer out, const size_t *counts, im_dtype t, im_event *done) IM_MUST_CHECK;
im_status im_comm_broadcast(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int root, im_event *done) IM_MUST_CHECK;
im_status im_comm_all_to_all(im_comm *c, im_queue *q, im_buffer in, im_buffer out, size_t count_per_rank, im_dtype t, im_event *done) IM_MUST_CHECK;
im_status im_comm_send(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done) IM_MUST_CHECK;
im_status im_comm_recv(im_comm *c, im_queue *q, im_buffer b, size_t count, im_dtype t, int peer, im_event *done) IM_MUST_CHECK;
im_status im_comm_barrier(im_comm *c, im_queue *q, im_event *done) IM_MUST_CHECK;
im_status im_comm_group_begin(im_comm *c) IM_MUST_CHECK;
im_status im_comm_group_end(im_comm *c) IM_MUST_CHECK;
im_status im_comm_error(im_comm *c) IM_MUST_CHECK; /* asynchronous error, polled by the watchdog */
void im_comm_abort(im_comm *c);                    /* wakes every waiter; c is dead */

#endif
