/* cluster_rows.h (internal): the keys of a cluster file. One row each: reading, writing and the docs go by it. */
#ifndef IM_TOPOLOGY_CLUSTER_ROWS_H
#define IM_TOPOLOGY_CLUSTER_ROWS_H

#include "topology/cluster.h"

typedef enum im_cluster_row_type {
    IM_ROW_QUANTITY, /* double; `quantity` */
    IM_ROW_INT,      /* int */
    IM_ROW_LONG,     /* int64_t */
    IM_ROW_REAL,     /* double without a unit */
    IM_ROW_BOOL,     /* bool */
    IM_ROW_TEXT,     /* const char * */
    IM_ROW_CHOICE,   /* int (an enum): index into choices */
    IM_ROW_MONEY,    /* double; the currency behind it */
    IM_ROW_CURVE,    /* im_curve: pairs of numbers; x has `quantity` when that is not COUNT, y `quantity_y` */
} im_cluster_row_type;

typedef struct im_cluster_row {
    const char *key; /* "device.memory" */
    im_cluster_row_type type;
    im_quantity quantity, quantity_y; /* IM_QUANTITY_COUNT: a plain number */
    size_t offset;                    /* into im_cluster */
    double min, max;                  /* of the value in bytes, seconds, ...; both are allowed */
    const char *fallback;             /* as the file would say it; NULL: required; "": absent means unknown, and nothing is assumed */
    const char *choices;              /* names separated by | */
    const char *help;
} im_cluster_row;

extern const im_cluster_row im_cluster_rows[];
extern const size_t im_cluster_nrows;

#endif
