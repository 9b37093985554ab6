/* Any bytes as nccl.conf, launch script, Kubernetes file, parameter file or environment (the first byte says which; the second which machine): settings
 * with sound names, one that wins of each name, and findings with a text. */
#include "fabric/env.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const im_env_set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const im_env_item *x = s->item[i];
        if (!*x->name || isdigit((unsigned char)*x->name) ||
            strspn(x->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != strlen(x->name))
            abort();
        if (x->by && (x->by->by || strcmp(x->by->name, x->name) != 0))
            abort();
        if (!x->by && im_env_used(s, x->name) != x)
            abort();
    }
    for (size_t i = 0; i < s->nfinding; i++) {
        const im_env_finding *f = &s->finding[i];
        if (!*f->id || !*f->text || f->verdict > IM_ENV_FAIL || (f->item && f->item->verdict < f->verdict))
            abort();
    }
}

/* RoCE and InfiniBand, ports up and down, a GPU far from its NIC. */
static void machine(uint8_t which, im_env_facts *f)
{
    static im_env_gid gid[] = {
        {.index = 0, .raw = {0xfe, 0x80, [15] = 1}, .version = 1},
        {.index = 3, .raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}, .version = 2},
    };
    static im_env_port port[] = {
        {.device = "mlx5_0",
         .port = 1,
         .link = IM_ENV_LINK_ETH,
         .active = 1,
         .gbps = 400,
         .table = 256,
         .gid = gid,
         .ngid = 2,
         .npkey = 128,
         .netdev = "eth0",
         .traffic_class = -1,
         .trust = 1,
         .pfc = 8},
        {.device = "mlx5_1", .port = 1, .link = IM_ENV_LINK_IB, .active = 1, .gbps = 400, .traffic_class = -1, .trust = -1, .pfc = -1},
        {.device = "mlx5_10", .port = 2, .link = IM_ENV_LINK_IB, .active = 0, .traffic_class = 96, .trust = -1, .pfc = -1},
    };
    static im_env_net net[] = {
        {.name = "lo", .up = 1, .addressed = 1, .loopback = true, .order = 1},
        {.name = "eth0", .up = 1, .addressed = 1, .hardware = true, .order = 2},
    };
    static im_env_gpu gpu[] = {{.address = "0000:17:00.0", .nearest = IM_ENV_PHB, .device = "mlx5_0"}};
    *f = (im_env_facts){.root = which & 1 ? "/x" : NULL,
                        .port = port,
                        .nport = which >> 1 & 3,
                        .net = net,
                        .nnet = 2,
                        .gpu = gpu,
                        .ngpu = 1,
                        .c2c = which & 8 ? 1 : 0};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    im_context *ctx;
    im_arena *a;
    if (size < 2 || im_context_create(&ctx) != IM_OK)
        return 0;
    if (im_arena_create(ctx, &a) == IM_OK) {
        static const char *const name[] = {"x", "nccl.conf", "job.sh", "pod.yaml", "proc/1/environ", "mca-params.conf"};
        im_env_set s;
        im_env_facts f;
        im_env_advices l;
        im_str out = {0};
        im_env_lint_options o = {.nccl = data[1] & 16 ? 21800 : 0, .here = data[1] & 32};
        im_env_set_init(ctx, a, &s);
        machine(data[1], &f);
        im_env_read_text(&s, name[data[0] % 6], (im_env_format)(data[0] % 6), (im_env_layer)(data[0] / 6 % 4), (const char *)data + 2, size - 2);
        im_env_lint(&s, &f, &o);
        if (!s.failed)
            check(&s);
        if (im_env_suggest(ctx, a, &f, NULL, o.nccl, &l) == IM_OK)
            for (int form = 0; form < IM_ENV_FORMS; form++)
                im_env_write(&l, (im_env_form)form, &out);
        im_str_free(&out);
        im_arena_destroy(a);
    }
    im_context_destroy(ctx);
    return 0;
}
