"""How the cores and compute units of a machine are shared out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.device import CpuKernels, DeviceInfo, _c11_atomics, cpu_kernels, preference
from coexec.errors import InputError
from coexec.kernels.variant import GpuTraits
from coexec.plan import Plan
from coexec.ways import Machine, Way, best_over

CPU_ONLY = Machine(cores=4)
EMULATED = Machine(4, "cpu:0", "a CPU", compute_units=4, emulated_gpu=True)
GPU = Machine(4, "gpu:0", "a GPU", compute_units=80)

CASES: list[tuple[Machine, int | None, int | None, list[tuple[int, int, bool]]]] = [
    (CPU_ONLY, None, None, [(0, 4, True)]),
    (CPU_ONLY, 3, None, [(0, 3, True)]),
    (GPU, None, None, [(80, 4, True)]),
    (GPU, 1, 40, [(40, 1, True)]),
    (EMULATED, None, None, [(1, 3, True), (2, 2, True), (3, 1, True), (4, 1, False), (0, 4, True)]),
    (EMULATED, 1, None, [(3, 1, True)]),
    (EMULATED, 4, None, [(1, 4, True)]),
    (EMULATED, None, 1, [(1, 3, True)]),
    (EMULATED, None, 4, [(4, 1, True)]),
    (EMULATED, 2, 2, [(2, 2, True)]),
    (replace(EMULATED, cores=1, compute_units=1), None, None, [(1, 1, False), (0, 1, True)]),
    (replace(EMULATED, compute_units=2), None, None, [(1, 3, True), (2, 2, True), (0, 4, True)]),
]
"""Machine, cpu_threads and compute_units as the user fixed them; ways as (units, threads, split)."""


@pytest.mark.parametrize(("machine", "cpu_threads", "compute_units", "expected"), CASES)
def test_ways(
    machine: Machine, cpu_threads: int | None, compute_units: int | None, expected: list[tuple[int, int, bool]]
) -> None:
    ways = machine.ways(cpu_threads, compute_units)
    assert [(w.compute_units, w.cpu_threads, w.split) for w in ways] == expected
    assert len({w.name for w in ways}) == len(ways)


@pytest.mark.parametrize(
    ("machine", "cores", "expected"),
    [(CPU_ONLY, None, (0, 4)), (GPU, None, (80, 4)), (GPU, 1, (80, 1)), (EMULATED, None, (2, 2)), (EMULATED, 3, (1, 2)),
     (EMULATED, 1, (1, 1)), (EMULATED, 99, (2, 2))],
)  # fmt: skip
def test_fair_way(machine: Machine, cores: int | None, expected: tuple[int, int]) -> None:
    way = machine.fair_way(cores=cores)
    assert (way.compute_units, way.cpu_threads) == expected


@given(
    cores=st.integers(1, 64),
    units=st.integers(1, 64),
    cpu_threads=st.none() | st.integers(1, 64),
    compute_units=st.none() | st.integers(1, 64),
)
def test_no_side_goes_without_and_none_has_more_than_there_is(
    cores: int, units: int, cpu_threads: int | None, compute_units: int | None
) -> None:
    machine = Machine(cores, "cpu:0", "a CPU", units, emulated_gpu=True)
    if (cpu_threads or 1) > cores or (compute_units or 1) > units:
        with pytest.raises(InputError, match=r"cpu_threads=|compute_units="):
            machine.ways(cpu_threads, compute_units)
        return
    for way in [*machine.ways(cpu_threads, compute_units), machine.fair_way(cpu_threads, compute_units)]:
        assert (way.compute_units > 0) <= way.both_sides or not way.split
        assert 0 <= way.compute_units <= units and 1 <= way.cpu_threads <= cores
        assert cpu_threads in (None, way.cpu_threads) and compute_units in (None, way.compute_units)
        if way.split and cpu_threads is None and compute_units is None and cores > 1:
            assert way.compute_units + way.cpu_threads <= cores


def test_devices_are_listed_best_first() -> None:
    best_first = [
        DeviceInfo("a", "", "", "", "gpu", 8, 0x0, True, "", None),
        DeviceInfo("b", "", "", "", "cpu", 8, 0xF, True, "", None),
        DeviceInfo("c", "", "", "", "cpu", 8, 0xB, True, "", None),
        DeviceInfo("d", "", "", "", "cpu", 64, 0x0, True, "", None),
        DeviceInfo("e", "", "", "", "gpu", 8, 0xF, False, "it cannot build", None),
    ]
    shuffled = [best_first[i] for i in (3, 1, 4, 0, 2)]
    assert sorted(shuffled, key=preference) == best_first


def test_the_best_plan_notes_what_each_way_should_take() -> None:
    plans = {"a": 3.0, "b": 2.0, "c": 5.0}
    blank = Plan("m", "s", "", "", 0, 1, "", (), {}, {}, 0.0, "", {}, {}, "", "")
    ways = [Way(name, 0, 1) for name in plans]
    best = best_over(ways, lambda way: replace(blank, predicted_ms=plans[way.name]))
    assert (best.predicted_ms, best.options) == (2.0, plans)


@pytest.mark.parametrize(
    ("versions", "features", "text", "options"),
    [
        ((3, 2, 1), (), "OpenCL C 3.0", ["-DCOEXEC_C11_ATOMICS=1", "-cl-std=CL2.0"]),
        ((3, 1), ("order_acq_rel", "scope_all_devices"), "OpenCL C 3.0", ["-DCOEXEC_C11_ATOMICS=1", "-cl-std=CL3.0"]),
        ((3, 1), ("order_acq_rel", "scope_device"), "OpenCL C 1.2", []),
        (None, (), "OpenCL C 2.0 adreno", ["-DCOEXEC_C11_ATOMICS=1", "-cl-std=CL2.0"]),
        (None, (), "OpenCL C 1.2 ", []),
    ],
)
def test_atomics_are_used_where_the_compiler_has_them(
    versions: tuple[int, ...] | None, features: tuple[str, ...], text: str, options: list[str]
) -> None:
    handle = SimpleNamespace(opencl_c_version=text)
    if versions is not None:
        handle.opencl_c_all_versions = [SimpleNamespace(version=major << 22) for major in versions]
        handle.opencl_c_features = [SimpleNamespace(name=f"__opencl_c_atomic_{name}") for name in features]
    assert _c11_atomics(handle) == options


def cpu(name: str, svm: int = 0xB, on_caller: bool = False, usable: bool = True) -> DeviceInfo:
    handle = SimpleNamespace(native_vector_width_float=8)
    return DeviceInfo(name, name.upper(), "", "1", "cpu", 2, svm, usable, "", handle, on_caller)


REAL = DeviceInfo("gpu", "", "", "", "gpu", 80, 0x0, True, "", None)


@pytest.mark.parametrize(
    ("found", "gpu", "device", "threads"),
    [
        ([], REAL, None, ()),
        ([cpu("a")], REAL, "a", (1, 2)),
        ([cpu("a"), cpu("b", svm=0xF)], REAL, "b", (1, 2)),  # takes the host's memory as it is
        ([cpu("a", svm=0xF), cpu("b", on_caller=True)], REAL, "b", (1, 2)),
        ([cpu("a", usable=False), REAL], REAL, None, ()),
        # Beside an emulated GPU only on the calling thread: the driver's workers are in the other's way.
        ([cpu("a")], cpu("a"), None, ()),
        ([cpu("a"), cpu("b", on_caller=True)], cpu("a"), "b", (1,)),
        ([cpu("b", on_caller=True)], cpu("b", on_caller=True), "b", (1,)),
    ],
)
def test_what_runs_the_cpu_sides_kernels(
    monkeypatch: pytest.MonkeyPatch,
    found: list[DeviceInfo],
    gpu: DeviceInfo,
    device: str | None,
    threads: tuple[int, ...],
) -> None:
    monkeypatch.setattr("coexec.device.find_devices", lambda: tuple(found))
    monkeypatch.setattr("coexec.device.cpu_cores", lambda: 2)
    own = cpu_kernels(gpu)
    assert (own.device if own else None, own.threads if own else ()) == (device, threads)


def test_a_way_has_kernels_for_the_cpu_side_where_it_can_have_them() -> None:
    own = CpuKernels("own:0", "own", (1,), 8, 16)
    machine = replace(EMULATED, traits=lambda units: GpuTraits(units, 16, 32, True), cpu_kernels=own)
    used = {way.name: machine.resources(way) for way in machine.ways()}
    assert {name for name, use in used.items() if use.cpu_traits is not None} == {"3 + 1"}
    assert used["3 + 1"].cpu_traits == GpuTraits(1, 8, 16, True) and used["3 + 1"].cpu_device == "own:0"
    assert not any(use.cpu_device for name, use in used.items() if name != "3 + 1")
