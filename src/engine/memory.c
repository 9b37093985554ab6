/* engine: bytes, as the programs say them and as they are reserved and touched. */
#include "engine/agree.h"
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>

void im_engine_staging_of(im_program *const *program, size_t n, size_t *count, size_t *most)
{
    *count = *most = 0;
    for (size_t k = 0; k < n; k++) {
        const im_program *p = program[k];
        for (uint32_t i = 0; i < p->nbound; i++) {
            if (p->bound[i].op->collective != IM_COLL_LOAD)
                continue;
            size_t mb = (size_t)p->step[p->bound[i].step].mb, tokens = (size_t)im_view_count(&p->bound[i].op->args.v[0]);
            *count = mb + 1 > *count ? mb + 1 : *count;
            *most = tokens > *most ? tokens : *most;
        }
    }
}

enum { IM_PROBE_BYTES = IM_AGREE_VALUES * 8 };

/* What fill_engine takes from the engine's arena, and the programs. */
static size_t host_bytes(im_program *const *program, size_t n)
{
    size_t count, most, bytes = IM_CONVERT_ELEMENTS * sizeof(float);
    im_engine_staging_of(program, n, &count, &most);
    bytes += count * (most * IM_STAGED * sizeof(int32_t) + sizeof(im_staging));
    for (size_t i = 0; i < n; i++)
        bytes += im_arena_bytes(program[i]->arena) + program[i]->nbound * (sizeof(im_op_state *) + sizeof(im_event));
    return bytes;
}

void im_engine_memory_of(im_program *const *program, size_t n, im_memory *out)
{
    *out = (im_memory){0};
    memcpy(out->by_class, program[0]->arena_bytes, sizeof out->by_class);
    out->by_class[IM_CLASS_CARRY] += IM_PROBE_BYTES;
    out->by_class[IM_CLASS_PROGRAMS] = host_bytes(program, n);
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        out->total += out->by_class[c];
}

im_status im_engine_reserve(im_engine *e)
{
    char need[32], have[32], parts[512];
    size_t machine = im_machine_memory(), at = 0;
    if (e->memory.total > machine) {
        parts[0] = 0;
        for (int c = 0; c < IM_CLASS_COUNT; c++) {
            char b[32];
            if (e->memory.by_class[c] && at < sizeof parts)
                at += (size_t)snprintf(parts + at, sizeof parts - at, "%s%s %s", at ? ", " : "", im_class_name((im_class)c),
                                       im_format_bytes(b, sizeof b, (double)e->memory.by_class[c]));
        }
        return im_fail(e->ctx, IM_ERR_NOMEM, "the plan needs %s (%s), this machine has %s: a smaller micro-batch, seq-len or model, or bf16",
                       im_format_bytes(need, sizeof need, (double)e->memory.total), parts, im_format_bytes(have, sizeof have, (double)machine));
    }
    for (int c = 0; c < IM_CLASS_COUNT; c++)
        if (c != IM_CLASS_PROGRAMS)
            IM_TRY(im_device_reserve(e->device, (im_class)c, e->memory.by_class[c]));
    e->scratch = (im_buffer){.arena = IM_CLASS_SCRATCH, .nbytes = e->memory.by_class[IM_CLASS_SCRATCH]};
    e->probe = (im_buffer){.arena = IM_CLASS_CARRY, .offset = e->memory.by_class[IM_CLASS_CARRY] - IM_PROBE_BYTES, .nbytes = IM_PROBE_BYTES};
    return IM_OK;
}

void im_engine_memory(const im_engine *e, im_memory *out)
{
    *out = e->memory;
}

size_t im_engine_touched(const im_engine *e, im_class c)
{
    if (c != IM_CLASS_PROGRAMS)
        return im_device_touched(e->device, c);
    size_t bytes = im_arena_bytes(e->arena);
    for (size_t i = 0; i < e->nrun; i++)
        bytes += im_arena_bytes(e->programs[i]->arena);
    return bytes;
}
