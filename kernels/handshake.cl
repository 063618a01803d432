/* Proof that host and kernels see one another's writes while a run is under way. As in a network, a launch waits
   for the host, reads what it wrote (plain loads: tensors are read like that), and its last work-group reports. */
__kernel void handshake(__global const int* sent, __global int* answer, int words COEXEC_ARGS) {
  if (!COEXEC_ENTER) return;
  const int first = get_group_id(0) * words;
  for (int i = 0; i < words; i++) answer[first + i] = sent[first + i] * 5 + number;
  COEXEC_LEAVE;
}

/* Measures what a spin of coexec_enter takes. */
__kernel void count_spins(__global volatile int* control, int spins) {
  for (int i = 0; i < spins; i++)
    if (COEXEC_LOAD(control) != 0 || ((i & 63) == 63 && COEXEC_LOAD(control + 64) != 0)) return;
}
