/* The op kinds: operands in order, constants f[] and i[]. (R) read, (W) written, (M) read and written.
 * n rows = tokens of a micro-batch; A the activation dtype (fp32 or bf16), weights have dtype A too.
 * "acc": i[0] = 1 adds to the output, 0 overwrites it (never reads it). Absent operands: ndim 0.
 * Each kind has a plain C version (tensor/cpu/plain_*.c), the oracle of the fast one.
 */
#ifndef IM_TENSOR_OPS_H
#define IM_TENSOR_OPS_H

#include "tensor/op.h"

/* im_act: imece.h */
typedef enum im_norm { IM_NORM_RMS, IM_NORM_LAYER } im_norm;

/* out(...) (W) = f[0] */
extern const im_op_kind im_op_fill;
/* in (R), out (W): same shape, any strides up to 4 dims; converts between fp32, fp64, bf16, fp16. */
extern const im_op_kind im_op_copy;
/* a (R), b (R), out (W): out = a + b, all A; out may be a or b. */
extern const im_op_kind im_op_add;
/* a (M,K) (R), b (K,N) (R), c (M,N) (W or M), bias (N) (R, optional). Strides express transposes: of the last two strides
 * of a and b one is 1; c's last stride is 1. 3 dims: batched on dim 0. a and b share a dtype; c is fp32 or a's.
 * i[0]: 1 accumulates into c (c fp32). Sums are fp32. */
extern const im_op_kind im_op_matmul;
/* x (n,N) (R), out (N) fp32 (acc): column sums, the gradient of a bias. */
extern const im_op_kind im_op_colsum;
/* ids (n) i32 (R), table (V,D) (R), out (n,D) (W), pos (n) i32 (R, optional), table2 (P,D) (R, optional):
 * out = table[id] + table2[pos]. f[0] scale of table rows (1 usual). An id outside the vocabulary fails the op.
 * A table that is a part of a vocabulary: i[0] its first id, i[1] the whole vocabulary (0: V); an id of another part gives zeros (plus table2's row). */
extern const im_op_kind im_op_embed;
/* ids (n) i32 (R), dy (n,D) (R), dtable (V,D) fp32 (acc, i[0]); i[1] first id of the table, i[2] whole vocabulary (0: V): ids of other parts are left out. Rows are summed in the order of n, whatever the threads. */
extern const im_op_kind im_op_embed_grad;
/* x (n,D) (R), w (D) (R), bias (D) (R, opt), y (n,D) (W), stat fp32 (W): rms (n,1) rstd; layer (n,2) mean, rstd;
 * res (n,D) (R, opt), sum (n,D) (W, opt): sum = x + res is what is normalised. i[1]: im_norm. f[0]: eps. Sums in fp32. */
extern const im_op_kind im_op_norm;
/* x (n,D) (R) (the normalised input, i.e. sum), w (D) (R), stat (R), dy (n,D) (R), dx (n,D) (W), dw (D) fp32 (acc, opt), db (D) fp32 (acc, opt),
 * dres (n,D) (R, opt): dx = dres + gradient. i[0] acc of dw and db, i[1] im_norm. */
extern const im_op_kind im_op_norm_grad;
/* x (n,H,E) (R), y (n,H,E) (W; may be x itself), pos (n) i32 (R), table (P,R) fp32 (R): R = rotary dims, a row is R/2 cosines then
 * R/2 sines. i[1] 1: interleaved pairs (2j,2j+1), 0: halves (j, j+R/2). i[0] 1: the inverse rotation. Dims from R on are copied. */
extern const im_op_kind im_op_rope;
/* RMS norm of queries or keys: of each head alone, or of all heads of a row together, of which those here may be a part.
 * Sum: x (n,H,E) (R), y (n,H,E) (R; may be x), w (H*E) (R, opt), out (n) fp32 (W): f[0] times the sum of x*y*w over the row. Sums in fp32. */
extern const im_op_kind im_op_head_sum;
/* x (n,H,E) (R), w (E), or (H*E) with squares (R), y (n,H,E) (W; may be x), squares (n) fp32 (R, opt): y = w * x / sqrt(mean + f[0]). The mean is that of a
 * head's squares; with `squares` it is squares / i[1]: i[1] columns in all heads of the row, wherever they are. */
extern const im_op_kind im_op_head_norm;
/* x, w as above (R), dy (n,H,E) (R), dx (n,H,E) (W; may be dy), dw fp32, shaped as w (acc, i[0]), squares (n), along (n) fp32 (R, both or neither): along is
 * the sum of dy*w*x over the i[1] columns. f[0] eps; f[1]: the share of along's part that goes to this dx, 1 unless dy is one of several parts
 * of a gradient whose dx are added up. */
extern const im_op_kind im_op_head_norm_grad;
/* A paged key/value cache: tokens of a sequence lie in blocks of so many, anywhere in memory that all sequences share. */
enum { IM_KV_BLOCK = 64 };
static inline int64_t im_kv_blocks(int64_t tokens)
{
    return (tokens + IM_KV_BLOCK - 1) / IM_KV_BLOCK;
}
/* q (B,Tq,H,E), k (B,Tk,K,E), v (B,Tk,K,E) (R), pos_q (B,Tq), pos_k (B,Tk) i32 (R), seg_q, seg_k i32 (R, both or neither),
 * o (B,Tq,H,E) (W), lse (B,Tq,H) fp32 (W). A query sees keys with pos_k <= pos_q (i[0] 1: causal), pos_q - pos_k < i[1] (0: no
 * window) and equal segments. H is a multiple of K. f[0] scale of scores, f[1] dropout p on probabilities, i[2] dropout seed, i[3] site,
 * i[4] 1: only the first now->kv_len keys count, i[5] first sample of this micro-batch in the step's batch, i[6] global number of head 0
 * (dropout is keyed by global sample, head, positions), i[7] heads in all when ALiBi's slopes (im_alibi_slope) times pos_k - pos_q are added to the
 * scores, 0: they are not. With table (B,blocks) i32 (R, opt): k and v are (N,IM_KV_BLOCK,K,E), and keys i*IM_KV_BLOCK.. of sequence b lie in
 * block table[b,i]; the bits are those of keys that lie in one piece. Never stores Tq x Tk. A query without a visible key gives o 0 and lse -inf. */
extern const im_op_kind im_op_attention;
/* 2^-(8/n) for head 0 of n, a power of two; its powers for the others; further heads fall between (Press et al., 2021, and BLOOM). */
double im_alibi_slope(int64_t head, int64_t heads);
/* q k v pos_q pos_k seg_q seg_k o lse as above (R), do (B,Tq,H,E) (R), dq (B,Tq,H,E), dk, dv (B,Tk,K,E) (W). Same constants. */
extern const im_op_kind im_op_attention_grad;
/* x (n,F) (R), y (n,F) (W). i[0] im_act. */
extern const im_op_kind im_op_act;
/* x (n,F) (R), dy (n,F) (R), dx (n,F) (W; may be dy). i[0] im_act. */
extern const im_op_kind im_op_act_grad;
/* h (n,2F) (R): gate in columns 0..F, up in F..2F; y (n,F) (W) = act(gate) * up. i[0] im_act. */
extern const im_op_kind im_op_glu;
/* h (n,2F) (R), dy (n,F) (R), dh (n,2F) (W). i[0] im_act. */
extern const im_op_kind im_op_glu_grad;
/* x (n,D) (R), y (n,D) (W; may be x), res (n,D) (R, opt): y = res + x * keep/(1-p). f[0] p. Key: i[0] seed, i[1] site, row r is sample
 * now->sample0 + i[3] + r / i[2], position r % i[2], where r counts from i[5]; column i[4] + c. Its own backward (on dy, without res). */
extern const im_op_kind im_op_dropout;
/* logits (n,V) fp32 (R), target (n) i32 (R; < 0 is not counted), loss f64 (1) (acc, i[1]: 1 adds), dlogits (n,V) A (W, opt; may be logits
 * when fp32), row (n) fp32 (W, opt): log-probability of the target (0 where not counted). i[0]: real vocabulary Vr <= V (columns beyond are not in the softmax and get
 * gradient 0), f[0] label smoothing s: loss = (1-s)*nll + s*mean over Vr of -log p. Loss and gradients are sums over rows.
 * A target >= Vr fails the op. */
extern const im_op_kind im_op_xent;
/* Cross-entropy over a split vocabulary, in two parts. Stat: logits (n,V) fp32 (R) of ids i[0] .. i[0]+V, target (n) i32 (R), stat (n,4) f64 (W): largest logit, sum of
 * exp(logit - largest), the target's logit (-inf when another part has it), sum of the logits. i[2]: whole vocabulary; a target beyond fails the op. */
extern const im_op_kind im_op_xent_stat;
/* Merge: logits (n,V) fp32 (R), target (n) (R), stats (P,n,4) f64 (R) of all parts in order, loss f64 (1) (acc, i[1]), dlogits (n,V) A (W, opt; may be logits), row (n) fp32
 * (W, opt). i[0] first id here, i[2] whole vocabulary, f[0] label smoothing. Otherwise as im_op_xent. */
extern const im_op_kind im_op_xent_merge;
/* target (n) i32 (R), count f64 (1) (acc, i[0]): how many are >= 0. */
extern const im_op_kind im_op_count;
/* x (n) fp32 (R), out f64 (1) (acc, i[0]): sum of squares, in f64, blocks in a fixed order whatever the threads. */
extern const im_op_kind im_op_sumsq;
/* sumsq f64 (1) (R), count f64 (1) (R), loss f64 (1) (R), hyper f64 (8) (R), out f64 (8) (M). hyper: see im_hyper_slot. out: see im_clip_slot.
 * norm = sqrt(sumsq)/count; scale = min(1, clip/(norm + 1e-6)) / count (clip 0: no clipping; as torch.nn.utils.clip_grad_norm_); count 0: scale 0.
 * finite = isfinite(sumsq) && isfinite(loss) && isfinite(count). t is incremented when finite. */
extern const im_op_kind im_op_clip;
typedef enum im_hyper_slot { IM_HYPER_LR, IM_HYPER_CLIP, IM_HYPER_COUNT = 8 } im_hyper_slot;
typedef enum im_clip_slot {
    IM_CLIP_SCALE,
    IM_CLIP_NORM,
    IM_CLIP_FINITE,
    IM_CLIP_T /* Adam's step, kept across steps */,
    IM_CLIP_LOSS /* mean */,
    IM_CLIP_TOKENS,
    IM_CLIP_COUNT = 8
} im_clip_slot;
/* w A (M), master fp32 (M; opt: absent when w is fp32), m fp32 (M), v fp32 (M), grad fp32 (R), clip f64 (8) (R), hyper f64 (8) (R), bad f64 (1) (M;
 * opt); all 1-D, the first five of one length.
 * AdamW as torch.optim.AdamW with gradient grad*scale and t = clip[IM_CLIP_T]; f: beta1, beta2, eps, weight decay. finite 0: nothing changes.
 * bad becomes 1 when a weight (master) that was a finite number is none any more; otherwise it stays. */
extern const im_op_kind im_op_adamw;
/* logits (n,V) fp32 (R), id (n) i32 (W), logprob (n) fp32 (W; of the chosen id under the plain softmax). f[0] temperature (0: greedy), f[1] top-p,
 * i[0] top-k (0: all), i[1] seed, i[2] real vocabulary. Random key: seed, now->pos, row. Ties: the lower id. */
extern const im_op_kind im_op_sample;
/* k (B,T,K,E) (R), cache (B,M,K,E) (M): cache[b, now->pos + t] = k[b, t]. With table (B,blocks) i32 (R, opt): cache (N,IM_KV_BLOCK,K,E), and tokens
 * i*IM_KV_BLOCK.. of sequence b lie in block table[b,i]. A number that is none fails the op. */
extern const im_op_kind im_op_kv_write;
/* x (any, 1-D) (R), out f64 (2) (W): index of the first value that is not finite (-1: none), and the value. */
extern const im_op_kind im_op_finite;

#endif
