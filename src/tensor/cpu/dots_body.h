/* dots_body: dot products of an fp32 row with bf16 rows, once per instruction set. Included behind vec.h. */

enum { DOTS_ROWS = 4, DOTS_LINE = 32 }; /* DOTS_LINE: bf16 values of a cache line */

/* Rows [0, R) of w, R up to DOTS_ROWS: a constant, so that the sums stay in registers. */
VEC void dots_few(const float *restrict a, const uint16_t *restrict w, int64_t ldw, int64_t K, int R, float *restrict out)
{
    vf sum[DOTS_ROWS];
    IM_UNROLL
    for (int r = 0; r < R; r++)
        sum[r] = vf_set(0.0f);
    for (int64_t k = 0; k < K; k += IM_VEC) {
        int64_t n = vec_left(K, k);
        vf x = n == IM_VEC ? vf_load(a + k) : vf_load_n(a + k, n);
        IM_UNROLL
        for (int r = 0; r < R; r++)
            sum[r] = vf_fma(x, vf_get(IM_BF16, w + r * ldw, k, n), sum[r]);
    }
    IM_UNROLL
    for (int r = 0; r < R; r++)
        out[r] = vf_sum(sum[r]);
}

/* out[n] = a . w[n] for N rows of w, four at once; the next four are asked for before: alone the processor does not look far enough ahead. */
static void dots_bf16(const float *restrict a, const uint16_t *restrict w, int64_t ldw, int64_t N, int64_t K, float *restrict out)
{
    int64_t n = 0;
    for (; n + DOTS_ROWS <= N; n += DOTS_ROWS) {
        const uint16_t *row = w + n * ldw;
        for (int64_t r = DOTS_ROWS; r < 2 * DOTS_ROWS && n + 2 * DOTS_ROWS <= N; r++)
            for (int64_t k = 0; k < K; k += DOTS_LINE)
                __builtin_prefetch(row + r * ldw + k, 0, 2);
        dots_few(a, row, ldw, K, DOTS_ROWS, out + n);
    }
    for (; n < N; n++)
        dots_few(a, w + n * ldw, ldw, K, 1, out + n);
}
