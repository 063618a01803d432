/* Direct convolution, channels last, in tiles of MR consecutive pixels of the output (across the ends of rows and
   images) x NV vectors of VW output channels; scalar input values are broadcast, weights stream from panels.

   x, r, y   [N][H][W][C] with their own batch, row and pixel pitches (floats)
   w         panels [groups * panels per group][KH][KW][C_in / groups][NV*VW], zero padded per group, then
             C_in / groups zeros, which stand in for pixels outside the image; bias padded like the panels
   global    groups that take `share` tiles each, one after the other, pixel tiles innermost or, panels_first,
             panels; local 1 */
#ifndef MR
#define MR 4
#endif
#ifndef NV
#define NV 2
#endif
#ifndef POINTWISE
#define POINTWISE 0
#endif
#define NW (NV * VW)

/* Does something for each pixel i of the tile at p0, which is (n, oh, ow) of the output; the last one is repeated. */
#define FOR_PIXELS(...) { \
  int n = p0 / (OH * OW), oh = p0 / OW % OH, ow = p0 % OW; \
  EACH(i, MR) { \
    __VA_ARGS__ \
    if (p0 + i + 1 < pixels && ++ow == OW) { ow = 0; if (++oh == OH) { oh = 0; n++; } } \
  } }

COEXEC_KERNEL
void conv2d_direct(__global const float* x_, int x_offset, int x_batch, int x_row, int x_pixel,
                   __global const float* restrict w, __global const float* restrict bias,
                   __global const float* r_, int r_offset, int r_batch, int r_row, int r_pixel,
                   __global float* y_, int y_offset, int y_batch, int y_row, int y_pixel,
                   int C_in, int H, int W, int C_out, int OH, int OW, int KH, int KW, int stride_h, int stride_w,
                   int pad_top, int pad_left, int dilation_h, int dilation_w, int pixels, int panels, int total_panels,
                   int share, int panels_first, float alpha, float beta COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  /* C_in and C_out count one group's channels; panels are per group. */
  const int tiles = (pixels + MR - 1) / MR, taps = KH * KW * C_in;
  const int first = get_group_id(0) * share, last = min(first + share, tiles * total_panels);
  const int reach_h = (KH - 1) * dilation_h, reach_w = (KW - 1) * dilation_w;
  __global const float* zeros = w + (size_t)total_panels * taps * NW;
  for (int t = first; t < last; t++) {
    const int panel = panels_first ? t % total_panels : t / tiles;
    const int p0 = (panels_first ? t / total_panels : t % tiles) * MR;
    const int group = panel / panels, channel = panel % panels * NW, co = group * C_out + channel;
    /* Of each pixel: where its window begins, in x and as a row and column of the image; where it lies in y. */
    __global const float* window[MR];
    int ih[MR], iw[MR];
    int inside = 1;
    FOR_PIXELS(
      ih[i] = oh * stride_h - pad_top; iw[i] = ow * stride_w - pad_left;
      inside &= ih[i] >= 0 && iw[i] >= 0 && ih[i] + reach_h < H && iw[i] + reach_w < W;
      window[i] = x_ + x_offset + (long)n * x_batch + (long)ih[i] * x_row + (long)iw[i] * x_pixel + group * C_in;
      EACH(v, NV) PREFETCH_WRITE(y_ + y_offset + (size_t)n * y_batch + (size_t)oh * y_row + (size_t)ow * y_pixel
                                 + co + v * VW);
    )
    vec c[MR][NV];
    EACH(v, NV) { const vec bv = LOADV(bias + panel * NW + v * VW); EACH(i, MR) c[i][v] = bv; }
    __global const float* b = w + (size_t)panel * taps * NW;
    /* Where a window's pixels lie side by side, a row of it is one stretch of values. */
    const int whole_row = inside && x_pixel == C_in && dilation_w == 1;
    const int stretches = whole_row ? 1 : KW, length = whole_row ? KW * C_in : C_in;
    for (int kh = 0; kh < KH; kh++) for (int kw = 0; kw < stretches; kw++) {
      const int down = kh * dilation_h, right = kw * dilation_w;
      const long tap = (long)down * x_row + (long)right * x_pixel;
      __global const float* a[MR];
      int any = inside;
      if (inside) {
        EACH(i, MR) a[i] = window[i] + tap;
      } else {
        EACH(i, MR) {
          const int in = ih[i] + down >= 0 && ih[i] + down < H && iw[i] + right >= 0 && iw[i] + right < W;
          a[i] = in ? window[i] + tap : zeros;
          any |= in;
        }
      }
      if (!any) { b += (size_t)length * NW; continue; }
      for (int k = 0; k < length; k++, b += NW) {
        vec bv[NV];
        EACH(v, NV) { bv[v] = LOADV(b + v * VW); PREFETCH(b + PREFETCH_AHEAD + v * VW); }
        /* The next tile's pixels: too short a stretch each, and too many at once, for the hardware to foresee. */
        if (POINTWISE) PREFETCH(a[0] + MR * stride_w * x_pixel + 16 * k);
        EACH(i, MR) { const vec av = (vec)(a[i][k]); EACH(v, NV) c[i][v] = fma(av, bv[v], c[i][v]); }
      }
    }
    FOR_PIXELS(
      __global const float* r = r_ + r_offset + (size_t)n * r_batch + (size_t)oh * r_row + (size_t)ow * r_pixel + co;
      __global float* y = y_ + y_offset + (size_t)n * y_batch + (size_t)oh * y_row + (size_t)ow * y_pixel + co;
      if (p0 + i < pixels) EACH(v, NV) finish(c[i][v], r + v * VW, y + v * VW, C_out - channel - v * VW, alpha, beta);
    )
  }
  COEXEC_LEAVE;
}
