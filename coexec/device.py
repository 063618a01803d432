"""OpenCL devices: discovery, what they are known to do, a short self-test, and an open session.

The machine has one CPU side and, per OpenCL device, one GPU side. A CPU-type OpenCL device can stand in
for a GPU (emulated): it then gets some of the cores, and the CPU side the rest. One can also run kernels for the
CPU side.
"""

from __future__ import annotations

import os
import platform as host_platform
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from coexec import kernel_cache, opencl_runtime
from coexec.documents import Workers
from coexec.errors import DeviceError
from coexec.kernels import source
from coexec.kernels.variant import GpuTraits

ON_CALLER_EXTENSION, ON_CALLER = "cl_intel_exec_by_local_thread", 1 << 31
"""A queue with this property runs each kernel on the thread that enqueues it, within the call."""

VectorWidth = Annotated[int, Meta(ge=1, le=16)]
VectorRegisters = Annotated[int, Meta(ge=1, le=1024)]

SELF_TEST = """
__kernel void self_test(__global const int* a, __global int* b) {
  const int i = get_global_id(0);
  b[i] = a[i] * 3 + i;
}
"""


@dataclass(frozen=True)
class DeviceInfo:
    """One OpenCL device as it presents itself.

    Attributes:
        id: "<platform>:<index>", what users name it by.
        type: "cpu", "gpu" or "accelerator".
        svm_capabilities: bit field of the OpenCL specification (0xa: fine-grained buffers with atomics).
        usable: whether the self-test passed; ``reason`` says why not.
        handle: the pyopencl device.
        runs_on_caller: whether it can run kernels on the thread that enqueues them.
    """

    id: str
    name: str
    platform: str
    driver: str
    type: str
    compute_units: int
    svm_capabilities: int
    usable: bool
    reason: str
    handle: Any = field(repr=False, compare=False)
    runs_on_caller: bool = False

    @property
    def emulated_gpu(self) -> bool:
        """Whether it is the CPU that plays the GPU."""
        return self.type == "cpu"

    @property
    def name_and_driver(self) -> str:
        """What plans know a device by."""
        return f"{self.name} ({self.driver})"

    @property
    def svm_atomics(self) -> bool:
        """Whether it has fine-grained SVM buffers with atomics, by what it says of itself."""
        return self.svm_capabilities & 0xA == 0xA

    @property
    def svm_system(self) -> bool:
        """Whether its kernels take any of the host's addresses, by what it says of itself."""
        return self.svm_capabilities & 0x4 != 0

    def traits(self, compute_units: int) -> GpuTraits:
        """What the launch rules need to know when ``compute_units`` of it are used."""
        width = int(self.handle.native_vector_width_float)
        width = max(1, min(width, 16))
        many = width == 16 or host_platform.machine() not in ("x86_64", "AMD64")
        return GpuTraits(compute_units, width, 32 if many else 16, self.type == "cpu")


@dataclass(frozen=True)
class CpuKernels:
    """An OpenCL device on which the CPU side can run kernels, beside its NumPy routines. Profiles keep it as it is.

    Attributes:
        device, device_name: its id, and its name with its driver.
        threads: the numbers of CPU threads with which the CPU side can have it.
        vector_width, vector_registers: the device's traits that the launch rules read.
    """

    device: Annotated[str, Meta(min_length=1)]
    device_name: str
    threads: Annotated[tuple[Workers, ...], Meta(min_length=1)]
    vector_width: VectorWidth
    vector_registers: VectorRegisters

    def traits(self, threads: int) -> GpuTraits | None:
        """The launch rules' view of it where the CPU side has so many threads; None if it can't have the device."""
        return GpuTraits(threads, self.vector_width, self.vector_registers, True) if threads in self.threads else None


def cpu_kernels(gpu: DeviceInfo) -> CpuKernels | None:
    """What runs the CPU side's kernels beside ``gpu``; None if nothing can.

    Beside an emulated GPU the driver must leave its own workers out of it, since those disturb the GPU side's: one
    thread, that which enqueues. Beside a real one the device has all the threads of the CPU side.
    """
    found = [d for d in find_devices() if d.usable and d.type == "cpu" and (d.runs_on_caller or not gpu.emulated_gpu)]
    if not found:
        return None
    best = min(found, key=lambda d: (not d.runs_on_caller, not d.svm_system))
    threads = (1,) if gpu.emulated_gpu else tuple(range(1, min(best.compute_units, cpu_cores()) + 1))
    traits = best.traits(1)
    return CpuKernels(best.id, best.name_and_driver, threads, traits.vector_width, traits.vector_registers)


def cpu_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """Name of the processor as the operating system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model", "Hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return host_platform.processor() or host_platform.machine()


@cache
def find_devices() -> tuple[DeviceInfo, ...]:
    """Every OpenCL device of the machine, those that fail the self-test included, best first."""
    return tuple(sorted((_tested(device_id) for device_id in _handles()), key=preference))


def preference(info: DeviceInfo) -> tuple[Any, ...]:
    """Sorts devices, best first: usable ones, GPUs, those that share more memory."""
    return not info.usable, info.emulated_gpu, -info.svm_capabilities


def find_device(device_id: str | None = None) -> DeviceInfo | None:
    """The named device, or the best one (None: no usable device). Unknown or unusable: DeviceError."""
    opencl_runtime.check_process()
    if device_id is None:
        return next((d for d in find_devices() if d.usable), None)
    if device_id not in _handles():
        known = ", ".join(d.id for d in find_devices()) or "none"
        raise DeviceError(f"no OpenCL device {device_id!r} here; `coexec devices` lists them (found: {known})")
    named = _tested(device_id)
    if not named.usable:
        raise DeviceError(f"OpenCL device {device_id!r} is not usable: {named.reason}")
    return named


@cache
def _handles() -> dict[str, tuple[Any, Any]]:
    """Id -> platform and device."""
    found: dict[str, tuple[Any, Any]] = {}
    counts: dict[str, int] = {}
    for p in opencl_runtime.platforms():
        slug = _slug(p)
        try:
            handles = p.get_devices()
        except Exception:  # a platform without devices raises
            continue
        for handle in handles:
            index = counts.get(slug, 0)
            counts[slug] = index + 1
            found[f"{slug}:{index}"] = p, handle
    return found


@cache
def _tested(device_id: str) -> DeviceInfo:
    """A device after its self-test, which is run for those only that are asked for."""
    with opencl_runtime.adopting_threads():  # the self-test starts workers
        return _describe(device_id, *_handles()[device_id])


class Session:
    """A device opened with so many of its compute units: context, in-order queue, built programs.

    Runs on one OpenCL device take turns: ``turn`` is that device's lock. ``on_caller`` opens a device that
    ``runs_on_caller`` for kernels on the thread that enqueues them, as one compute unit.
    """

    def __init__(self, info: DeviceInfo, compute_units: int | None = None, *, on_caller: bool = False) -> None:
        import pyopencl as cl

        self.info = info
        self.compute_units = info.compute_units if compute_units is None else compute_units
        if not 1 <= self.compute_units <= info.compute_units:
            raise DeviceError(f"compute_units={compute_units} is out of range: {info.id} has {info.compute_units}")
        handle = info.handle
        try:
            if self.compute_units < info.compute_units and not on_caller:
                handle = handle.create_sub_devices([cl.device_partition_property.BY_COUNTS, self.compute_units])[0]
            self.context = cl.Context([handle])
            self.queue = cl.CommandQueue(self.context, handle, ON_CALLER if on_caller else 0)
            with opencl_runtime.adopting_threads():
                problem = _self_test(self.context, self.queue)  # also starts the driver's threads
        except cl.Error as error:
            raise DeviceError(f"cannot open {info.id} with {self.compute_units} compute units: {error}") from error
        if problem:
            raise DeviceError(f"{info.id} with {self.compute_units} compute units: {problem}")
        self.traits = info.traits(self.compute_units)
        self._atomics = _c11_atomics(info.handle)
        self.turn = _turn(info.id)
        self._programs: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}
        self._scratch: Any = None
        self._scratch_bytes = 0
        self.trusted: set[Any] = set()
        """Programs whose kernel has been tried."""
        self.failed: dict[str, str] = {}
        """Kernels that gave wrong numbers when they were tried, and what was wrong."""

    def scratch(self, nbytes: int) -> Any:
        """Device memory for kernels to work in, shared by all of them since they run one after another."""
        import pyopencl as cl

        if nbytes > self._scratch_bytes:
            try:
                self._scratch = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, nbytes)
            except cl.Error as error:
                raise DeviceError(f"{self.info.id} refused {nbytes / 1e6:.1f} MB of scratch memory: {error}") from error
            self._scratch_bytes = nbytes
        return self._scratch if nbytes else None

    def build(self, name: str, options: dict[str, int]) -> Any:
        """The built program of a kernel file with these -D options."""
        import pyopencl as cl

        key = (name, tuple(sorted(options.items())))
        if key not in self._programs:
            flags = [f"-D{k}={v}" for k, v in key[1]]
            flags += [*self._atomics, f"-DCOEXEC_PREFETCH={int(self.traits.cpu)}"]
            flags += ["-cl-mad-enable", "-cl-no-signed-zeros"]
            try:
                with opencl_runtime.adopting_threads():  # Intel's runtime starts further ones while it builds
                    self._programs[key] = kernel_cache.build(self.context, source(name), flags)
            except cl.Error as error:
                first = next((line for line in str(error).splitlines() if "error" in line), str(error).split("\n")[0])
                raise DeviceError(f"{self.info.id} cannot build kernel {name}: {first.strip()}") from error
        return self._programs[key]

    def takes_turns(self, cpu_threads: int) -> bool:
        """Whether both sides use the same cores, so that one must not spin while the other works."""
        return self.info.emulated_gpu and self.compute_units + cpu_threads > cpu_cores()

    @contextmanager
    def cores(self, cpu_threads: int) -> Iterator[None]:
        """Keep an emulated GPU's workers and the calling thread on different cores while inside.

        The scheduler otherwise now and then leaves both on one core although another is free. A worker that
        the driver starts meanwhile inherits the calling thread's core; it is moved at the next run.
        """
        if not self.info.emulated_gpu:
            yield
            return
        mine = os.sched_getaffinity(0)
        shared = self.takes_turns(cpu_threads)
        theirs = mine if shared else set(sorted(mine)[-self.compute_units :])
        with opencl_runtime.adopting_threads():
            opencl_runtime.pin_workers(theirs)
            if shared:
                yield
                return
            opencl_runtime.set_affinity(0, mine - theirs)
            try:
                yield
            finally:
                opencl_runtime.set_affinity(0, mine)


@contextmanager
def turns(*sessions: Session | None) -> Iterator[None]:
    """Hold the devices of these sessions while inside, always in the same order."""
    with ExitStack() as held:
        for session in sorted(filter(None, sessions), key=lambda s: s.info.id):
            held.enter_context(session.turn)
        yield


_turns: dict[str, threading.RLock] = {}


def _turn(device_id: str) -> threading.RLock:
    return _turns.setdefault(device_id, threading.RLock())


def _describe(device_id: str, p: Any, handle: Any) -> DeviceInfo:
    import pyopencl as cl

    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu"}
    reason = ""
    try:
        context = cl.Context([handle])
        reason = _self_test(context, cl.CommandQueue(context)) or ""
    except cl.Error as error:
        reason = f"it cannot be opened: {error}"
    try:
        svm = int(handle.svm_capabilities)
    except cl.Error:
        svm = 0
    return DeviceInfo(
        id=device_id,
        name=handle.name.strip(),
        platform=f"{p.name.strip()} ({p.version.strip()})",
        driver=handle.driver_version.strip(),
        type=next((kind for bit, kind in kinds.items() if handle.type & bit), "accelerator"),
        compute_units=int(handle.max_compute_units),
        svm_capabilities=svm,
        usable=not reason,
        reason=reason,
        handle=handle,
        runs_on_caller=ON_CALLER_EXTENSION in handle.extensions.split(),
    )


def _self_test(context: Any, queue: Any) -> str | None:
    """What is wrong with a device, which is not to blame for a stored program that went bad; None if nothing."""
    if _run_self_test(context, queue) is None:
        return None
    kernel_cache.distrust(context.devices[0])
    return _run_self_test(context, queue)


def _run_self_test(context: Any, queue: Any) -> str | None:
    """None if a trivial kernel builds, runs and is right; otherwise what went wrong."""
    import pyopencl as cl

    given = np.arange(64, dtype=np.int32) * 7
    got = np.full(64, -1, np.int32)  # poisoned: a kernel that does nothing must not look right
    flags = cl.mem_flags
    try:
        program = kernel_cache.build(context, SELF_TEST, [])
        a = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=given)
        b = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=got)
        kernel = cl.Kernel(program, "self_test")
        kernel.set_arg(0, a)
        kernel.set_arg(1, b)
        cl.enqueue_nd_range_kernel(queue, kernel, given.shape, None)
        cl.enqueue_copy(queue, got, b)
    except cl.Error as error:
        return f"a trivial kernel fails: {str(error).splitlines()[0]}"
    if not np.array_equal(got, given * 3 + np.arange(64)):
        return "a trivial kernel gives wrong numbers"
    return None


def _c11_atomics(handle: Any) -> list[str]:
    """Build options with which kernels have atomics of scope all_svm_devices; [] where the compiler has none.

    OpenCL C 2.0 always has them, 3.0 as features. Not tried out: PoCL prints a failing build's errors on stderr.
    """
    import pyopencl as cl

    try:
        major = {entry.version >> 22 for entry in handle.opencl_c_all_versions}
        features = {entry.name for entry in handle.opencl_c_features}
    except (cl.Error, AttributeError):  # a device older than OpenCL 3.0
        major, features = {_c_version(handle.opencl_c_version)[0]}, set()
    if 2 in major:
        return ["-DCOEXEC_C11_ATOMICS=1", "-cl-std=CL2.0"]
    if {"__opencl_c_atomic_order_acq_rel", "__opencl_c_atomic_scope_all_devices"} <= features:
        return ["-DCOEXEC_C11_ATOMICS=1", "-cl-std=CL3.0"]
    return []


def _c_version(text: str) -> tuple[int, int]:
    words = text.split()
    for word in words:
        major, dot, minor = word.partition(".")
        if dot and major.isdigit() and minor[:1].isdigit():
            return int(major), int(minor[:1])
    return (1, 0)


def _slug(p: Any) -> str:
    if "pocl" in p.version.lower():
        return "pocl"
    return str(p.name.split()[0].split("(")[0].lower())
