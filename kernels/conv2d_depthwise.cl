/* Depthwise convolution (one input channel per output channel), channels last: MR neighbouring pixels of an
   output row x VW channels per step, all channels of the tile in one work-item.

   w         [KH][KW][channels padded to VW], bias padded likewise
   global    (pixel tiles); local 1 */
#ifndef MR
#define MR 4
#endif

inline vec load_some(__global const float* p, int valid) {
  if (valid >= VW) return LOADV(p);
  float lanes[VW];
  for (int i = 0; i < VW; i++) lanes[i] = i < valid ? p[i] : 0.0f;
  return LOADV(lanes);
}

COEXEC_KERNEL
void conv2d_depthwise(__global const float* x_, int x_offset, int x_batch, int x_row, int x_pixel,
                      __global const float* restrict w, __global const float* restrict bias,
                      __global const float* r_, int r_offset, int r_batch, int r_row, int r_pixel,
                      __global float* y_, int y_offset, int y_batch, int y_row, int y_pixel,
                      int C, int H, int W, int OH, int OW, int KH, int KW, int stride_h, int stride_w,
                      int pad_top, int pad_left, int dilation_h, int dilation_w, int w_pitch,
                      float alpha, float beta COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  int tile = get_group_id(0);
  const int tiles = (OW + MR - 1) / MR;
  const int ow = tile % tiles * MR; tile /= tiles;
  const int oh = tile % OH, n = tile / OH;
  __global const float* x = x_ + x_offset + (size_t)n * x_batch;
  for (int c0 = 0; c0 < C; c0 += VW) {
    vec c[MR];
    { const vec bv = LOADV(bias + c0); EACH(i, MR) c[i] = bv; }
    for (int kh = 0; kh < KH; kh++) {
      const int ih = oh * stride_h - pad_top + kh * dilation_h;
      if (ih < 0 || ih >= H) continue;
      __global const float* row = x + (long)ih * x_row + c0;
      for (int kw = 0; kw < KW; kw++) {
        const vec wv = LOADV(w + (kh * KW + kw) * w_pitch + c0);
        const int iw = ow * stride_w - pad_left + kw * dilation_w;
        EACH(i, MR) {
          const int w_i = iw + i * stride_w;
          if (w_i >= 0 && w_i < W) c[i] = fma(load_some(row + (long)w_i * x_pixel, C - c0), wv, c[i]);
        }
      }
    }
    EACH(i, MR) if (ow + i < OW)
      finish(c[i], r_ + r_offset + (size_t)n * r_batch + (size_t)oh * r_row + (size_t)(ow + i) * r_pixel + c0,
             y_ + y_offset + (size_t)n * y_batch + (size_t)oh * y_row + (size_t)(ow + i) * y_pixel + c0,
             C - c0, alpha, beta);
  }
  COEXEC_LEAVE;
}
