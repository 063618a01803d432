/* Waiting and signalling inside a kernel, compiled away unless COEXEC_SYNC is 1.

   control (ints, one 128-byte line each):
     [0]   progress of the CPU side      host writes, kernels read
     [32]  progress of the GPU side      kernels write, host reads
     [64]  status: 0 run, 1 a wait timed out, 2 the host gave up
     [96]  base: both progresses count from it in this run;  [97] spins allowed per wait
   Numbers only grow, so nothing is reset between runs. Plain 32-bit loads and stores only: read-modify-write
   on memory shared with the host is not portable. arrivals (device memory) counts finished work-groups.

   The input is written by the host while the kernel waits, so it must not be `restrict`: weights may be.

   A kernel begins with COEXEC_ENTER (false: fall through) and ends with COEXEC_LEAVE, both reached by every
   work-item. Work-groups of one work-item only. */
#ifndef COEXEC_SYNC
#define COEXEC_SYNC 0
#endif

#ifndef COEXEC_C11_ATOMICS
#define COEXEC_C11_ATOMICS 0
#endif

#if COEXEC_SYNC
#define COEXEC_ARGS , __global volatile int* control, __global volatile int* arrivals, int wait_for, int number
#define COEXEC_ENTER coexec_enter(control, wait_for)
#define COEXEC_LEAVE coexec_leave(control, arrivals, number)

#if COEXEC_C11_ATOMICS
#define COEXEC_LOAD(p) atomic_load_explicit((__global volatile atomic_int*)(p), memory_order_acquire, memory_scope_all_svm_devices)
#define COEXEC_STORE(p, v) atomic_store_explicit((__global volatile atomic_int*)(p), v, memory_order_release, memory_scope_all_svm_devices)
#define COEXEC_FENCE atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_acq_rel, memory_scope_all_svm_devices)
#else
#define COEXEC_LOAD(p) (*(p))
#define COEXEC_STORE(p, v) (*(p) = (v))
#define COEXEC_FENCE mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

inline int coexec_enter(__global volatile int* control, int wait_for) {
  if (COEXEC_LOAD(control + 64) != 0) return 0;
  if (wait_for == 0) return 1;
  const int target = control[96] + wait_for, limit = control[97];
  for (int spins = 0; COEXEC_LOAD(control) - target < 0; spins++) {
    if (spins >= limit) { COEXEC_STORE(control + 64, 1); return 0; }
    if ((spins & 63) == 63 && COEXEC_LOAD(control + 64) != 0) return 0;
  }
  COEXEC_FENCE;
  return 1;
}

/* The last work-group to arrive tells the host; it leaves the counter at 0 for the next run. */
inline void coexec_leave(__global volatile int* control, __global volatile int* arrivals, int number) {
  const int groups = get_num_groups(0) * get_num_groups(1) * get_num_groups(2);
  COEXEC_FENCE;
  if (groups > 1) {
    if (atomic_inc(arrivals + number) != groups - 1) return;
    arrivals[number] = 0;
    COEXEC_FENCE;
  }
  COEXEC_STORE(control + 32, control[96] + number);
}
#else
#define COEXEC_ARGS
#define COEXEC_ENTER 1
#define COEXEC_LEAVE
#endif
