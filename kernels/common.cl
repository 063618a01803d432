/* Vectors of VW floats, and the activation (ACTIVATION: its code in coexec/ops/activation.py) on them. */
#ifndef VW
#define VW 4
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#define COEXEC_CAT_(a, b) a##b
#define COEXEC_CAT(a, b) COEXEC_CAT_(a, b)
typedef COEXEC_CAT(float, VW) vec;
#define LOADV(p) COEXEC_CAT(vload, VW)(0, p)
#define STOREV(v, p) COEXEC_CAT(vstore, VW)(v, 0, p)
/* Weights stream from memory in any network larger than the caches, PREFETCH_AHEAD floats ahead of their use into
   the second-level cache; OpenCL's own prefetch() does nothing on PoCL and costs a factor of three on Intel's CPU
   runtime. Lines that a tile will write are fetched while it is computed, or else its stores hold up the next. */
#ifndef COEXEC_PREFETCH
#define COEXEC_PREFETCH 0
#endif
#if COEXEC_PREFETCH
#define PREFETCH(p) __builtin_prefetch((const void*)(size_t)(p), 0, 2)
#define PREFETCH_WRITE(p) __builtin_prefetch((const void*)(size_t)(p), 1, 3)
#else
#define PREFETCH(p)
#define PREFETCH_WRITE(p)
#endif
#ifndef PREFETCH_AHEAD
#define PREFETCH_AHEAD 2048
#endif
/* A work-item fills a core's registers by itself. The hint keeps Intel's CPU runtime from vectorising over
   work-items as well, which it tries as soon as a kernel waits, and which then costs a factor of 2.7. */
#define COEXEC_KERNEL __kernel __attribute__((reqd_work_group_size(1, 1, 1))) __attribute__((vec_type_hint(vec)))
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

/* fmax and fmin would turn NaN into a number, and hide that something went wrong. */
inline vec activate(vec x, float alpha, float beta) {
#if ACTIVATION == 1
  return x < (vec)(0.0f) ? (vec)(0.0f) : x;
#elif ACTIVATION == 2
  const vec low = x < (vec)(alpha) ? (vec)(alpha) : x;
  return low > (vec)(beta) ? (vec)(beta) : low;
#elif ACTIVATION == 3
  return x < (vec)(0.0f) ? x * alpha : x;
#elif ACTIVATION == 4
  return 1.0f / (1.0f + exp(-x));
#elif ACTIVATION == 5
  return x * fmin(fmax(x * (1.0f / 6.0f) + 0.5f, (vec)(0.0f)), (vec)(1.0f));
#elif ACTIVATION == 6
  return x / (1.0f + exp(-x));
#elif ACTIVATION == 7
  return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f));
#elif ACTIVATION == 8
  return 0.5f * x * (1.0f + tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
#elif ACTIVATION == 9
  return tanh(x);
#else
  return x;
#endif
}

/* p[0..valid) as a vector, the rest 0. */
inline vec load_some(__global const float* p, int valid) {
  if (valid >= VW) return LOADV(p);
  float lanes[VW];
  for (int i = 0; i < VW; i++) lanes[i] = i < valid ? p[i] : 0.0f;
  return LOADV(lanes);
}

/* y[0..valid) = act(x + r[0..valid)); r may be null. Only a panel's last vector can be partial. */
inline void finish(vec x, __global const float* r, __global float* y, int valid, float alpha, float beta) {
  if (valid >= VW) {
    if (RESIDUAL) x += LOADV(r);
    STOREV(activate(x, alpha, beta), y);
  } else if (valid > 0) {
    float lanes[VW];
    if (RESIDUAL) {
      for (int i = 0; i < VW; i++) lanes[i] = i < valid ? r[i] : 0.0f;
      x += LOADV(lanes);
    }
    STOREV(activate(x, alpha, beta), lanes);
    for (int i = 0; i < valid; i++) y[i] = lanes[i];
  }
}

/* y[0..valid) = x. */
inline void store_some(vec x, __global float* y, int valid) {
  if (valid >= VW) {
    STOREV(x, y);
  } else if (valid > 0) {
    float lanes[VW];
    STOREV(x, lanes);
    for (int i = 0; i < valid; i++) y[i] = lanes[i];
  }
}

inline float sum_of(vec x) {
  float lanes[VW], sum = 0.0f;
  STOREV(x, lanes);
  EACH(i, VW) sum += lanes[i];
  return sum;
}

inline float max_of(vec x) {
  float lanes[VW], most = -INFINITY;
  STOREV(x, lanes);
  EACH(i, VW) most = fmax(most, lanes[i]);
  return most;
}
