/* tile: small matrix products in fp32 for attention's tiles, packing and transposing. Included once per instruction set.
 *
 * All products have one form, C[m][n] (+)= sum over k of A[m][k] B[k][n]: elements of A are broadcast (any two strides), rows of B and C
 * are vectors. Attention keeps scores transposed (keys x queries), so that no operand is ever packed for a product: S^T = K Q^T and
 * O^T += V^T P^T broadcast from K and V as they lie, and the softmax runs down columns, one query a lane.
 */

enum {
    TILE = IM_ATTN_TILE,
    TILE_VECS = TILE / IM_VEC,
    MM_ROWS = 6,                    /* rows of C held in registers */
    PREFETCH = 12,                  /* rows ahead */
    MM_VECS = IM_VEC == 16 ? 4 : 2, /* vectors of a row held in registers: 6 x 4 of 32, 6 x 2 of 16 */
};

/* A block of M x NV vectors of C, all in registers. */
VEC void mm_block(const int M, const int NV, int64_t k, const float *a, int64_t am, int64_t ak, const float *b, int64_t ldb, float *c, int64_t ldc,
                  bool add)
{
    vf acc[MM_ROWS][MM_VECS];
    IM_UNROLL
    for (int i = 0; i < M; i++) {
        IM_UNROLL
        for (int j = 0; j < NV; j++)
            acc[i][j] = add ? vf_load(c + i * ldc + j * IM_VEC) : vf_set(0.0f);
    }
    for (int64_t p = 0; p < k; p++) {
        vf row[MM_VECS];
        IM_UNROLL
        for (int j = 0; j < NV; j++)
            row[j] = vf_load(b + j * IM_VEC);
        IM_UNROLL
        for (int i = 0; i < M; i++) {
            vf x = vf_set(a[i * am]);
            IM_UNROLL
            for (int j = 0; j < NV; j++)
                acc[i][j] = vf_fma(x, row[j], acc[i][j]);
        }
        a += ak;
        b += ldb;
    }
    IM_UNROLL
    for (int i = 0; i < M; i++) {
        IM_UNROLL
        for (int j = 0; j < NV; j++)
            vf_store(c + i * ldc + j * IM_VEC, acc[i][j]);
    }
}

/* All rows of a panel of NV vectors. */
VEC void mm_panel(const int NV, int64_t m, int64_t k, const float *a, int64_t am, int64_t ak, const float *b, int64_t ldb, float *c, int64_t ldc,
                  bool add)
{
    int64_t i = 0;
    for (; i + MM_ROWS <= m; i += MM_ROWS)
        mm_block(MM_ROWS, NV, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add);
    switch (m - i) {
    case 5: mm_block(5, NV, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add); break;
    case 4: mm_block(4, NV, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add); break;
    case 3: mm_block(3, NV, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add); break;
    case 2: mm_block(2, NV, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add); break;
    case 1: mm_block(1, NV, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add); break;
    default: break;
    }
}

/* m rows, nv vectors of columns, k products. add: C is read, else only written. */
static void mm(int64_t m, int64_t nv, int64_t k, const float *a, int64_t am, int64_t ak, const float *b, int64_t ldb, float *c, int64_t ldc, bool add)
{
    int64_t j = 0;
    for (; j + MM_VECS <= nv; j += MM_VECS)
        mm_panel(MM_VECS, m, k, a, am, ak, b + j * IM_VEC, ldb, c + j * IM_VEC, ldc, add);
#if IM_VEC == 16
    if (j + 2 <= nv) {
        mm_panel(2, m, k, a, am, ak, b + j * IM_VEC, ldb, c + j * IM_VEC, ldc, add);
        j += 2;
    }
#endif
    if (j < nv)
        mm_panel(1, m, k, a, am, ak, b + j * IM_VEC, ldb, c + j * IM_VEC, ldc, add);
}

/* 8 x 8, by 256-bit shuffles on both sets. */
VEC void transpose8(const float *from, int64_t ldf, float *to, int64_t ldt)
{
    __m256 r[8], s[8];
    IM_UNROLL
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(from + i * ldf);
    IM_UNROLL
    for (int i = 0; i < 4; i++) { /* pairs */
        s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    IM_UNROLL
    for (int i = 0; i < 2; i++) { /* fours */
        r[4 * i] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0xEE);
        r[4 * i + 2] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0xEE);
    }
    IM_UNROLL
    for (int i = 0; i < 4; i++) { /* halves */
        _mm256_storeu_ps(to + i * ldt, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * ldt, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* from (rows, cols) to (cols, rows); both multiples of 8. */
static void transpose(const float *from, int64_t ldf, int64_t rows, int64_t cols, float *to, int64_t ldt)
{
    for (int64_t i = 0; i < rows; i += 8)
        for (int64_t j = 0; j < cols; j += 8)
            transpose8(from + i * ldf + j, ldf, to + j * ldt + i, ldt);
}

VEC void pack_row(im_dtype t, const void *from, int64_t E, int64_t pad, float scale, float *to)
{
    vf s = vf_set(scale);
    for (int64_t e = 0; e < pad; e += IM_VEC) {
        int64_t w = vec_left(E, e);
        vf_store(to + e, w > 0 ? vf_mul(s, vf_get(t, from, e, w)) : vf_set(0.0f));
    }
}

/* Asks for a head's row early: rows of tokens lie pages apart, where the hardware does not guess the next one. */
VEC void row_prefetch(const im_heads *x, const void *row, int64_t ahead, int64_t E)
{
    int64_t size = x->type == IM_BF16 ? 2 : 4;
    const char *p = (const char *)row + ahead * x->t * size;
    for (int64_t at = 0; at < E * size; at += 64)
        _mm_prefetch(p + at, _MM_HINT_T0);
}

/* Tokens [first, first + n) of a head as fp32 rows of pad(E), times scale; rows n..fill are zeroed. */
static void pack(const im_heads *x, int64_t b, int64_t h, int64_t first, int64_t n, int64_t fill, int64_t E, float scale, float *to)
{
    int64_t pad = im_pad(E);
    for (int64_t i = 0; i < n; i++) {
        const void *row = im_head_row(x, b, first + i, h);
        if (i + PREFETCH < n)
            row_prefetch(x, row, PREFETCH, E);
        if (x->type == IM_BF16)
            pack_row(IM_BF16, row, E, pad, scale, to + i * pad);
        else
            pack_row(IM_F32, row, E, pad, scale, to + i * pad);
    }
    if (fill > n)
        memset(to + n * pad, 0, (size_t)((fill - n) * pad) * sizeof(float));
}

/* The other way: row i of `from` times `scale` to token first + i. */
static void unpack(const im_heads *x, int64_t b, int64_t h, int64_t first, int64_t n, int64_t E, float scale, const float *from)
{
    vf s = vf_set(scale);
    for (int64_t i = 0; i < n; i++) {
        void *row = im_head_row(x, b, first + i, h);
        const float *f = from + i * im_pad(E);
        for (int64_t e = 0; e < E; e += IM_VEC) {
            vf v = vf_mul(s, vf_load(f + e));
            if (x->type == IM_BF16)
                vf_put(IM_BF16, row, e, vec_left(E, e), v);
            else
                vf_put(IM_F32, row, e, vec_left(E, e), v);
        }
    }
}
