/* identity: of a model's shape, written into plans. What it is made of must not change: plans are kept. */
#include "model/model.h"

#include <inttypes.h>

uint64_t im_model_identity(const im_model *m)
{
    const im_arch *a = &m->arch;
    const int64_t size[] = {a->D, a->H, a->K, a->E, a->F, a->V, a->L};
    im_str s = {0};
    im_str_append(&s, m->family);
    for (size_t i = 0; i < IM_COUNT_OF(size); i++)
        im_str_printf(&s, " %" PRId64, size[i]);
    for (size_t i = 0; i < m->nparam; i++) {
        im_str_printf(&s, "\n%s", m->param[i].name);
        for (int d = 0; d < m->param[i].ndim; d++)
            im_str_printf(&s, " %" PRId64, m->param[i].shape[d]);
    }
    uint64_t h = im_hash64(im_str_text(&s), s.len, 0);
    im_str_free(&s);
    return h;
}
