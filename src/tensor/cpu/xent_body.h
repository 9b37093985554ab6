/* xent: rows of logits. Included once per instruction set. */

enum { XENT_BLOCK = 512 }; /* columns whose exponentials are summed in fp32 before they go to f64 */

/* The largest logit; sums of e^(z - top) and (smooth) of z - top over the real columns. */
VEC float xent_top(const float *z, int64_t n)
{
    vf top = vf_set(-INFINITY), top2 = top;
    int64_t j = 0;
    for (; j + 2 * IM_VEC <= n; j += 2 * IM_VEC) {
        top = vf_max(vf_load(z + j), top);
        top2 = vf_max(vf_load(z + j + IM_VEC), top2);
    }
    for (; j < n; j += IM_VEC) {
        int64_t w = vec_left(n, j);
        top = vf_max(vf_pick(vm_first(w), vf_get(IM_F32, z, j, w), vf_set(-INFINITY)), top);
    }
    return vf_top(vf_max(top, top2));
}

VEC void xent_sums(const float *z, int64_t n, float top, bool smooth, double *sum, double *shifted)
{
    vf high = vf_set(top);
    *sum = 0.0;
    *shifted = 0.0;
    for (int64_t block = 0; block < n; block += XENT_BLOCK) {
        int64_t end = block + XENT_BLOCK < n ? block + XENT_BLOCK : n;
        vf part = vf_set(0.0f), part2 = vf_set(0.0f);
        for (int64_t j = block; j < end; j += IM_VEC) {
            int64_t w = vec_left(end, j);
            vf off = vf_sub(vf_get(IM_F32, z, j, w), high), e = vf_exp(off);
            if (w < IM_VEC) {
                e = vf_pick(vm_first(w), e, vf_set(0.0f));
                off = vf_pick(vm_first(w), off, vf_set(0.0f));
            }
            part = vf_add(part, e);
            if (smooth)
                part2 = vf_add(part2, off);
        }
        *sum += (double)vf_sum(part);
        *shifted += (double)vf_sum(part2);
    }
}

VEC void xent_gradient(im_dtype t, const float *z, int64_t real, int64_t V, float top, float inverse, float each, void *out)
{
    vf high = vf_set(top), scale = vf_set(inverse), off = vf_set(each);
    for (int64_t j = 0; j < real; j += IM_VEC) {
        int64_t w = vec_left(real, j);
        vf_put(t, out, j, w, vf_sub(vf_mul(vf_exp(vf_sub(vf_get(IM_F32, z, j, w), high)), scale), off));
    }
    if (real < V)
        memset((char *)out + (size_t)real * (t == IM_BF16 ? 2 : 4), 0, (size_t)(V - real) * (t == IM_BF16 ? 2 : 4));
}

static double xent_row(const im_kernel_call *c, int64_t r)
{
    const im_op_args *a = c->args;
    const float *z = row_at(c, 0, r);
    int64_t V = a->v[0].shape[1], real = a->i[0], target = ((const int32_t *)c->p[1])[r * a->v[1].stride[0]];
    void *grad = row_if(c, 3, r);
    float *row = im_op_has(a, 4) ? (float *)c->p[4] + r * a->v[4].stride[0] : NULL;
    im_dtype t = (im_dtype)a->v[3].dtype;
    if (target < 0) {
        if (grad)
            memset(grad, 0, (size_t)V * (t == IM_BF16 ? 2 : 4));
        if (row)
            *row = 0.0f;
        return 0.0;
    }
    double smooth = a->f[0], sum, shifted;
    float top = xent_top(z, real);
    xent_sums(z, real, top, smooth > 0.0, &sum, &shifted);
    double logp = (double)z[target] - top - log(sum), loss = -(1.0 - smooth) * logp;
    if (smooth > 0.0)
        loss += smooth * (log(sum) - shifted / (double)real);
    if (row)
        *row = (float)logp;
    if (grad) { /* the target's own column again in f64: dlogits may lie over the logits */
        float at_target = (float)(exp((double)z[target] - top) / sum - smooth / (double)real - (1.0 - smooth));
        float inverse = (float)(1.0 / sum), each = (float)(smooth / (double)real);
        BY_TYPE(t, xent_gradient(IM_F32, z, real, V, top, inverse, each, grad), xent_gradient(IM_BF16, z, real, V, top, inverse, each, grad));
        im_store(t, grad, target, at_target);
    }
    return loss;
}

static void xent_rows(const im_kernel_call *c, int64_t begin, int64_t end, double *loss)
{
    for (int64_t r = begin; r < end; r++)
        loss[r] = xent_row(c, r);
}

/* ---- a part of a vocabulary ------------------------------------------------------------------------------------------- */

static void xent_stat_rows(const im_kernel_call *c, int64_t begin, int64_t end)
{
    const im_op_args *a = c->args;
    for (int64_t r = begin; r < end; r++) {
        const float *z = row_at(c, 0, r);
        double *stat = (double *)c->p[2] + r * a->v[2].stride[0], sum, shifted;
        int64_t V = a->v[0].shape[1], target = ((const int32_t *)c->p[1])[r * a->v[1].stride[0]];
        float top = xent_top(z, V);
        xent_sums(z, V, top, true, &sum, &shifted);
        stat[0] = top;
        stat[1] = sum;
        stat[2] = target >= a->i[0] && target < a->i[0] + V ? (double)z[target - a->i[0]] : -INFINITY;
        stat[3] = shifted + (double)V * top;
    }
}

static double xent_merge_one(const im_kernel_call *c, int64_t r)
{
    const im_op_args *a = c->args;
    const float *z = row_at(c, 0, r);
    int64_t V = a->v[0].shape[1], target = ((const int32_t *)c->p[1])[r * a->v[1].stride[0]], own = target - a->i[0];
    void *grad = row_if(c, 4, r);
    float *row = im_op_has(a, 5) ? (float *)c->p[5] + r * a->v[5].stride[0] : NULL;
    im_dtype t = (im_dtype)a->v[4].dtype;
    if (target < 0) {
        if (grad)
            memset(grad, 0, (size_t)V * (t == IM_BF16 ? 2 : 4));
        if (row)
            *row = 0.0f;
        return 0.0;
    }
    im_xent_row m = im_xent_merge_row(c, r);
    double smooth = a->f[0], logp = m.target - m.top - log(m.sum), loss = -(1.0 - smooth) * logp;
    if (smooth > 0.0)
        loss += smooth * (log(m.sum) + m.top - m.mean);
    if (row)
        *row = (float)logp;
    if (grad) {
        bool mine = own >= 0 && own < V;
        float at_target = mine ? (float)(exp((double)z[own] - m.top) / m.sum - smooth / (double)a->i[2] - (1.0 - smooth)) : 0.0f;
        float inverse = (float)(1.0 / m.sum), each = (float)(smooth / (double)a->i[2]), top = (float)m.top;
        BY_TYPE(t, xent_gradient(IM_F32, z, V, V, top, inverse, each, grad), xent_gradient(IM_BF16, z, V, V, top, inverse, each, grad));
        if (mine)
            im_store(t, grad, own, at_target);
    }
    return loss;
}

static void xent_merge_rows(const im_kernel_call *c, int64_t begin, int64_t end, double *loss)
{
    for (int64_t r = begin; r < end; r++)
        loss[r] = xent_merge_one(c, r);
}
