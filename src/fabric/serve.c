/* libmicrohttpd, opened at run time: it brings a TLS library along, which no other command should load. */
#include "fabric/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

im_status im_serve_address(im_context *ctx, const char *text, struct sockaddr_storage *out)
{
    char host[64] = "127.0.0.1";
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
    char *end = NULL;
    const long number = *port >= '0' && *port <= '9' ? strtol(port, &end, 10) : -1;
    size_t n = colon ? (size_t)(colon - text) : 0;
    bool good = end && !*end && number >= 0 && number <= 65535 && n < sizeof host && (n || !colon);
    *out = (struct sockaddr_storage){0};
    if (good && n && !(n == strlen("localhost") && memcmp(text, "localhost", n) == 0)) {
        memcpy(host, text, n);
        host[n] = '\0';
    }
    if (good && host[0] == '[' && host[n - 1] == ']') {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
        host[n - 1] = '\0';
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)number);
        good = inet_pton(AF_INET6, host + 1, &six->sin6_addr) == 1;
    } else if (good) {
        struct sockaddr_in *four = (struct sockaddr_in *)out;
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)number);
        good = inet_pton(AF_INET, host, &four->sin_addr) == 1;
    }
    return good ? IM_OK
                : im_fail(ctx, IM_ERR_ARG, "%s is no address to listen on: 127.0.0.1:9410, [::1]:9410, or 0.0.0.0:9410 for every interface", text);
}

#if IM_HAVE_MICROHTTPD

#include <dlfcn.h>
#include <microhttpd.h>

#define SECONDS_OF_SILENCE 10u
#define MOST_CONNECTIONS 64u

#define FUNCTIONS(X)    \
    X(MHD_start_daemon) \
    X(MHD_stop_daemon)  \
    X(MHD_run_wait)     \
    X(MHD_get_daemon_info) X(MHD_create_response_from_buffer) X(MHD_add_response_header) X(MHD_queue_response) X(MHD_destroy_response)

typedef struct server {
    im_context *ctx;
    const im_serve_options *o;
    void *library;
#define POINTER(name) __typeof__(&name) name;
    FUNCTIONS(POINTER)
#undef POINTER
} server;

static im_status open_library(server *s)
{
    s->library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    if (!s->library)
        return im_fail(s->ctx, IM_ERR_UNSUPPORTED, "libmicrohttpd.so.12 is not here (Debian: libmicrohttpd12); --textfile needs none");
#define LOOK(name)                                                                                             \
    {                                                                                                          \
        void *at = dlsym(s->library, #name);                                                                   \
        if (!at)                                                                                               \
            return im_fail(s->ctx, IM_ERR_UNSUPPORTED, "libmicrohttpd.so.12 has no " #name ": it is too old"); \
        memcpy(&s->name, &at, sizeof at);                                                                      \
    }
    FUNCTIONS(LOOK)
#undef LOOK
    return IM_OK;
}

static enum MHD_Result answer(const server *s, struct MHD_Connection *c, unsigned code, const char *name, const char *value, const char *text,
                              size_t n)
{
    struct MHD_Response *r = s->MHD_create_response_from_buffer(n, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    enum MHD_Result done = s->MHD_add_response_header(r, name, value);
    if (done == MHD_YES)
        done = s->MHD_queue_response(c, code, r);
    s->MHD_destroy_response(r);
    return done;
}

static enum MHD_Result page(const server *s, struct MHD_Connection *c)
{
    im_str text = {0};
    enum MHD_Result done;
    if (s->o->page(s->o->arg, s->ctx, &text) == IM_OK) {
        done = answer(s, c, MHD_HTTP_OK, "Content-Type", s->o->type, im_str_text(&text), text.len);
    } else {
        const char *why = im_error_text(s->ctx);
        im_log(s->ctx, IM_LOG_WARN, "export", "a request failed: %s", why);
        done = answer(s, c, MHD_HTTP_INTERNAL_SERVER_ERROR, "Content-Type", "text/plain; charset=utf-8", why, strlen(why));
        im_error_clear(s->ctx);
    }
    im_str_free(&text);
    return done;
}

static enum MHD_Result request(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *body,
                               size_t *nbody, void **state)
{
    const server *s = arg;
    (void)version;
    (void)body;
    if (!*state) { /* the headers alone: what follows is asked for, or the connection ends */
        *state = c;
        return MHD_YES;
    }
    if (*nbody) { /* dropped */
        *nbody = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer(s, c, MHD_HTTP_METHOD_NOT_ALLOWED, "Allow", "GET, HEAD", "", 0);
    if (strcmp(url, s->o->path) == 0)
        return page(s, c);
    if (strcmp(url, "/") == 0)
        return answer(s, c, MHD_HTTP_FOUND, "Location", s->o->path, "", 0);
    return answer(s, c, MHD_HTTP_NOT_FOUND, "Content-Type", "text/plain", "not found\n", 10);
}

static void tell(const server *s, struct MHD_Daemon *d, const struct sockaddr_storage *at)
{
    const union MHD_DaemonInfo *port = s->MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT);
    char host[INET6_ADDRSTRLEN] = "";
    im_str url = {0};
    if (at->ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)at)->sin6_addr, host, sizeof host);
    else
        inet_ntop(AF_INET, &((const struct sockaddr_in *)at)->sin_addr, host, sizeof host);
    im_str_printf(&url, at->ss_family == AF_INET6 ? "http://[%s]:%u%s" : "http://%s:%u%s", host, port ? (unsigned)port->port : 0, s->o->path);
    if (s->o->ready)
        s->o->ready(s->o->arg, im_str_text(&url));
    im_str_free(&url);
}

/* Here and not in the library, which does not always leave errno as the system set it. */
static im_status listen_at(im_context *ctx, const char *name, const struct sockaddr_storage *at, int *out)
{
    const int yes = 1;
    bool six = at->ss_family == AF_INET6;
    socklen_t size = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return im_fail_errno(ctx, "%s: no socket", name);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) || (six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes)) ||
        bind(fd, (const struct sockaddr *)at, size) || listen(fd, MOST_CONNECTIONS)) {
        im_status status = im_fail_errno(ctx, "%s: cannot listen", name);
        close(fd);
        return status;
    }
    *out = fd;
    return IM_OK;
}

im_status im_serve(im_context *ctx, const im_serve_options *o)
{
    server s = {.ctx = ctx, .o = o};
    struct sockaddr_storage at;
    int fd = -1;
    im_status status = im_serve_address(ctx, o->listen, &at);
    if (status == IM_OK)
        status = open_library(&s);
    if (status == IM_OK)
        status = listen_at(ctx, o->listen, &at, &fd);
    if (status == IM_OK) {
        const unsigned flags = at.ss_family == AF_INET6 ? MHD_USE_IPv6 : MHD_NO_FLAG;
        errno = 0;
        struct MHD_Daemon *d = s.MHD_start_daemon(flags, 0, NULL, NULL, request, &s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_TIMEOUT,
                                                  SECONDS_OF_SILENCE, MHD_OPTION_CONNECTION_LIMIT, MOST_CONNECTIONS, MHD_OPTION_END);
        if (!d) {
            status = im_fail_errno(ctx, "%s: cannot serve", o->listen);
            close(fd);
        } else {
            tell(&s, d, &at);
            while (!o->stop(o->arg))
                s.MHD_run_wait(d, 200);
            s.MHD_stop_daemon(d);
        }
    }
    if (s.library)
        dlclose(s.library);
    return status;
}

#else

im_status im_serve(im_context *ctx, const im_serve_options *o)
{
    struct sockaddr_storage at;
    IM_TRY(im_serve_address(ctx, o->listen, &at));
    return im_fail(ctx, IM_ERR_UNSUPPORTED,
                   "this build cannot listen: it was made without libmicrohttpd (Debian: libmicrohttpd-dev); --textfile needs none");
}

#endif
