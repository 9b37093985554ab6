/* dtype and class names and sizes. */
#include "device/device.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtype_table[IM_DTYPE_COUNT] = {
    [IM_F32] = {"fp32", 4}, [IM_F64] = {"fp64", 8}, [IM_BF16] = {"bf16", 2}, [IM_F16] = {"fp16", 2},
    [IM_I32] = {"i32", 4},  [IM_I64] = {"i64", 8},  [IM_U8] = {"u8", 1},     [IM_U16] = {"u16", 2},
};

size_t im_dtype_size(im_dtype t)
{
    return (unsigned)t < IM_DTYPE_COUNT ? dtype_table[t].size : 0;
}

const char *im_dtype_name(im_dtype t)
{
    return (unsigned)t < IM_DTYPE_COUNT ? dtype_table[t].name : "unknown";
}

const char *im_class_name(im_class c)
{
    static const char *const names[IM_CLASS_COUNT] = {
        [IM_CLASS_WEIGHTS] = "weights",         [IM_CLASS_GRADIENTS] = "gradients", [IM_CLASS_OPTIMIZER] = "optimizer",
        [IM_CLASS_ACTIVATIONS] = "activations", [IM_CLASS_COMM] = "communication",  [IM_CLASS_KV] = "kv cache",
        [IM_CLASS_SCRATCH] = "scratch",         [IM_CLASS_CARRY] = "carry",         [IM_CLASS_PROGRAMS] = "programs",
    };
    return (unsigned)c < IM_CLASS_COUNT ? names[c] : "unknown";
}

void im_bf16_round(const float *in, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &in[i], 4);
        bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
        out[i] = (uint16_t)(nan ? u >> 16 | 0x40u : (u + 0x7FFFu + (u >> 16 & 1)) >> 16);
    }
}
