/* imece: train and run language models that do not fit one device.
 *
 * The public C interface. Every function that can fail returns im_status: 0, or
 * a negative code; the text of the first error is in the context
 * (im_context_error). A context and everything made from it is used by one
 * thread at a time; two contexts are independent.
 */
#ifndef IMECE_H
#define IMECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IM_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define IM_MUST_CHECK __attribute__((warn_unused_result))
#define IM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define IM_MUST_CHECK
#define IM_PRINTF(fmt, args)
#endif

typedef enum im_status {
    IM_OK = 0,
    IM_ERR_ARG = -1,         /* an option or argument has an impossible value (exit 2) */
    IM_ERR_IO = -2,          /* the operating system refused a read, write, open ... */
    IM_ERR_FORMAT = -3,      /* a file's content is not what its format allows */
    IM_ERR_NOMEM = -4,       /* more memory than there is */
    IM_ERR_UNSUPPORTED = -5, /* well formed, but not implemented here; named */
    IM_ERR_NOT_FOUND = -6,
    IM_ERR_EXISTS = -7,
    IM_ERR_CHECK = -8,      /* a check found something (exit 3) */
    IM_ERR_NONFINITE = -9,  /* a NaN or an infinity where a number should be */
    IM_ERR_STOPPED = -10,   /* a signal asked to stop; state is saved (exit 4) */
    IM_ERR_TIMEOUT = -11,   /* a wait passed its deadline */
    IM_ERR_ABORTED = -12,   /* another rank failed */
    IM_ERR_INTERNAL = -13   /* a bug of ours */
} im_status;

typedef struct im_context im_context;

/* More is added below by the folders that own it: see docs/api.md. */

#ifdef __cplusplus
}
#endif
#endif
