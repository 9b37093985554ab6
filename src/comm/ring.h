/* ring: the file that a traced communicator writes and a report reads. It is mapped, so it survives the death of its
 * process at any moment (not that of the machine). All of it is little endian, as the machine writes it.
 *
 *     header | groups[IM_RING_GROUPS] | members[IM_RING_MEMBERS] | records[IM_RING_RECORDS]
 *
 * Record number n (from 1) lies at (n - 1) % IM_RING_RECORDS, until n + IM_RING_RECORDS takes its place.
 */
#ifndef IM_COMM_RING_H
#define IM_COMM_RING_H

#include "comm/comm.h"

enum { IM_RING_VERSION = 1, IM_RING_GROUPS = 128, IM_RING_MEMBERS = 16384, IM_RING_RECORDS = 4096 };

typedef struct im_ring_header {
    char magic[8]; /* "imcring" */
    uint32_t version, header_bytes, group_bytes, record_bytes;
    uint32_t max_groups, max_members, max_records, pad;
    int32_t rank, world; /* of the world; its size */
    char backend[16];
    double wall;              /* seconds since 1970 when im_clock_now() was 0: times of ranks on one machine compare */
    uint64_t written;         /* records so far; when above max_records, the last dropped is written - max_records */
    uint32_t groups, members; /* used */
} im_ring_header;

typedef struct im_ring_group {
    uint32_t id;        /* equal on all its members; the world is 0 */
    int32_t rank, size; /* rank: of the writer, in the group */
    uint32_t members;   /* index of the first of `size` world ranks; UINT32_MAX: there was no room */
} im_ring_group;

typedef enum im_ring_state { IM_RING_EMPTY, IM_RING_ENQUEUED, IM_RING_STARTED, IM_RING_DONE, IM_RING_FAILED } im_ring_state;
const char *im_ring_state_name(im_ring_state s);

typedef struct im_ring_record {
    uint64_t number; /* 0: nothing here, or just being written */
    uint64_t seq;    /* of the operation in its group; of messages: of that peer and direction */
    uint64_t count;
    double enqueued, started, ended;  /* im_clock_now() seconds; 0: not yet */
    uint32_t group;                   /* id */
    int32_t peer;                     /* world rank of the root or the other side, -1 */
    uint8_t op, dtype, reduce, state; /* im_comm_op, im_dtype, im_reduce, im_ring_state */
    int32_t status;                   /* im_status, when failed */
} im_ring_record;

typedef struct im_comm_ring {
    im_ring_header header;
    im_ring_group *group;   /* [header.groups] */
    int32_t *member;        /* [header.members] */
    im_ring_record *record; /* [nrecord], by number */
    size_t nrecord;
} im_comm_ring;

/* Checks everything it reads; the writer may be at work or dead. */
im_status im_comm_ring_read(im_context *ctx, const char *path, im_comm_ring *out) IM_MUST_CHECK;
void im_comm_ring_free(im_comm_ring *r);
/* "all_reduce of 1024 x fp32 sum, operation 17 of group [0-3]: started 1.250 s ago": appended; now in the file's clock. */
void im_comm_ring_describe(const im_comm_ring *r, const im_ring_record *x, double now, im_str *out);

#endif
