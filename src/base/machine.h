/* The machine as seen under a root directory ("" is the real one), so that fixtures can test it. */
#ifndef IM_BASE_MACHINE_H
#define IM_BASE_MACHINE_H

#include "base/base.h"

/* Whole cores that the cgroup's cpu quota allows (v1 and v2, the least of all levels); INT_MAX: no quota. */
int im_machine_quota_cores_under(const char *root);
/* The smaller of MemTotal and the cgroup's memory limits, in bytes. */
size_t im_machine_memory_under(const char *root);

#endif
