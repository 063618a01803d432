/* 3x3 convolution, stride 1, as Winograd F(WM x WM, 3x3), channels last, in one launch: each work-group takes a
   range of tiles and of output panels, and for a block of tiles at a time transforms the input, multiplies (one
   matrix product per element of the tile) and transforms the products back, all in scratch memory of its own
   that stays in the cache.

   x, r, y   [N][H][W][C] with their own batch, row and pixel pitches (floats); C_in is a multiple of VW
   w         panels [WA*WA][panels][C_in][NV*VW] of transformed weights, zero padded; bias padded like the panels
   scratch   per work-group: inputs [WA*WA][rows][C_in], then products [WA*WA][rows][own panels][NV*VW]
   global    (tile ranges, panel ranges); local 1

   Method: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv 1509.09308. */
#ifndef MR
#define MR 4
#endif
#ifndef NV
#define NV 2
#endif
#ifndef WM
#define WM 4
#endif
#define NW (NV * VW)
#define WA (WM + 2)
#define WA2 (WA * WA)

#if WM == 4
#define TO_WINOGRAD(d, s) { \
  const vec d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s], d4 = d[4 * s], d5 = d[5 * s]; \
  const vec a = fma(d2, (vec)(-4.0f), d4), b = fma(d1, (vec)(-4.0f), d3), e = d4 - d2, f = 2.0f * (d3 - d1); \
  d[0] = fma(d0, (vec)(4.0f), fma(d2, (vec)(-5.0f), d4)); \
  d[s] = a + b; d[2 * s] = a - b; d[3 * s] = e + f; d[4 * s] = e - f; \
  d[5 * s] = fma(d1, (vec)(4.0f), fma(d3, (vec)(-5.0f), d5)); }
#define FROM_WINOGRAD(o, t, d, s) { \
  const vec a = d[s] + d[2 * s], b = d[s] - d[2 * s], e = d[3 * s] + d[4 * s], f = d[3 * s] - d[4 * s]; \
  o[0] = d[0] + a + e; o[t] = fma(f, (vec)(2.0f), b); o[2 * t] = fma(e, (vec)(4.0f), a); \
  o[3 * t] = fma(f, (vec)(8.0f), b) + d[5 * s]; }
#else
#define TO_WINOGRAD(d, s) { \
  const vec d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s]; \
  d[0] = d0 - d2; d[s] = d1 + d2; d[2 * s] = d2 - d1; d[3 * s] = d1 - d3; }
#define FROM_WINOGRAD(o, t, d, s) { \
  const vec a = d[s], b = d[2 * s]; \
  o[0] = d[0] + a + b; o[t] = a - b - d[3 * s]; }
#endif

/* One row of MR tiles x NV vectors: products[i] = sum over k of inputs[i][k] * weights[k]. Meanwhile a part of the
   next panel's weights is fetched, `step` floats at a time, so that they arrive evenly over the passes of this one. */
inline void multiply(__global const float* inputs, __global const float* restrict b, __global float* products,
                     int C_in, int pitch, __global const float* next, int step) {
  vec c[MR][NV];
  EACH(i, MR) EACH(v, NV) c[i][v] = (vec)(0.0f);
  for (int k = 0; k < C_in; k++, b += NW) {
    vec bv[NV];
    EACH(v, NV) { bv[v] = LOADV(b + v * VW); PREFETCH(next); next += step; }
    EACH(i, MR) { const vec av = (vec)(inputs[i * C_in + k]); EACH(v, NV) c[i][v] = fma(av, bv[v], c[i][v]); }
  }
  EACH(i, MR) EACH(v, NV) STOREV(c[i][v], products + (size_t)i * pitch + v * VW);
}

COEXEC_KERNEL
void conv2d_winograd(__global const float* x_, int x_offset, int x_batch, int x_row, int x_pixel,
                     __global const float* restrict w, __global const float* restrict bias,
                     __global const float* r_, int r_offset, int r_batch, int r_row, int r_pixel,
                     __global float* y_, int y_offset, int y_batch, int y_row, int y_pixel,
                     __global float* scratch, int C_in, int H, int W, int C_out, int OH, int OW, int pad_top,
                     int pad_left, int tiles, int block, int rows, int panels, int own_panels,
                     float alpha, float beta COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  const int across = (OW + WM - 1) / WM, down = (OH + WM - 1) / WM;
  const int per_group = (tiles + get_num_groups(0) - 1) / get_num_groups(0);
  const int first = get_group_id(0) * per_group, last = min(tiles, first + per_group);
  const int p0 = get_group_id(1) * own_panels, p1 = min(panels, p0 + own_panels);
  const int pitch = own_panels * NW;
  __global float* inputs = scratch +
      (size_t)(get_group_id(1) * get_num_groups(0) + get_group_id(0)) * WA2 * rows * (C_in + pitch);
  __global float* products = inputs + (size_t)WA2 * rows * C_in;
  for (int t0 = first; t0 < last; t0 += block) {
    const int count = min(block, last - t0);
    for (int t = 0; t < count; t++) {
      const int n = (t0 + t) / (across * down), ty = (t0 + t) / across % down, tx = (t0 + t) % across;
      const int ih = ty * WM - pad_top, iw = tx * WM - pad_left;
      const int inside = ih >= 0 && iw >= 0 && ih + WA <= H && iw + WA <= W;
      __global const float* x = x_ + x_offset + (long)n * x_batch + (long)ih * x_row + (long)iw * x_pixel;
      for (int c = 0; c < C_in; c += VW) {
        vec d[WA2];
        if (inside) {
          EACH(i, WA) EACH(j, WA) d[i * WA + j] = LOADV(x + i * x_row + j * x_pixel + c);
        } else {
          EACH(i, WA) EACH(j, WA) {
            const int in = ih + i >= 0 && ih + i < H && iw + j >= 0 && iw + j < W;
            d[i * WA + j] = (vec)(0.0f);
            if (in) d[i * WA + j] = LOADV(x + i * x_row + j * x_pixel + c);
          }
        }
        EACH(j, WA) TO_WINOGRAD((d + j), WA)
        EACH(i, WA) TO_WINOGRAD((d + i * WA), 1)
        EACH(e, WA2) STOREV(d[e], inputs + ((size_t)e * rows + t) * C_in + c);
      }
    }
    const int passes = (count + MR - 1) / MR;
    const int step = (VW + passes - 1) / passes;
    /* Rows beyond the block's last tile hold what was there before; their products are never read. */
    for (int e = 0; e < WA2; e++)
      for (int p = p0; p < p1; p++)
        for (int t = 0; t < count; t += MR)
          multiply(inputs + ((size_t)e * rows + t) * C_in, w + ((size_t)e * panels + p) * C_in * NW,
                   products + ((size_t)e * rows + t) * pitch + (p - p0) * NW, C_in, pitch,
                   w + ((size_t)e * panels + p + 1) * C_in * NW + (size_t)C_in * NW * (t / MR) / passes, step);
    for (int t = 0; t < count; t++) {
      const int n = (t0 + t) / (across * down), ty = (t0 + t) / across % down, tx = (t0 + t) % across;
      __global const float* r = r_ + r_offset + (size_t)n * r_batch;
      __global float* y = y_ + y_offset + (size_t)n * y_batch;
      for (int c = p0 * NW; c < min(C_out, p1 * NW); c += VW) {
        vec d[WA2], h[WM * WA];
        const vec bv = LOADV(bias + c);
        EACH(e, WA2) d[e] = LOADV(products + ((size_t)e * rows + t) * pitch + c - p0 * NW);
        EACH(j, WA) FROM_WINOGRAD((h + j), WA, (d + j), WA)
        EACH(i, WM) {
          vec o[WM];
          FROM_WINOGRAD(o, 1, (h + i * WA), 1)
          EACH(j, WM) {
            const int oh = ty * WM + i, ow = tx * WM + j;
            if (oh < OH && ow < OW)
              finish(o[j] + bv, r + (size_t)oh * r_row + (size_t)ow * r_pixel + c,
                     y + (size_t)oh * y_row + (size_t)ow * y_pixel + c, C_out - c, alpha, beta);
          }
        }
      }
    }
  }
  COEXEC_LEAVE;
}
