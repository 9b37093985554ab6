/* States and GUIDs as ibstat writes them. */
#include "fabric/status.h"

#include <ctype.h>
#include <string.h>

const char *im_port_state_ibstat(int64_t state)
{
    static const char *const name[] = {"???", "Down", "Initializing", "Armed", "Active"};
    return state >= 0 && state < (int64_t)IM_COUNT_OF(name) ? name[state] : "???";
}

const char *im_port_phys_ibstat(int64_t phys)
{
    static const char *const name[] = {"No state change",           "Sleep",  "Polling",           "Disabled",
                                       "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "PhyTest"};
    return phys >= 0 && phys < (int64_t)IM_COUNT_OF(name) ? name[phys] : "???";
}

const char *im_guid_plain(im_arena *a, const char *sysfs)
{
    char out[17];
    size_t n = 0;
    for (const char *p = sysfs; p && *p; p++) {
        if (*p == ':')
            continue;
        if (!isxdigit((unsigned char)*p) || n == 16)
            return NULL;
        out[n++] = (char)tolower((unsigned char)*p);
    }
    out[n] = '\0';
    return n == 16 ? im_arena_strdup(a, out) : NULL;
}

const char *im_port_guid(im_arena *a, const im_rdma_port *port)
{
    if (!port->ngids || port->gid[0].index != 0)
        return NULL;
    const unsigned char *g = port->gid[0].raw + 8;
    return im_arena_printf(a, "%02x%02x%02x%02x%02x%02x%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]);
}

im_paint im_paint_of(const im_look *look)
{
    return look->colour ? (im_paint){"\033[31m", "\033[33m", "\033[32m", "\033[2m", "\033[1m", "\033[0m"} : (im_paint){"", "", "", "", "", ""};
}
