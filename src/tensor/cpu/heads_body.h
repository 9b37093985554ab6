/* heads: head_sum, head_norm and its gradient, one row after the other. Included once per instruction set, after rows_body.h. */

VEC char *head_at(const im_kernel_call *c, int i, int64_t r, int64_t h)
{
    const im_view *v = &c->args->v[i];
    return (char *)c->p[i] + (size_t)(r * v->stride[0] + h * v->stride[1]) * (v->dtype == IM_BF16 ? 2 : 4);
}

/* The weights of head h: its own when all heads are normed together. */
VEC const void *head_weight(const im_kernel_call *c, int i, bool all, int64_t h)
{
    return (const char *)c->p[i] + (size_t)(all ? h * c->args->v[0].shape[2] : 0) * (c->args->v[i].dtype == IM_BF16 ? 2 : 4);
}

/* Sum over n columns of x*y, or of x*y*w. */
VEC float head_dot(im_dtype t, const void *x, const void *y, const void *w, int64_t n)
{
    vf sum = vf_set(0.0f);
    for (int64_t e = 0; e < n; e += IM_VEC) {
        int64_t left = vec_left(n, e);
        vf v = vf_get(t, y, e, left);
        if (w)
            v = vf_mul(v, vf_get(t, w, e, left));
        sum = vf_fma(vf_get(t, x, e, left), v, sum);
    }
    return vf_sum(sum);
}

VEC void head_sum_row(const im_kernel_call *c, im_dtype t, int64_t r)
{
    const int64_t *shape = c->args->v[0].shape;
    float sum = 0.0f;
    for (int64_t h = 0; h < shape[1]; h++)
        sum += head_dot(t, head_at(c, 0, r, h), head_at(c, 1, r, h), im_op_has(c->args, 2) ? head_weight(c, 2, true, h) : NULL, shape[2]);
    ((float *)c->p[3])[r] = sum * (float)c->args->f[0];
}

static void head_sum_rows(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch)
{
    (void)scratch;
    for (int64_t r = begin; r < end; r++)
        BY_TYPE(c->args->v[0].dtype, head_sum_row(c, IM_F32, r), head_sum_row(c, IM_BF16, r));
}

/* 1 / rms; squares: the operand that has the row's sum, if there */
VEC float head_inverse(const im_kernel_call *c, im_dtype t, int squares, int64_t r, const void *x)
{
    int64_t E = c->args->v[0].shape[2];
    float mean = im_op_has(c->args, squares) ? ((const float *)c->p[squares])[r] / (float)c->args->i[1] : head_dot(t, x, x, NULL, E) / (float)E;
    return 1.0f / sqrtf(mean + (float)c->args->f[0]);
}

VEC void head_norm_row(const im_kernel_call *c, im_dtype t, int64_t r)
{
    const int64_t *shape = c->args->v[0].shape;
    for (int64_t h = 0; h < shape[1]; h++) {
        const char *x = head_at(c, 0, r, h);
        const void *w = head_weight(c, 1, im_op_has(c->args, 3), h);
        char *y = head_at(c, 2, r, h);
        vf inverse = vf_set(head_inverse(c, t, 3, r, x));
        for (int64_t e = 0; e < shape[2]; e += IM_VEC) {
            int64_t left = vec_left(shape[2], e);
            vf_put(t, y, e, left, vf_mul(vf_mul(vf_get(t, x, e, left), inverse), vf_get(t, w, e, left)));
        }
    }
}

static void head_norm_rows(const im_kernel_call *c, int64_t begin, int64_t end, float *scratch)
{
    (void)scratch;
    for (int64_t r = begin; r < end; r++)
        BY_TYPE(c->args->v[0].dtype, head_norm_row(c, IM_F32, r), head_norm_row(c, IM_BF16, r));
}

/* One row of dx; what it adds to dw goes to the block's row of sums. */
VEC void head_norm_grad_row(const im_kernel_call *c, im_dtype t, int64_t r, float *dw)
{
    const im_op_args *a = c->args;
    const int64_t *shape = a->v[0].shape;
    bool all = im_op_has(a, 5);
    for (int64_t h = 0; h < shape[1]; h++) {
        const char *x = head_at(c, 0, r, h), *dy = head_at(c, 2, r, h);
        const void *w = head_weight(c, 1, all, h);
        char *dx = head_at(c, 3, r, h);
        float *sums = dw + (all ? h * shape[2] : 0);
        float scale = head_inverse(c, t, 5, r, x);
        float along = all ? ((const float *)c->p[6])[r] * (float)a->f[1] : head_dot(t, x, dy, w, shape[2]);
        vf inverse = vf_set(scale), pull = vf_set(along * scale * scale / (float)(all ? a->i[1] : shape[2]));
        for (int64_t e = 0; e < shape[2]; e += IM_VEC) {
            int64_t left = vec_left(shape[2], e);
            vf o = vf_get(t, dy, e, left), v = vf_get(t, x, e, left);
            vf_put(IM_F32, sums, e, left, vf_fma(vf_mul(v, inverse), o, vf_get(IM_F32, sums, e, left)));
            vf_put(t, dx, e, left, vf_mul(inverse, vf_fnma(v, pull, vf_mul(o, vf_get(t, w, e, left)))));
        }
    }
}

/* Blocks of rows, as norm_grad_blocks. The call's scratch holds dw of each block: a row of pad(width). */
static void head_norm_grad_blocks(const im_kernel_call *c, int64_t begin, int64_t end, float *unused)
{
    (void)unused;
    im_dtype t = (im_dtype)c->args->v[0].dtype;
    int64_t n = c->args->v[0].shape[0], rows = im_norm_grad_rows(n), stride = im_pad(c->args->v[4].shape[0]);
    for (int64_t block = begin; block < end; block++) {
        float *dw = (float *)c->scratch + block * stride;
        memset(dw, 0, (size_t)stride * sizeof(float));
        for (int64_t r = block * rows; r < (block + 1) * rows && r < n; r++)
            BY_TYPE(t, head_norm_grad_row(c, IM_F32, r, dw), head_norm_grad_row(c, IM_BF16, r, dw));
    }
}

/* Columns of dw: the blocks' sums, in order. */
static void head_norm_grad_columns(const im_kernel_call *c, int64_t begin, int64_t end, float *unused)
{
    (void)unused;
    int64_t n = c->args->v[0].shape[0], rows = im_norm_grad_rows(n), stride = im_pad(c->args->v[4].shape[0]);
    float *to = c->p[4];
    for (int64_t d = begin; d < end; d += IM_VEC) {
        int64_t w = vec_left(end, d);
        vf sum = vf_set(0.0f);
        for (int64_t block = 0; block * rows < n; block++)
            sum = vf_add(sum, vf_load((const float *)c->scratch + block * stride + d));
        vf_put(IM_F32, to, d, w, c->args->i[0] != 0 ? vf_add(sum, vf_get(IM_F32, to, d, w)) : sum);
    }
}
