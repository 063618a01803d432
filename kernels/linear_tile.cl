/* y[M,N] = act(x[M,K] @ w + bias + residual), in tiles of MR rows x NV vectors of VW columns.

   x         row major, x_pitch floats from row to row
   w         panels [N / (NV*VW)][K][NV*VW], zero padded; bias likewise padded
   global    groups that take `share` tiles each, one after the other, row tiles innermost or, panels_first,
             panels; local 1 */
#ifndef MR
#define MR 4
#endif
#ifndef NV
#define NV 2
#endif
#define NW (NV * VW)

COEXEC_KERNEL
void linear_tile(__global const float* x_, int x_offset, int x_pitch,
                 __global const float* restrict w, __global const float* restrict bias,
                 __global const float* r_, int r_offset, int r_pitch,
                 __global float* y_, int y_offset, int y_pitch,
                 int M, int N, int K, int share, int panels_first, float alpha, float beta COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  const int tiles = (M + MR - 1) / MR, panels = (N + NW - 1) / NW;
  const int first = get_group_id(0) * share, last = min(first + share, tiles * panels);
  for (int t = first; t < last; t++) {
    const int panel = panels_first ? t % panels : t / tiles, m0 = (panels_first ? t / panels : t % tiles) * MR;
    const int n0 = panel * NW;
    __global const float* a[MR];
    vec c[MR][NV];
    EACH(v, NV) { const vec b = LOADV(bias + n0 + v * VW); EACH(i, MR) c[i][v] = b; }
    EACH(i, MR) a[i] = x_ + x_offset + (size_t)min(m0 + i, M - 1) * x_pitch;
    EACH(i, MR) EACH(v, NV) PREFETCH_WRITE(y_ + y_offset + (size_t)min(m0 + i, M - 1) * y_pitch + n0 + v * VW);
    __global const float* b = w + (size_t)panel * K * NW;
    for (int k = 0; k < K; k++, b += NW) {
      vec bv[NV];
      EACH(v, NV) { bv[v] = LOADV(b + v * VW); PREFETCH(b + PREFETCH_AHEAD + v * VW); }
      EACH(i, MR) { const vec av = (vec)(a[i][k]); EACH(v, NV) c[i][v] = fma(av, bv[v], c[i][v]); }
    }
    EACH(i, MR) if (m0 + i < M) EACH(v, NV) {
      const int n = n0 + v * VW;
      finish(c[i][v], r_ + r_offset + (size_t)(m0 + i) * r_pitch + n, y_ + y_offset + (size_t)(m0 + i) * y_pitch + n,
             N - n, alpha, beta);
    }
  }
  COEXEC_LEAVE;
}
