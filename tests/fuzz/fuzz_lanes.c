/* Any bytes as what perftest, smpquery and OpenSM's files say: values within their bounds, or nothing. */
#include "fabric/lanes.h"
#include "fabric/perftest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void lanes(const char *text)
{
    im_lanes l;
    im_lanes_policy p;
    im_lanes_init(&l);
    im_lanes_sl2vl(text, &l);
    im_lanes_vlarb(text, &l);
    im_lanes_opensm(text, &l);
    im_lanes_policy_parse(text, &p);
    for (int i = 0; i < IM_LANES_SL; i++)
        if (l.vl[i] < -1 || l.vl[i] > 15)
            abort();
    for (int i = 0; i < IM_LANES_VL; i++)
        if (l.high[i] < 0 || l.low[i] < 0)
            abort();
    if (p.storage > 15 || p.fallback > 15 || p.storage < -1 || p.fallback < -1)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_perf p;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    lanes(text);
    im_perf_parse(text, &p);
    if (strlen(p.error) >= sizeof p.error || (p.known && p.latency && !(p.typical_us > 0)))
        abort();
    free(text);
    return 0;
}
