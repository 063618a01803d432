/* Convolution in groups of GROUP input and as many output channels (depthwise: of one), channels last: MR
   neighbouring pixels of an output row x VW channels per step, all channels of a tile one after the other. A group's
   inputs come to all of its channels by a shuffle within the vector.

   w         [KH][KW][GROUP][channels padded to VW], bias padded likewise
   global    groups that take `share` pixel tiles each, one after the other; local 1 */
#ifndef MR
#define MR 4
#endif
#ifndef GROUP
#define GROUP 1
#endif

typedef COEXEC_CAT(uint, VW) lanes_of;
#if VW == 16
#define LANES ((lanes_of)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#elif VW == 8
#define LANES ((lanes_of)(0, 1, 2, 3, 4, 5, 6, 7))
#else
#define LANES ((lanes_of)(0, 1, 2, 3))
#endif
/* Input g of each channel's group. */
#if GROUP == 1
#define INPUT(v, g) (v)
#else
#define INPUT(v, g) shuffle(v, (LANES & (lanes_of)(~(GROUP - 1))) + (lanes_of)(g))
#endif

COEXEC_KERNEL
void conv2d_depthwise(__global const float* x_, int x_offset, int x_batch, int x_row, int x_pixel,
                      __global const float* restrict w, __global const float* restrict bias,
                      __global const float* r_, int r_offset, int r_batch, int r_row, int r_pixel,
                      __global float* y_, int y_offset, int y_batch, int y_row, int y_pixel,
                      int C, int H, int W, int OH, int OW, int KH, int KW, int stride_h, int stride_w,
                      int pad_top, int pad_left, int dilation_h, int dilation_w, int w_pitch, int tiles, int share,
                      float alpha, float beta COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  const int across = (OW + MR - 1) / MR;
  const int first = get_group_id(0) * share, last = min(first + share, tiles);
  for (int t = first; t < last; t++) {
    const int ow = t % across * MR, oh = t / across % OH, n = t / across / OH;
    const int top = oh * stride_h - pad_top, left = ow * stride_w - pad_left;
    const int inside = left >= 0 && left + (MR - 1) * stride_w + (KW - 1) * dilation_w < W;
    __global const float* x = x_ + x_offset + (long)n * x_batch + (long)left * x_pixel;
    __global const float* r = r_ + r_offset + (size_t)n * r_batch + (size_t)oh * r_row + (size_t)ow * r_pixel;
    __global float* y = y_ + y_offset + (size_t)n * y_batch + (size_t)oh * y_row + (size_t)ow * y_pixel;
    for (int c0 = 0; c0 < C; c0 += VW) {
      vec c[MR];
      { const vec bv = LOADV(bias + c0); EACH(i, MR) c[i] = bv; }
      EACH(i, MR) PREFETCH_WRITE(y + (MR + i) * y_pixel + c0);
      for (int kh = 0; kh < KH; kh++) {
        const int ih = top + kh * dilation_h;
        if (ih < 0 || ih >= H) continue;
        __global const float* row = x + (long)ih * x_row + c0;
        __global const float* b = w + (size_t)kh * KW * GROUP * w_pitch + c0;
        /* What the next tile reads and this one has not, in the rows that no earlier output row has read. */
        if (kh >= KH - stride_h)
          for (int j = KW - stride_w; j < KW; j++) EACH(i, MR) PREFETCH(row + ((MR + i) * stride_w + j) * x_pixel);
        if (inside && c0 + VW <= C) {
          for (int kw = 0; kw < KW; kw++, row += dilation_w * x_pixel, b += GROUP * w_pitch) {
            vec d[MR];
            EACH(i, MR) d[i] = LOADV(row + i * stride_w * x_pixel);
            EACH(g, GROUP) { const vec wv = LOADV(b + g * w_pitch); EACH(i, MR) c[i] = fma(INPUT(d[i], g), wv, c[i]); }
          }
        } else {
          for (int kw = 0; kw < KW; kw++, row += dilation_w * x_pixel, b += GROUP * w_pitch)
            EACH(i, MR) {
              const int iw = left + kw * dilation_w + i * stride_w;
              if (iw >= 0 && iw < W) {
                const vec d = load_some(row + i * stride_w * x_pixel, C - c0);
                EACH(g, GROUP) c[i] = fma(INPUT(d, g), LOADV(b + g * w_pitch), c[i]);
              }
            }
        }
      }
      EACH(i, MR) if (ow + i < OW) finish(c[i], r + i * r_pixel + c0, y + i * y_pixel + c0, C - c0, alpha, beta);
    }
  }
  COEXEC_LEAVE;
}
