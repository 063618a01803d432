/* Direct convolution, channels last: MR neighbouring pixels of an output row x NV vectors of VW output
   channels per work-item; scalar input values are broadcast, weights stream from panels.

   x, r, y   [N][H][W][C] with their own batch, row and pixel pitches (floats)
   w         panels [groups * panels per group][KH][KW][C_in / groups][NV*VW], zero padded per group, then
             C_in / groups zeros, which stand in for pixels outside the image; bias padded like the panels
   global    (pixel tiles, panels) or, panels_first, (panels, pixel tiles); local 1 */
#ifndef MR
#define MR 4
#endif
#ifndef NV
#define NV 2
#endif
#define NW (NV * VW)

COEXEC_KERNEL
void conv2d_direct(__global const float* x_, int x_offset, int x_batch, int x_row, int x_pixel,
                   __global const float* restrict w, __global const float* restrict bias,
                   __global const float* r_, int r_offset, int r_batch, int r_row, int r_pixel,
                   __global float* y_, int y_offset, int y_batch, int y_row, int y_pixel,
                   int C_in, int H, int W, int C_out, int OH, int OW, int KH, int KW, int stride_h, int stride_w,
                   int pad_top, int pad_left, int dilation_h, int dilation_w, int panels, int total_panels,
                   int panels_first, float alpha, float beta COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  /* C_in and C_out count one group's channels; panels are per group. */
  const int panel = get_group_id(panels_first ? 0 : 1);
  int tile = get_group_id(panels_first ? 1 : 0);
  const int tiles = (OW + MR - 1) / MR;
  const int ow = tile % tiles * MR; tile /= tiles;
  const int oh = tile % OH, n = tile / OH;
  const int group = panel / panels, channel = panel % panels * NW;
  __global const float* x = x_ + x_offset + (size_t)n * x_batch + group * C_in;
  __global const float* zeros = w + (size_t)total_panels * KH * KW * C_in * NW;
  __global const float* b = w + (size_t)panel * KH * KW * C_in * NW;
  vec c[MR][NV];
  EACH(v, NV) { const vec bv = LOADV(bias + panel * NW + v * VW); EACH(i, MR) c[i][v] = bv; }
  for (int kh = 0; kh < KH; kh++) {
    const int ih = oh * stride_h - pad_top + kh * dilation_h;
    if (ih < 0 || ih >= H) { b += (size_t)KW * C_in * NW; continue; }
    for (int kw = 0; kw < KW; kw++) {
      const int iw = ow * stride_w - pad_left + kw * dilation_w;
      __global const float* a[MR];
      EACH(i, MR) {
        const int w_i = iw + i * stride_w;
        a[i] = (w_i < 0 || w_i >= W) ? zeros : x + (long)ih * x_row + (long)w_i * x_pixel;
      }
      for (int k = 0; k < C_in; k++, b += NW) {
        vec bv[NV];
        EACH(v, NV) { bv[v] = LOADV(b + v * VW); PREFETCH(b + PREFETCH_ROWS * NW + v * VW); }
        EACH(i, MR) { const vec av = (vec)(a[i][k]); EACH(v, NV) c[i][v] = fma(av, bv[v], c[i][v]); }
      }
    }
  }
  EACH(i, MR) if (ow + i < OW) EACH(v, NV) {
    const int co = channel + v * VW;
    const size_t at = group * C_out + co;
    finish(c[i][v], r_ + r_offset + (size_t)n * r_batch + (size_t)oh * r_row + (size_t)(ow + i) * r_pixel + at,
           y_ + y_offset + (size_t)n * y_batch + (size_t)oh * y_row + (size_t)(ow + i) * y_pixel + at,
           C_out - co, alpha, beta);
  }
  COEXEC_LEAVE;
}
