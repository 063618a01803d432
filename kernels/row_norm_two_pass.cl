/* Rows of a matrix normalised to mean 0 and variance 1, then scaled and shifted: a range of rows per work-item.

   x, y      M rows of N floats with their own pitches
   scale     N floats padded to whole vectors, bias likewise
   global    (row ranges); local 1 */

COEXEC_KERNEL
void row_norm_two_pass(__global const float* x_, int x_offset, int x_pitch,
                       __global const float* restrict scale, __global const float* restrict bias,
                       __global float* y_, int y_offset, int y_pitch,
                       int M, int N, int rows, float epsilon COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  const int first = get_group_id(0) * rows;
  for (int m = first; m < min(M, first + rows); m++) {
    __global const float* x = x_ + x_offset + (size_t)m * x_pitch;
    __global float* y = y_ + y_offset + (size_t)m * y_pitch;
    vec total = (vec)(0.0f);
    for (int n = 0; n < N; n += VW) total += load_some(x + n, N - n);
    const float mean = sum_of(total) / N;
    total = (vec)(0.0f);
    int n = 0;
    for (; n + VW <= N; n += VW) { const vec d = LOADV(x + n) - mean; total = fma(d, d, total); }
    float power = sum_of(total);
    for (; n < N; n++) power = fma(x[n] - mean, x[n] - mean, power);
    const float inverse = 1.0f / sqrt(power / N + epsilon);
    for (n = 0; n < N; n += VW) {
      const vec factor = LOADV(scale + n) * inverse;
      store_some(fma(load_some(x + n, N - n) - mean, factor, LOADV(bias + n)), y + n, N - n);
    }
  }
  COEXEC_LEAVE;
}
