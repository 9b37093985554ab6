/* base: what every folder uses. Status and errors, log, host arena, clock.
 *
 * All state hangs from an im_context: N ranks can be N threads of a process, each
 * with a context of its own. Nothing here exits, prints or reads the environment:
 * the command line supplies a log sink.
 */
#ifndef IM_BASE_H
#define IM_BASE_H

#include <imece.h>
#include <stdarg.h>

/* ---- status ------------------------------------------------------------ */

#define IM_TRY(expr)                       \
    do {                                   \
        im_status im_try_status_ = (expr); \
        if (im_try_status_ != IM_OK)       \
            return im_try_status_;         \
    } while (0)

/* needs `im_status status` in scope; leaves the code there */
#define IM_TRY_GOTO(expr, label) \
    do {                         \
        status = (expr);         \
        if (status != IM_OK)     \
            goto label;          \
    } while (0)

#define IM_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* im_fail (imece.h) records the cause of an error in the context (the first one wins until
 * im_error_clear) and returns `code`, so that the detecting line reads
 *     return im_fail(ctx, IM_ERR_FORMAT, "%s: byte %zu: ...", path, at);
 * Callers pass the status on with IM_TRY and add nothing. Thread safe. */
/* The same with ": strerror(errno)" appended; code IM_ERR_IO. */
im_status im_fail_errno(im_context *ctx, const char *fmt, ...) IM_PRINTF(2, 3);

/* ---- context and log: made, read and given a sink as imece.h says -------------- */

void im_context_set_rank(im_context *ctx, int rank);
int im_context_rank(const im_context *ctx);
/* The sink of `from`; messages above max_level, or above what `from` tells, are left out. */
void im_context_copy_log(im_context *ctx, const im_context *from, im_log_level max_level);
void im_log(im_context *ctx, im_log_level level, const char *part, const char *fmt, ...) IM_PRINTF(4, 5);

/* ---- host arena: many small things that die together -------------------- */

typedef struct im_arena im_arena;
im_status im_arena_create(im_context *ctx, im_arena **out) IM_MUST_CHECK;
void im_arena_destroy(im_arena *a);       /* NULL is allowed */
size_t im_arena_bytes(const im_arena *a); /* given out so far */
/* Zeroed, 16-byte aligned. NULL only when the system has no memory. */
void *im_arena_alloc(im_arena *a, size_t nbytes);
char *im_arena_strdup(im_arena *a, const char *s);
char *im_arena_printf(im_arena *a, const char *fmt, ...) IM_PRINTF(2, 3);
/* Room for one more: `array` of n elements of `size` bytes, or a copy of it that is twice as large; *cap elements, 64 at first. The old array stays
 * until the arena goes. NULL: no memory. */
void *im_arena_grow(im_arena *a, void *array, size_t n, size_t *cap, size_t size);
#define IM_ARENA_NEW(a, type, n) ((type *)im_arena_alloc((a), sizeof(type) * (size_t)(n)))

/* malloc-family wrappers that record the failure; *out NULL-initialised by caller is not needed */
im_status im_alloc(im_context *ctx, size_t count, size_t size, void **out) IM_MUST_CHECK; /* zeroed; overflow checked */

/* ---- text buffer that grows --------------------------------------------- */

typedef struct im_str {
    char *data; /* always NUL-terminated once something was appended; "" via im_str_text */
    size_t len, cap;
    bool failed; /* out of memory at some point; content is cut */
} im_str;
void im_str_append(im_str *s, const char *text);
void im_str_append_n(im_str *s, const char *bytes, size_t n);
void im_str_printf(im_str *s, const char *fmt, ...) IM_PRINTF(2, 3);
void im_str_vprintf(im_str *s, const char *fmt, va_list ap);
const char *im_str_text(const im_str *s);
void im_str_free(im_str *s);
/* Appends text as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void im_str_json_string(im_str *s, const char *bytes, size_t n);
/* 1234567890 -> "1.15 GiB" into buf; returns buf. */
const char *im_format_bytes(char *buf, size_t buflen, double nbytes);
/* Edit distance, for "unknown X, did you mean Y". */
size_t im_edit_distance(const char *a, const char *b);
/* The closest of n names, or NULL when none is near (distance > 1 + len/3). */
const char *im_nearest_name(const char *name, const char *const *names, size_t n);

/* ---- files ---------------------------------------------------------------- */

/* Whole file into memory; NUL is added after the end. Refuses above max bytes. Free with free(). */
im_status im_file_read(im_context *ctx, const char *path, size_t max, char **data, size_t *len) IM_MUST_CHECK;
/* Writes path.tmp, fsyncs, renames, fsyncs the directory. */
im_status im_file_write_atomic(im_context *ctx, const char *path, const void *data, size_t len) IM_MUST_CHECK;
bool im_path_exists(const char *path);
bool im_path_is_dir(const char *path);
im_status im_mkdirs(im_context *ctx, const char *path) IM_MUST_CHECK; /* like mkdir -p */
im_status im_fsync_dir(im_context *ctx, const char *path) IM_MUST_CHECK;
im_status im_remove_tree(im_context *ctx, const char *path) IM_MUST_CHECK; /* rm -r; absent is fine */

/* A read-only mapping of a file. */
typedef struct im_map {
    const unsigned char *data;
    size_t len;
} im_map;
im_status im_map_open(im_context *ctx, const char *path, im_map *out) IM_MUST_CHECK; /* empty file: data NULL, len 0 */
void im_map_close(im_map *m);
/* The pages of these bytes leave the process's resident memory; they come again, from the file, when somebody reads them. */
void im_map_release(const im_map *m, size_t offset, size_t nbytes);

/* ---- clock, machine ---------------------------------------------------------- */

double im_clock_now(void);        /* monotonic seconds */
int im_machine_cores(void);       /* usable: affinity and cgroup quota */
size_t im_machine_memory(void);   /* bytes: the smaller of physical memory and the cgroup limit */
size_t im_process_rss(void);      /* resident bytes now */
size_t im_process_rss_peak(void); /* VmHWM */

/* ---- counter-based random numbers: Philox 4x32-10 (Salmon et al., SC 2011) ---- */

/* The 128 random bits at (key, counter); no state. */
void im_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4]);
/* 24 bits of x as a float in (0, 1): never 0, never 1. */
float im_uniform_f32(uint32_t x);
/* Two standard normals from two words (Box-Muller, computed in double). */
void im_normal_pair(uint32_t a, uint32_t b, float *n0, float *n1);
/* 64-bit hash of bytes (xxHash XXH3), for keys and fingerprints. */
uint64_t im_hash64(const void *data, size_t n, uint64_t seed);
/* Appends "jansson 2.14, libyaml 0.2.5, ...": the libraries wrapped here, as they run. */
void im_base_libraries(im_str *out);
/* 16 digits: a hash of the sources and of how they were compiled. Ranks of one run have the same. */
const char *im_build_id(void);

#endif
