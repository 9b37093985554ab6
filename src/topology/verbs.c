/* What only the verbs library tells: the MTU of a port. It is opened when it is there; no header of it is needed, as the
 * functions' types and the first members of ibv_port_attr are part of its ABI (libibverbs.so.1, version IBVERBS_1.1). */
#include "topology/internal.h"

#include <dlfcn.h>
#include <string.h>

struct ibv_device;
struct ibv_context;
/* The library fills about 50 bytes of it; the rest is room. */
typedef struct port_attr {
    int state, max_mtu, active_mtu;
    unsigned char rest[244];
} port_attr;

typedef struct verbs {
    void *library;
    struct ibv_device **(*list)(int *n);
    void (*free_list)(struct ibv_device **list);
    const char *(*name)(struct ibv_device *d);
    struct ibv_context *(*open)(struct ibv_device *d);
    int (*close)(struct ibv_context *c);
    int (*query)(struct ibv_context *c, uint8_t port, port_attr *out);
} verbs;

static bool load(verbs *v)
{
    v->library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!v->library)
        return false;
    /* POSIX's way to turn an object pointer of dlsym into a function pointer */
    *(void **)(&v->list) = dlsym(v->library, "ibv_get_device_list");
    *(void **)(&v->free_list) = dlsym(v->library, "ibv_free_device_list");
    *(void **)(&v->name) = dlsym(v->library, "ibv_get_device_name");
    *(void **)(&v->open) = dlsym(v->library, "ibv_open_device");
    *(void **)(&v->close) = dlsym(v->library, "ibv_close_device");
    *(void **)(&v->query) = dlsym(v->library, "ibv_query_port");
    return v->list && v->free_list && v->name && v->open && v->close && v->query;
}

/* ibv_mtu counts 256 as 1, 512 as 2, ... 4096 as 5. */
static int bytes_of(int code)
{
    return code >= 1 && code <= 5 ? 128 << code : 0;
}

static bool ask(const verbs *v, struct ibv_device *d, int port, int *active, int *max, const char **why)
{
    struct ibv_context *c = v->open(d);
    *why = "the verbs device cannot be opened";
    if (!c)
        return false;
    port_attr attr;
    memset(&attr, 0, sizeof attr);
    const bool good = v->query(c, (uint8_t)port, &attr) == 0 && bytes_of(attr.active_mtu) != 0;
    if (good) {
        *active = bytes_of(attr.active_mtu);
        *max = bytes_of(attr.max_mtu);
    }
    *why = good ? NULL : "ibv_query_port fails";
    v->close(c);
    return good;
}

bool im_verbs_mtu(const char *device, int port, int *active, int *max, const char **why)
{
    verbs v;
    bool good = false;
    *why = "libibverbs.so.1 is not installed";
    if (!load(&v)) {
        if (v.library)
            dlclose(v.library);
        return false;
    }
    int n = 0;
    struct ibv_device **list = v.list(&n);
    *why = "libibverbs does not see the device";
    for (int i = 0; list && i < n; i++)
        if (strcmp(v.name(list[i]), device) == 0)
            good = ask(&v, list[i], port, active, max, why);
    if (list)
        v.free_list(list);
    dlclose(v.library);
    return good;
}
