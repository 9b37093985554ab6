/* Attention and its gradient: fast against plain; what documents, dropout, layouts and threads must not change. */
#include "conform/ops_case.h"

#include "tensor/cpu/nn_kernels.h"

static im_context *ctx;

static int setup(void **state)
{
    (void)state;
    return im_context_create(&ctx) == IM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    im_context_destroy(ctx);
    return 0;
}

static const im_view absent = {.ndim = 0};
enum { Q, K, V, POS_Q, POS_K, SEG_Q, SEG_K, O, LSE, DO, DQ, DK, DV };

typedef struct attn_shape {
    im_dtype t;
    int64_t B, Tq, Tk, H, KV, E;
    int64_t window;
    bool free, seg; /* free: not causal */
    double drop;
    int64_t slopes; /* ALiBi: heads in all; the first here is number 1 */
} attn_shape;

static im_view heads(im_dtype t, int64_t B, int64_t T, int64_t H, int64_t E, int64_t row, int64_t offset)
{
    im_view v = im_view_make(t, 4, (int64_t[]){B, T, H, E});
    v.stride[1] = row;
    v.stride[0] = row * T;
    v.offset = offset;
    return v;
}

static int32_t *ints(ops_case *c, int operand)
{
    return (int32_t *)(void *)c->init[operand];
}

/* q, k and v as rows of one fused buffer would lie. Positions: the last Tq of 0..Tk-1 for queries; segments: thirds of a sample. */
static ops_case attn_new(attn_shape s, bool grad)
{
    ops_case c = ops_new(ctx, grad ? &im_op_attention_grad : &im_op_attention);
    int64_t q_row = (s.H + 2 * s.KV) * s.E + 3, kv_row = 2 * s.KV * s.E + 1;
    ops_operand(&c, heads(s.t, s.B, s.Tq, s.H, s.E, q_row, 0), 1);
    ops_operand(&c, heads(s.t, s.B, s.Tk, s.KV, s.E, kv_row, 0), 2);
    ops_operand(&c, heads(s.t, s.B, s.Tk, s.KV, s.E, kv_row, 1), 3);
    for (int i = 0; i < 2; i++) {
        int64_t T = i ? s.Tk : s.Tq;
        ops_operand(&c, im_view_2d(IM_I32, s.B, T), 4);
        for (int64_t e = 0; e < s.B * T; e++)
            ints(&c, POS_Q + i)[e] = (int32_t)(e % T + (i ? 0 : s.Tk - s.Tq));
    }
    for (int i = 0; i < 2; i++) {
        int64_t T = i ? s.Tk : s.Tq;
        ops_operand(&c, s.seg ? im_view_2d(IM_I32, s.B, T) : absent, 5);
        for (int64_t e = 0; s.seg && e < s.B * T; e++)
            ints(&c, SEG_Q + i)[e] = (int32_t)((e % T + (i ? 0 : s.Tk - s.Tq)) * 3 / s.Tk);
    }
    ops_operand(&c, heads(s.t, s.B, s.Tq, s.H, s.E, s.H * s.E + 2, 2), 6);
    ops_operand(&c, im_view_make(IM_F32, 3, (int64_t[]){s.B, s.Tq, s.H}), 7);
    if (grad) {
        ops_operand(&c, heads(s.t, s.B, s.Tq, s.H, s.E, s.H * s.E, 0), 8);
        ops_operand(&c, heads(s.t, s.B, s.Tq, s.H, s.E, q_row, 0), 9);
        ops_operand(&c, heads(s.t, s.B, s.Tk, s.KV, s.E, kv_row, 3), 10);
        ops_operand(&c, heads(s.t, s.B, s.Tk, s.KV, s.E, kv_row, 4), 11);
    }
    c.args.f[0] = 2.0 / sqrt((double)s.E);
    c.args.f[1] = s.drop;
    c.args.i[0] = !s.free;
    c.args.i[1] = s.window;
    c.args.i[2] = 99;
    c.args.i[3] = 4;
    c.args.i[5] = 3;
    if (s.slopes) {
        c.args.i[6] = 1;
        c.args.i[7] = s.slopes;
    }
    c.now.sample0 = 1000;
    return c;
}

/* O and lse of the plain forward become operands of the gradient. */
static void attn_forward_into(ops_case *grad, attn_shape s)
{
    ops_case c = attn_new(s, false);
    for (int i = 0; i < O; i++)
        if (c.init[i] != NULL)
            memcpy(c.init[i], grad->init[i], c.nbytes[i]);
    c.args.i[4] = grad->args.i[4];
    c.now = grad->now;
    assert_int_equal(ops_run(&c, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
    memcpy(grad->init[O], c.got[O], c.nbytes[O]);
    memcpy(grad->init[LSE], c.got[LSE], c.nbytes[LSE]);
    ops_free(&c);
}

static void attn_check(attn_shape s)
{
    double absolute = s.t == IM_BF16 ? 2e-2 : 5e-6, relative = s.t == IM_BF16 ? 1.0 / 100 : 1e-5;
    ops_case c = attn_new(s, false);
    ops_check(&c, absolute, relative);
    ops_free(&c);
    c = attn_new(s, true);
    attn_forward_into(&c, s);
    ops_check(&c, s.t == IM_BF16 ? 6e-2 : 2e-5, relative);
    ops_free(&c);
}

static void agrees(void **state)
{
    (void)state;
    const attn_shape shapes[] = {
        {IM_F32, 2, 17, 17, 2, 1, 8, .window = 0},
        {IM_F32, 1, 64, 64, 2, 2, 16, .window = 0},
        {IM_F32, 1, 130, 130, 2, 1, 12, .window = 0},
        {IM_F32, 1, 131, 131, 1, 1, 5, .window = 20},
        {IM_F32, 1, 70, 150, 3, 1, 33, .window = 70, .seg = true},
        {IM_F32, 2, 66, 66, 2, 2, 24, .free = true},
        {IM_F32, 1, 66, 66, 2, 2, 24, .free = true, .window = 9, .seg = true},
        {IM_F32, 1, 140, 140, 2, 1, 16, .drop = 0.3, .seg = true},
        {IM_F32, 1, 9, 9, 4, 2, 64, .drop = 0.6},
        {IM_F32, 1, 300, 300, 2, 1, 16, .window = 64}, /* whole tiles lie outside the window */
        {IM_F32, 1, 260, 260, 4, 2, 8, .window = 3, .seg = true, .drop = 0.2},
        {IM_F32, 1, 140, 140, 3, 3, 16, .slopes = 5},
        {IM_F32, 2, 70, 150, 4, 2, 24, .slopes = 8, .window = 40, .seg = true, .drop = 0.1},
        {IM_F32, 1, 66, 66, 2, 2, 9, .slopes = 4, .free = true},
        {IM_F32, 2, 5, 90, 2, 2, 16, .slopes = 3},
        {IM_BF16, 1, 79, 79, 2, 1, 20, .slopes = 12},
        {IM_BF16, 1, 79, 79, 2, 1, 20, .window = 0},
        {IM_BF16, 2, 65, 65, 1, 1, 64, .drop = 0.1, .seg = true},
    };
    for (size_t i = 0; i < IM_COUNT_OF(shapes); i++)
        attn_check(shapes[i]);
}

static void agrees_at_the_edges(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 2, 7, 8};
    for (size_t q = 0; q < IM_COUNT_OF(sizes); q++)
        for (size_t k = 0; k < IM_COUNT_OF(sizes); k++) {
            attn_check((attn_shape){IM_F32, 2, sizes[q], sizes[k], 2, 1, 7, .window = 3});
            attn_check((attn_shape){IM_F32, 1, sizes[q], sizes[k], 2, 2, 1, .free = true, .drop = 0.2});
        }
    attn_check((attn_shape){IM_F32, 0, 9, 9, 2, 1, 7, .window = 0});
}

/* Few queries, many keys: chunks, group, window, valid keys. */
static void decoding_agrees(void **state)
{
    (void)state;
    for (int flags = 0; flags < 8; flags++)
        for (int64_t valid = 0; valid <= 600; valid += valid < 2 ? 1 : 257) {
            attn_shape s = {.t = flags & 1 ? IM_BF16 : IM_F32, .B = 2, .Tq = flags & 2 ? 3 : 1, .Tk = 600, .H = 4, .KV = 2, .E = flags & 4 ? 32 : 20};
            s.window = flags & 4 ? 300 : 0;
            s.drop = flags & 2 ? 0.25 : 0.0;
            s.slopes = flags & 4 ? 0 : 6;
            ops_case c = attn_new(s, false);
            c.args.i[4] = 1;
            c.now.kv_len = valid;
            for (int64_t e = 0; e < s.B * s.Tq; e++)
                ints(&c, POS_Q)[e] = (int32_t)(valid - s.Tq + e % s.Tq);
            ops_check(&c, s.t == IM_BF16 ? 1e-2 : 3e-6, s.t == IM_BF16 ? 1.0 / 100 : 1e-5);
            ops_free(&c);
        }
    attn_shape s = {IM_F32, 1, 1, 5, 1, 1, 4, .window = 0};
    ops_case c = attn_new(s, false);
    c.args.i[4] = 1;
    c.now.kv_len = 6;
    assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_ERR_ARG);
    im_error_clear(ctx);
    ops_free(&c);
}

/* A paged cache gives the bits of one that lies in one piece, wherever its blocks are. */
static void blocks_change_no_bit(void **state)
{
    (void)state;
    for (int flags = 0; flags < 16; flags++) {
        attn_shape s = {.t = flags & 1 ? IM_BF16 : IM_F32, .B = 2, .Tq = flags & 2 ? 20 : 1, .Tk = 400, .H = 4, .KV = 2, .E = flags & 4 ? 32 : 20};
        int64_t blocks = im_kv_blocks(s.Tk), n = s.B * blocks + 3, row = s.KV * s.E; /* three that nobody has */
        s.window = flags & 8 ? 90 : 0;
        ops_case whole = attn_new(s, false), paged = ops_new(ctx, &im_op_attention);
        whole.args.i[4] = 1;
        whole.now.kv_len = 333;
        for (int64_t e = 0; e < s.B * s.Tq; e++)
            ints(&whole, POS_Q)[e] = (int32_t)(333 - s.Tq + e % s.Tq);
        for (int i = 0; i <= LSE; i++)
            ops_operand(&paged, i == K || i == V ? im_view_make(s.t, 4, (int64_t[]){n, IM_KV_BLOCK, s.KV, s.E}) : whole.args.v[i], 20 + (uint64_t)i);
        ops_operand(&paged, im_view_2d(IM_I32, s.B, blocks), 3);
        for (int i = 0; i <= LSE; i++)
            if (i != K && i != V && whole.init[i] != NULL)
                memcpy(paged.init[i], whole.init[i], whole.nbytes[i]);
        for (int64_t at = 0; at < s.B * blocks; at++)
            ints(&paged, LSE + 1)[at] = (int32_t)((at * 5 + 2) % n); /* n is no multiple of 5 */
        for (int64_t b = 0; b < s.B; b++)
            for (int64_t t = 0; t < s.Tk; t++)
                for (int i = K; i <= V; i++)
                    for (int64_t h = 0; h < s.KV; h++)
                        for (int64_t e = 0; e < s.E; e++) {
                            const im_view *from = &whole.args.v[i];
                            int64_t block = ints(&paged, LSE + 1)[b * blocks + t / IM_KV_BLOCK];
                            im_store(s.t, paged.init[i], (block * IM_KV_BLOCK + t % IM_KV_BLOCK) * row + h * s.E + e,
                                     im_load(s.t, whole.init[i], from->offset + b * from->stride[0] + t * from->stride[1] + h * from->stride[2] + e));
                        }
        paged.args.f[0] = whole.args.f[0];
        memcpy(paged.args.i, whole.args.i, sizeof whole.args.i);
        paged.now = whole.now;
        for (int kernels = 0; kernels < 2; kernels++) {
            assert_int_equal(ops_run(&whole, kernels ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 2, IM_ISA_COUNT), IM_OK);
            assert_int_equal(ops_run(&paged, kernels ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 2, IM_ISA_COUNT), IM_OK);
            assert_memory_equal(paged.got[O], whole.got[O], whole.nbytes[O]);
            assert_memory_equal(paged.got[LSE], whole.got[LSE], whole.nbytes[LSE]);
        }
        ints(&paged, LSE + 1)[blocks + 5] = (int32_t)n; /* of the keys that count, the last block of sequence 1 */
        assert_int_equal(ops_run(&paged, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_ERR_ARG);
        im_error_clear(ctx);
        ops_free(&whole);
        ops_free(&paged);
    }
}

/* Keys that do not count may hold anything, NaN included: they are not read. */
static void invalid_keys_are_not_read(void **state)
{
    (void)state;
    for (int64_t Tq = 1; Tq <= 9; Tq += 8) {
        attn_shape s = {IM_F32, 1, Tq, 300, 2, 1, 16, .free = true};
        ops_case c = attn_new(s, false);
        c.args.i[4] = 1;
        c.now.kv_len = 261;
        for (int64_t e = 261 * c.args.v[K].stride[1]; e < 300 * c.args.v[K].stride[1]; e++) {
            im_store(IM_F32, c.init[K], e, NAN);
            im_store(IM_F32, c.init[V], e + 1, NAN);
        }
        ops_check(&c, 3e-6, 1e-5);
        assert_true(isfinite(im_load(IM_F32, c.got[O], 2)));
        ops_free(&c);
    }
}

/* Positions need not be 0, 1, 2...: any order and any gaps, negative ones too. */
static void positions_are_free(void **state)
{
    (void)state;
    attn_shape s = {IM_F32, 1, 150, 150, 2, 1, 16, .window = 60, .drop = 0.2};
    for (int grad = 0; grad < 2; grad++) {
        ops_case c = attn_new(s, grad);
        uint64_t seed = 5;
        for (int64_t e = 0; e < 150; e++) {
            ints(&c, POS_Q)[e] = (int32_t)(ops_random(&seed) % 200) - 40;
            ints(&c, POS_K)[e] = (int32_t)(ops_random(&seed) % 200) - 40;
        }
        if (grad)
            attn_forward_into(&c, s);
        ops_check(&c, 2e-5, 1e-5);
        ops_free(&c);
    }
}

/* ALiBi by hand: equal scores, slope m: weights fall by e^m from one position to the next, whatever the positions are counted from. */
static void slopes_fall_with_distance(void **state)
{
    (void)state;
    for (int64_t T = 5; T <= 80; T += 75) /* both paths */
        for (int fast = 0; fast < 2; fast++) {
            attn_shape s = {IM_F32, 1, T, T, 2, 2, T, .slopes = 4};
            ops_case c = attn_new(s, false);
            c.args.f[0] = 0;
            for (int64_t e = 0; e < T; e++)
                ints(&c, POS_Q)[e] = ints(&c, POS_K)[e] = (int32_t)(1000 + e);
            for (int64_t t = 0; t < T; t++) /* values: the identity, so that O is the weights */
                for (int64_t h = 0; h < 2; h++)
                    for (int64_t e = 0; e < T; e++) {
                        const im_view *v = &c.args.v[V];
                        im_store(IM_F32, c.init[V], v->offset + t * v->stride[1] + h * v->stride[2] + e, e == t ? 1.0f : 0.0f);
                    }
            assert_int_equal(ops_run(&c, fast ? IM_KERNELS_FAST : IM_KERNELS_PLAIN, 1, IM_ISA_COUNT), IM_OK);
            const im_view *o = &c.args.v[O];
            for (int64_t h = 0; h < 2; h++) {
                double slope = h ? 1.0 / 64 : 1.0 / 16, sum = 0; /* heads 1 and 2 of 4 */
                for (int64_t j = 0; j < T; j++)
                    sum += exp(-slope * (double)j);
                for (int64_t j = 0; j < T; j++)
                    assert_float_equal(im_load(IM_F32, c.got[O], o->offset + (T - 1) * o->stride[1] + h * o->stride[2] + j),
                                       exp(-slope * (double)(T - 1 - j)) / sum, 1e-6);
            }
            ops_free(&c);
        }
}

/* Keys and values outside the window may hold anything, NaN included: whole tiles (64) and chunks (256) of them are not read. The first that a query
 * sees here is 792 or 800. */
static void outside_the_window_is_not_read(void **state)
{
    (void)state;
    for (int64_t Tq = 1; Tq <= 9; Tq += 8) {
        attn_shape s = {IM_F32, 1, Tq, 900, 2, 1, 16, .window = 100};
        ops_case c = attn_new(s, false);
        for (int64_t j = 0; j < 768; j++)
            for (int operand = K; operand <= V; operand++)
                for (int64_t e = 0; e < 16; e++)
                    im_store(IM_F32, c.init[operand], c.args.v[operand].offset + j * c.args.v[operand].stride[1] + e, NAN);
        assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
        for (int64_t e = 0; e < 32; e++)
            assert_true(isfinite(im_load(IM_F32, c.got[O], 2 + e)));
        ops_free(&c);
    }
}

static void not_finite_values_stay(void **state)
{
    (void)state;
    const float odd[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < IM_COUNT_OF(odd); i++)
        for (int operand = Q; operand <= K; operand++)
            for (int64_t T = 7; T <= 70; T += 63) {
                attn_shape s = {IM_F32, 1, T, T, 1, 1, 8, .window = 0};
                ops_case c = attn_new(s, false);
                im_store(IM_F32, c.init[operand], c.args.v[operand].stride[1] * 5 + 3, odd[i]);
                unsigned char *want = ops_alloc(c.nbytes[O]);
                assert_int_equal(ops_run(&c, IM_KERNELS_PLAIN, 1, IM_ISA_BASE), IM_OK);
                memcpy(want, c.got[O], c.nbytes[O]);
                assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
                ops_compare(&c, O, want, 5e-6, 1e-5);
                free(want);
                ops_free(&c);
            }
}

/* A33, B49: what document 1 holds does not change a bit of document 2, forward and backward. */
static void documents_do_not_leak(void **state)
{
    (void)state;
    attn_shape s = {IM_F32, 1, 100, 100, 2, 1, 16, .seg = true, .drop = 0.1};
    const int outputs[2][3] = {{O, LSE, -1}, {DQ, DK, DV}};
    for (int grad = 0; grad < 2; grad++)
        for (int restart = 0; restart < 2; restart++) {
            unsigned char *first[3] = {NULL};
            for (int round = 0; round < 2; round++) {
                ops_case c = attn_new(s, grad);
                for (int64_t e = 0; e < 100; e++) { /* two documents, cut at 41; positions restart or go on */
                    ints(&c, SEG_Q)[e] = ints(&c, SEG_K)[e] = e >= 41;
                    if (restart)
                        ints(&c, POS_Q)[e] = ints(&c, POS_K)[e] = (int32_t)(e >= 41 ? e - 41 : e);
                }
                for (int operand = Q; round == 1 && operand <= V; operand++)
                    for (int64_t e = 0; e < 41 * c.args.v[operand].stride[1]; e++)
                        im_store(IM_F32, c.init[operand], e, 30.0f * im_load(IM_F32, c.init[operand], e) + 1.0f);
                if (grad)
                    attn_forward_into(&c, s);
                assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 2, IM_ISA_COUNT), IM_OK);
                for (int i = 0; i < 3 && outputs[grad][i] >= 0; i++) {
                    int operand = outputs[grad][i];
                    const im_view *v = &c.args.v[operand];
                    int64_t count = v->ndim == 4 ? v->shape[2] * v->shape[3] : v->shape[2];
                    if (round == 0)
                        first[i] = c.got[operand];
                    for (int64_t t = 41; round == 1 && t < 100; t++) {
                        int64_t at = (v->offset + t * v->stride[1]) * 4;
                        assert_memory_equal(c.got[operand] + at, first[i] + at, (size_t)count * 4);
                    }
                    if (round == 0)
                        c.got[operand] = NULL;
                    else
                        free(first[i]);
                }
                ops_free(&c);
            }
        }
}

/* A document alone gives what it gives behind another one: the same numbers up to the order of sums. */
static void packed_equals_separate(void **state)
{
    (void)state;
    attn_shape s = {IM_F32, 1, 100, 100, 1, 1, 16, .seg = true}, alone = {IM_F32, 1, 59, 59, 1, 1, 16, .window = 0};
    ops_case packed = attn_new(s, false), single = attn_new(alone, false);
    for (int64_t e = 0; e < 100; e++) {
        ints(&packed, SEG_Q)[e] = ints(&packed, SEG_K)[e] = e >= 41;
        ints(&packed, POS_Q)[e] = ints(&packed, POS_K)[e] = (int32_t)(e >= 41 ? e - 41 : e);
    }
    for (int operand = Q; operand <= V; operand++) {
        int64_t row = packed.args.v[operand].stride[1], from = packed.args.v[operand].offset + 41 * row;
        memcpy(single.init[operand] + single.args.v[operand].offset * 4, packed.init[operand] + from * 4, (size_t)(58 * row + 16) * 4);
    }
    assert_int_equal(ops_run(&packed, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    assert_int_equal(ops_run(&single, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    const float *o = (const float *)(void *)packed.got[O], *o1 = (const float *)(void *)single.got[O];
    for (int64_t t = 0; t < 59; t++)
        for (int64_t e = 0; e < 16; e++)
            assert_float_equal(o[2 + (41 + t) * 18 + e], o1[2 + t * 18 + e], 2e-6);
    ops_free(&packed);
    ops_free(&single);
}

/* One thread, five, all: the same bits; and fused rows against rows of their own. */
static void threads_change_nothing(void **state)
{
    (void)state;
    attn_shape s = {IM_F32, 2, 140, 140, 4, 2, 20, .drop = 0.1};
    for (int grad = 0; grad < 2; grad++) {
        ops_case c = attn_new(s, grad);
        if (grad)
            attn_forward_into(&c, s);
        unsigned char *first[DV + 1] = {NULL};
        for (int threads = 1; threads <= 5; threads += 2) {
            assert_int_equal(ops_run(&c, IM_KERNELS_FAST, threads, IM_ISA_COUNT), IM_OK);
            for (int i = grad ? DQ : O; i <= (grad ? DV : LSE); i++) {
                if (first[i] == NULL) {
                    first[i] = ops_alloc(c.nbytes[i]);
                    memcpy(first[i], c.got[i], c.nbytes[i]);
                }
                assert_memory_equal(first[i], c.got[i], c.nbytes[i]);
            }
        }
        for (int i = 0; i <= DV; i++)
            free(first[i]);
        ops_free(&c);
    }
}

/* V = identity makes O the dropped probabilities: the mask is read off. It belongs to (sample, head, positions), so a batch cut in two, a head
 * alone or a query alone gives the same. */
static void dropout_mask_does_not_know_the_layout(void **state)
{
    (void)state;
    enum { T = 30 };
    attn_shape s = {IM_F32, 3, T, T, 2, 2, T, .free = true, .drop = 0.4};
    ops_case all = attn_new(s, false);
    for (int64_t b = 0; b < 3; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t e = 0; e < T; e++) {
                    const im_view *v = &all.args.v[V];
                    im_store(IM_F32, all.init[V], v->offset + b * v->stride[0] + t * v->stride[1] + h * v->stride[2] + e, e == t ? 1.0f : 0.0f);
                }
    assert_int_equal(ops_run(&all, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    const im_view *o = &all.args.v[O];
    int64_t kept = 0;
    im_dropout drop = im_dropout_make(0.4, 99, 4);
    for (int64_t b = 0; b < 3; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t j = 0; j < T; j++) {
                    float p = im_load(IM_F32, all.got[O], o->offset + b * o->stride[0] + t * o->stride[1] + h * o->stride[2] + j);
                    bool keep = im_attn_word(&drop, 1000 + 3 + b, h, (int32_t)t, (int32_t)j) >= drop.threshold;
                    assert_int_equal(p != 0.0f, keep);
                    kept += keep;
                }
    assert_float_equal((double)kept / (3 * T * 2 * T), 0.6, 0.03);

    /* sample 1 and head 1 alone, the last query alone (which takes the path of few queries) */
    ops_case one = attn_new((attn_shape){IM_F32, 1, 1, T, 1, 1, T, .free = true, .drop = 0.4}, false);
    const im_view *from[] = {&all.args.v[Q], &all.args.v[K], &all.args.v[V]};
    for (int i = Q; i <= V; i++)
        for (int64_t t = i == Q ? T - 1 : 0; t < T; t++)
            for (int64_t e = 0; e < T; e++) {
                float x = im_load(IM_F32, all.init[i], from[i]->offset + from[i]->stride[0] + t * from[i]->stride[1] + from[i]->stride[2] + e);
                im_store(IM_F32, one.init[i], one.args.v[i].offset + (i == Q ? 0 : t) * one.args.v[i].stride[1] + e, x);
            }
    one.args.i[5] = 4;
    one.args.i[6] = 1;
    assert_int_equal(ops_run(&one, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
    for (int64_t j = 0; j < T; j++)
        assert_float_equal(im_load(IM_F32, one.got[O], 2 + j),
                           im_load(IM_F32, all.got[O], o->offset + o->stride[0] + (T - 1) * o->stride[1] + o->stride[2] + j), 1e-6);
    ops_free(&one);
    ops_free(&all);
}

/* Scores of +-1e4 (softmax saturates) and equal scores: no NaN, weights that sum to 1. */
static void large_scores(void **state)
{
    (void)state;
    attn_shape s = {IM_F32, 1, 80, 80, 1, 1, 8, .window = 0};
    for (int round = 0; round < 2; round++) {
        ops_case c = attn_new(s, false);
        c.args.f[0] = round ? 3e4 : 0.0;
        for (int64_t e = 0; e < 80 * c.args.v[V].stride[1]; e++)
            im_store(IM_F32, c.init[V], e + 1, 1.0f);
        assert_int_equal(ops_run(&c, IM_KERNELS_FAST, 1, IM_ISA_COUNT), IM_OK);
        for (int64_t t = 0; t < 80; t++)
            for (int64_t e = 0; e < 8; e++)
                assert_float_equal(im_load(IM_F32, c.got[O], 2 + t * 10 + e), 1.0, 1e-6);
        ops_free(&c);
    }
}

static void refuses(void **state)
{
    (void)state;
    im_op_cost cost;
    attn_shape s = {IM_F32, 1, 9, 9, 4, 2, 8, .window = 0};
    ops_case c = attn_new(s, false);
    im_op_args good = c.args;
    assert_int_equal(im_op_describe(ctx, &im_op_attention, &good, &cost), IM_OK);
    im_op_args bad = good;
    bad.v[K].shape[2] = bad.v[V].shape[2] = 3;
    assert_int_equal(im_op_describe(ctx, &im_op_attention, &bad, &cost), IM_ERR_ARG);
    assert_non_null(strstr(im_error_text(ctx), "4 heads are not a multiple of 3 kv heads"));
    im_error_clear(ctx);
    bad = good;
    bad.f[1] = 1.0;
    assert_int_equal(im_op_describe(ctx, &im_op_attention, &bad, &cost), IM_ERR_ARG);
    im_error_clear(ctx);
    bad = good;
    bad.v[V].dtype = IM_BF16;
    assert_int_equal(im_op_describe(ctx, &im_op_attention, &bad, &cost), IM_ERR_ARG);
    im_error_clear(ctx);
    bad = good;
    bad.v[SEG_Q] = im_view_2d(IM_I32, 1, 9);
    assert_int_equal(im_op_describe(ctx, &im_op_attention, &bad, &cost), IM_ERR_ARG);
    im_error_clear(ctx);
    ops_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees),
        cmocka_unit_test(agrees_at_the_edges),
        cmocka_unit_test(decoding_agrees),
        cmocka_unit_test(blocks_change_no_bit),
        cmocka_unit_test(invalid_keys_are_not_read),
        cmocka_unit_test(positions_are_free),
        cmocka_unit_test(slopes_fall_with_distance),
        cmocka_unit_test(outside_the_window_is_not_read),
        cmocka_unit_test(not_finite_values_stay),
        cmocka_unit_test(documents_do_not_leak),
        cmocka_unit_test(packed_equals_separate),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(dropout_mask_does_not_know_the_layout),
        cmocka_unit_test(large_scores),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
