"""With an emulated GPU either side stays on its share of the cores: CPU time used, not time passed."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from coexec.device import DeviceInfo, Session, cpu_cores
from coexec.measure import LayerRig
from coexec.opencl_runtime import worker_threads
from coexec.ops.linear import Linear
from coexec.planner import Choice
from coexec.sync import open_sync
from coexec.sync.svm_flags import SvmFlags
from coexec.ways import Machine, Way

LAYER = Linear(M=256, K=1024, N=1024)


def cpu_seconds(threads: set[int]) -> float:
    """CPU time that threads of this process have used."""
    total = 0.0
    for thread in threads:
        nanoseconds = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]
        total += int(nanoseconds) / 1e9
    return total


@pytest.fixture
def rig(opencl_device: DeviceInfo) -> LayerRig:
    if not opencl_device.emulated_gpu or cpu_cores() < 2:
        pytest.skip("needs a CPU-type device and two cores")
    return LayerRig(
        LAYER, open_sync(Session(opencl_device, 1)), Machine.here(opencl_device).resources(Way("", 1, 1)), copies=8
    )


def test_gpu_side_runs_on_its_workers_alone(rig: LayerRig) -> None:
    """While the host sleeps, the launches of a whole network finish, on one worker's time."""
    sync = rig.executor.sync
    if not isinstance(sync, SvmFlags):
        pytest.skip("launches made ahead need flags")
    rig.timer(Choice("channel", LAYER.N))()
    launches = rig.executor._launches
    workers, others = worker_threads(), _all_threads() - worker_threads()
    before, before_others, started = cpu_seconds(workers), cpu_seconds(others), time.perf_counter()
    with sync.session.turn:
        for _ in range(4):
            sync.start(launches)
            deadline = time.perf_counter() + 10
            while sync._ints[32] - sync._base < len(launches):
                assert time.perf_counter() < deadline
                time.sleep(0.001)
    wall = time.perf_counter() - started
    used = cpu_seconds(workers) - before
    assert used > 0.5 * (cpu_seconds(others) - before_others + used), "the host's threads did the GPU's work"
    assert used <= wall * 1.05 + 0.02, "more than one core worked for one compute unit"


@pytest.mark.parametrize("by_kernel", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_both_sides_keep_to_their_cores(rig: LayerRig, share: float, by_kernel: bool) -> None:
    run = rig.timer(Choice("channel", int(LAYER.N * share), cpu_kernel=by_kernel))
    run()
    workers = worker_threads()
    others = _all_threads() - workers
    before = cpu_seconds(workers), cpu_seconds(others)
    started = time.perf_counter()
    for _ in range(10):
        run()
    wall = time.perf_counter() - started
    gpu, cpu = cpu_seconds(workers) - before[0], cpu_seconds(others) - before[1]
    assert gpu <= wall * 1.05 + 0.02
    assert cpu <= wall * 1.05 + 0.02, "another thread of the CPU side used the GPU side's core"
    if share == 1.0:
        assert gpu > 0.3 * wall
    if share == 0.0:
        assert gpu < 0.3 * wall, "the GPU side's worker is busy although it has nothing to do"
    assert np.isfinite(rig.output()).all()


def _all_threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
