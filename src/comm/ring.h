/* ring: the file that a traced communicator writes and a report reads. It is mapped, so it survives the death of its
 * process at any moment (not that of the machine). All of it is little endian, as the machine writes it.
 *
 *     header | groups[IM_RING_GROUPS] | members[IM_RING_MEMBERS] | records[IM_RING_RECORDS]
 *
 * Record number n (from 1) lies at (n - 1) % IM_RING_RECORDS, until n + IM_RING_RECORDS takes its place.
 */
#ifndef IM_COMM_RING_H
#define IM_COMM_RING_H

#include "base/process.h"
#include "comm/comm.h"

enum { IM_RING_VERSION = 3, IM_RING_GROUPS = 128, IM_RING_MEMBERS = 16384, IM_RING_RECORDS = 4096, IM_RING_WHAT = 40, IM_RING_TEXT = 1024 };

typedef enum im_ring_end {
    IM_RING_RUNS,  /* or was killed */
    IM_RING_ENDED, /* well, or as all ranks did alike */
    IM_RING_ERROR  /* this rank failed; its text says how */
} im_ring_end;

typedef struct im_ring_header {
    char magic[8]; /* "imcring" */
    uint32_t version, header_bytes, group_bytes, record_bytes;
    uint32_t max_groups, max_members, max_records, pad;
    int32_t rank, world; /* of the world; its size */
    char backend[16];
    double wall;              /* seconds since 1970 when im_clock_now() was 0: times of ranks on one machine compare */
    uint64_t written;         /* records so far; when above max_records, the last dropped is written - max_records */
    uint32_t groups, members; /* used */
    im_process process;       /* of the rank; ranks that are threads share one */

    double alive;      /* im_clock_now() of the last sign of life: its watchdog writes it several times a second */
    uint64_t note_seq; /* odd while the next three are being written */
    double since;      /* what the rank does, and since when */
    int64_t step;      /* the step that it works on, from 1; 0: none */
    char what[IM_RING_WHAT];
    double ended; /* when the next three were written; 0: not yet */
    uint32_t end; /* im_ring_end */
    int32_t status;
    char text[IM_RING_TEXT];
    int32_t saw, pad2; /* 1 + a rank whose process this one saw to be over; 0: none */
    double saw_at;
    double silent_from, silent_to; /* its longest time without a sign of life that came to an end, as of a process that was stopped and woken */
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
    int64_t step;                     /* as the header's when it was called */
    double enqueued, started, ended;  /* im_clock_now() seconds; 0: not yet */
    uint32_t group;                   /* id */
    int32_t peer;                     /* world rank of the root or the other side, -1 */
    uint8_t op, dtype, reduce, state; /* im_comm_op, im_dtype, im_reduce, im_ring_state */
    int32_t status;                   /* im_status, when failed */
    char what[IM_RING_WHAT];          /* the instruction that called it */
} im_ring_record;

/* ---- a rank writes: `c` is a communicator of it that is traced; otherwise nothing happens ------------------------ */

/* The ring, kept in memory until now, becomes a file. No operation of this rank may be on its way. */
im_status im_comm_ring_place(im_comm *c, const char *path) IM_MUST_CHECK;
void im_comm_ring_beat(im_comm *c);                                     /* a sign of life; any thread */
void im_comm_ring_saw(im_comm *c, int rank);                            /* the process of `rank` is over; any thread */
void im_comm_ring_end(im_comm *c, im_status status, const char *error); /* error NULL: well, or as all others */

/* ---- reading one ------------------------------------------------------------------------------------------------- */

typedef struct im_comm_ring {
    im_ring_header header;
    im_ring_group *group;   /* [header.groups] */
    int32_t *member;        /* [header.members] */
    im_ring_record *record; /* [nrecord], by number */
    size_t nrecord;
} im_comm_ring;

/* Checks everything it reads; the writer may be at work or dead. */
im_status im_comm_ring_read(im_context *ctx, const char *path, im_comm_ring *out) IM_MUST_CHECK;
/* The same of bytes; path is for messages. */
im_status im_comm_ring_parse(im_context *ctx, const char *path, const void *data, size_t len, im_comm_ring *out) IM_MUST_CHECK;
void im_comm_ring_free(im_comm_ring *r);
/* "all_reduce of 1024 x fp32 sum, operation 17 of group [0-3] (step 12, REDUCE 3)" */
void im_comm_ring_name(const im_comm_ring *r, const im_ring_record *x, im_str *out);
/* The same with ": started 1.250 s ago"; now in the file's clock. */
void im_comm_ring_describe(const im_comm_ring *r, const im_ring_record *x, double now, im_str *out);

/* ---- the rings of all ranks: who waits for whom (report.c) --------------------------------------------------------- */

typedef enum im_ring_fault {
    IM_RING_SOUND,
    IM_RING_GONE,    /* its process is over, and it did not say that it would be */
    IM_RING_BROKE,   /* it failed by itself; what others told it does not count */
    IM_RING_DIFFERS, /* it called something else than the others of its group */
    IM_RING_ABSENT,  /* others wait for it in an operation that it has not come to, and it waits for nobody */
    IM_RING_STILL,   /* it has stopped to give signs of life */
    IM_RING_CIRCLE   /* it waits for ranks that wait for it */
} im_ring_fault;
const char *im_ring_fault_name(im_ring_fault f); /* "gone", ... */

typedef struct im_ring_view {
    bool known; /* its ring could be read; the rest is nothing otherwise */
    im_ring_fault fault;
    char process;               /* im_process_state; 0: not known */
    const im_ring_record *at;   /* the operation that it waits in, or waited in at the end; NULL: none */
    const im_ring_record *last; /* the last one that it brought to an end; NULL: none is kept */
    const im_ring_record *next; /* the first that it has called and not begun; NULL: none */
    bool *missing;              /* [n] members of at's group that have not come to it */
    int nmissing;
} im_ring_view;

typedef struct im_comm_rings {
    int n;              /* ranks of the world */
    im_comm_ring *ring; /* [n] */
    im_ring_view *view; /* [n] */
    bool *pool;         /* of missing */
    int *number;        /* [n] 0, 1, 2, ... */
    double now;         /* seconds since 1970 to which "ago" refers: now, or the last sign of life when none of the ranks lives */
    bool live;          /* some of the ranks live */
    int nfault;         /* ranks with a fault */
} im_comm_rings;

/* DIR/rank-0, DIR/rank-1, ...: read, and looked at. IM_ERR_NOT_FOUND: there is none. */
im_status im_comm_rings_read(im_context *ctx, const char *dir, im_comm_rings *out) IM_MUST_CHECK;
/* The same of rings that were read: ring[n] by rank, freed with *out; one of which nothing is known is all zero. On failure they stay
 * the caller's. */
im_status im_comm_rings_make(im_context *ctx, im_comm_ring *ring, int n, im_comm_rings *out) IM_MUST_CHECK;
void im_comm_rings_free(im_comm_rings *r);
/* One line for ranks that are at the same place: "rank 0 2-3  step 12, REDUCE 3, for 1.2 s: waits in ... for rank 1". */
void im_comm_rings_table(const im_comm_rings *r, im_str *out);
/* One sentence for each rank with a fault: "rank 1 did not come: ..."; nothing when there is none. */
void im_comm_rings_verdict(const im_comm_rings *r, im_str *out);

#endif
