/* One page over HTTP, for Prometheus to fetch: libmicrohttpd, opened when it is asked for. */
#ifndef IM_FABRIC_SERVE_H
#define IM_FABRIC_SERVE_H

#include "base/base.h"

#include <sys/socket.h>

typedef struct im_serve_options {
    const char *listen;                                         /* as im_serve_address takes it; port 0: the kernel chooses one */
    const char *path;                                           /* "/metrics"; "/" leads there, everything else is 404 */
    const char *type;                                           /* Content-Type */
    im_status (*page)(void *arg, im_context *ctx, im_str *out); /* made for each request; a failure is answered with 500 and its cause */
    void (*ready)(void *arg, const char *url);                  /* it listens now; may be NULL */
    bool (*stop)(void *arg);                                    /* asked five times a second */
    void *arg;
} im_serve_options;

/* Serves until stop says so; one thread, the caller's. IM_ERR_ARG: no such address; IM_ERR_IO: it cannot be listened on (in use);
 * IM_ERR_UNSUPPORTED: built without libmicrohttpd, or the library is not here. */
im_status im_serve(im_context *ctx, const im_serve_options *o) IM_MUST_CHECK;

/* "127.0.0.1:9410", "[::1]:9410", "localhost:9410"; a port alone is on 127.0.0.1. */
im_status im_serve_address(im_context *ctx, const char *text, struct sockaddr_storage *out) IM_MUST_CHECK;

#endif
