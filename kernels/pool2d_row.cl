/* Max or average pooling, channels last: a range of an output row x a range of channels per work-item.

   x, y      [N][H][W][C] with their own batch, row and pixel pitches (floats)
   KH, KW    the window: its loops are unrolled where it lies inside the image
   global    (pixel ranges of all rows, channel ranges); local 1 */
#ifndef AVERAGE
#define AVERAGE 0
#endif
#ifndef KH
#define KH 3
#endif
#ifndef KW
#define KW 3
#endif
#if AVERAGE
#define JOIN(total, v) ((total) + (v))
#else
#define JOIN(total, v) maximum(total, v)
#endif

/* NaN if either is. */
inline vec maximum(vec a, vec b) { return b > a || b != b ? b : a; }

/* First and end of the taps from `start` on, `dilation` apart, that lie in [low, high). */
inline int2 taps_inside(int start, int taps, int dilation, int low, int high) {
  const int first = start < low ? (low - start + dilation - 1) / dilation : 0;
  const int end = start < high ? (high - start + dilation - 1) / dilation : 0;
  return (int2)(min(first, taps), max(min(end, taps), min(first, taps)));
}

COEXEC_KERNEL
void pool2d_row(__global const float* x_, int x_offset, int x_batch, int x_row, int x_pixel,
                __global float* y_, int y_offset, int y_batch, int y_row, int y_pixel,
                int C, int H, int W, int OH, int OW, int stride_h, int stride_w,
                int pad_top, int pad_left, int dilation_h, int dilation_w,
                int outside_top, int outside_left, int outside_bottom, int outside_right,
                int pixels, int channels COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  const int ranges = (OW + pixels - 1) / pixels;
  const int row = get_group_id(0) / ranges, first = get_group_id(0) % ranges * pixels;
  const int oh = row % OH, n = row / OH, top = oh * stride_h - pad_top;
  const int c0 = get_group_id(1) * channels, c1 = min(C, c0 + channels);
  const int2 down = taps_inside(top, KH, dilation_h, 0, H);
  const int2 counted_down = taps_inside(top, KH, dilation_h, -outside_top, H + outside_bottom);
  __global float* y = y_ + y_offset + (size_t)n * y_batch + (size_t)oh * y_row;
  const long step_h = (long)dilation_h * x_row, step_w = (long)dilation_w * x_pixel;
  for (int ow = first; ow < min(OW, first + pixels); ow++) {
    const int left = ow * stride_w - pad_left;
    const int2 across = taps_inside(left, KW, dilation_w, 0, W);
    const int2 counted_across = taps_inside(left, KW, dilation_w, -outside_left, W + outside_right);
    const int counted = (counted_down.y - counted_down.x) * (counted_across.y - counted_across.x);
    const float scale = 1.0f / max(counted, 1);
    const int inside = down.y - down.x == KH && across.y - across.x == KW;
    __global const float* x = x_ + x_offset + (long)n * x_batch + (long)top * x_row + (long)left * x_pixel;
    for (int c = c0; c < c1; c += VW) {
      vec total = (vec)(AVERAGE ? 0.0f : -FLT_MAX);
      if (inside && c + VW <= c1) {
        for (int i = 0; i < KH; i++) for (int j = 0; j < KW; j++) total = JOIN(total, LOADV(x + i * step_h + j * step_w + c));
      } else {
        for (int i = down.x; i < down.y; i++)
          for (int j = across.x; j < across.y; j++)
            total = JOIN(total, load_some(x + i * step_h + j * step_w + c, c1 - c));
      }
      store_some(AVERAGE ? total * scale : total, y + (size_t)ow * y_pixel + c, c1 - c);
    }
  }
  COEXEC_LEAVE;
}
