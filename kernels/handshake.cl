/* Proof that host and kernel see one another's writes while the kernel runs: for r = 1..rounds the host writes
   a payload and then control[0] = r; the kernel answers with the payload transformed and then control[32] = r.
   Gives up after `limit` spins per round and says so in control[64]. count_spins measures what a spin takes. */
__kernel void handshake(__global volatile int* control, __global volatile int* payload, int words, int rounds, int limit) {
  for (int r = 1; r <= rounds; r++) {
    int spins = 0;
    while (COEXEC_LOAD(control) < r) if (++spins >= limit) { COEXEC_STORE(control + 64, 1); return; }
    COEXEC_FENCE;
    for (int i = 0; i < words; i++) payload[i] = payload[i] * 5 + r;
    COEXEC_FENCE;
    COEXEC_STORE(control + 32, r);
  }
}

__kernel void count_spins(__global volatile int* control, int spins) {
  for (int i = 0; i < spins; i++)
    if (COEXEC_LOAD(control) != 0 || ((i & 63) == 63 && COEXEC_LOAD(control + 64) != 0)) return;
}
