/* y = softmax(scale * q @ k) @ v for one head and a range of its queries per work-item, MR queries at a time.

   q, y, v   [B][H][rows][columns], columns side by side, all other pitches their own
   k         [B][H][D][S] with any pitches: it is copied first, S padded to whole vectors
   scratch   per work-item: k as [D][S padded], then the weights of MR queries [MR][S padded]
   global    (query ranges, B * H); local 1 */
#ifndef MR
#define MR 4
#endif
#ifndef NV
#define NV 2
#endif
#define NW (NV * VW)

/* out[i][0..NW) = sum over k of a[i][k] * b[k][0..NW), `rows` of MR rows valid, `valid` columns of b and out. */
inline void multiply(__global const float* a, int a_pitch, __global const float* b, int b_pitch, __global float* out,
                     int out_pitch, int depth, int rows, int valid) {
  vec c[MR][NV];
  EACH(i, MR) EACH(v, NV) c[i][v] = (vec)(0.0f);
  for (int k = 0; k < depth; k++, b += b_pitch) {
    vec bv[NV];
    EACH(v, NV) bv[v] = load_some(b + v * VW, valid - v * VW);
    EACH(i, MR) { const vec av = (vec)(a[min(i, rows - 1) * a_pitch + k]); EACH(v, NV) c[i][v] = fma(av, bv[v], c[i][v]); }
  }
  EACH(i, MR) if (i < rows) EACH(v, NV) store_some(c[i][v], out + (size_t)i * out_pitch + v * VW, valid - v * VW);
}

COEXEC_KERNEL
void attention_tile(__global const float* q_, int q_offset, int q_batch, int q_head, int q_row,
                    __global const float* k_, int k_offset, int k_batch, int k_head, int k_row, int k_column,
                    __global const float* v_, int v_offset, int v_batch, int v_head, int v_row,
                    __global float* y_, int y_offset, int y_batch, int y_head, int y_row,
                    __global float* scratch, int H, int T, int S, int D, int E, int queries, float scale COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  const int b = get_group_id(1) / H, h = get_group_id(1) % H;
  const int first = get_group_id(0) * queries, last = min(T, first + queries);
  const int wide = (S + NW - 1) / NW * NW;
  __global float* keys = scratch + (size_t)(get_group_id(1) * get_num_groups(0) + get_group_id(0)) * (D + MR) * wide;
  __global float* weights = keys + (size_t)D * wide;
  __global const float* q = q_ + q_offset + (size_t)b * q_batch + (size_t)h * q_head;
  __global const float* k = k_ + k_offset + (size_t)b * k_batch + (size_t)h * k_head;
  __global const float* v = v_ + v_offset + (size_t)b * v_batch + (size_t)h * v_head;
  __global float* y = y_ + y_offset + (size_t)b * y_batch + (size_t)h * y_head;
  for (int d = 0; d < D; d++)
    for (int s = 0; s < wide; s++)
      keys[d * wide + s] = s < S ? k[(size_t)d * k_row + (size_t)s * k_column] * scale : 0.0f;
  for (int t = first; t < last; t += MR) {
    const int rows = min(MR, last - t);
    for (int s = 0; s < wide; s += NW)
      multiply(q + (size_t)t * q_row, q_row, keys + s, wide, weights + s, wide, D, rows, NW);
    for (int i = 0; i < rows; i++) {
      __global float* w = weights + i * wide;
      for (int s = S; s < wide; s++) w[s] = -INFINITY;
      vec most = (vec)(-INFINITY), total = (vec)(0.0f);
      for (int s = 0; s < wide; s += VW) most = fmax(most, LOADV(w + s));
      const float top = max_of(most);
      for (int s = 0; s < wide; s += VW) { const vec e = exp(LOADV(w + s) - top); STOREV(e, w + s); total += e; }
      const float inverse = 1.0f / sum_of(total);
      for (int s = 0; s < wide; s += VW) STOREV(LOADV(w + s) * inverse, w + s);
    }
    for (int e = 0; e < E; e += NW)
      multiply(weights, wide, v + e, v_row, y + (size_t)t * y_row + e, y_row, S, rows, E - e);
  }
  COEXEC_LEAVE;
}
