"""A real GPU computes the same as the reference, by every strategy that it offers."""

from __future__ import annotations

import numpy as np
import pytest

import coexec
from coexec.device import DeviceInfo, find_devices
from coexec.sync import SYNC, proven_strategies

GPUS = [d for d in find_devices() if d.usable and not d.emulated_gpu]


@pytest.mark.hardware
@pytest.mark.skipif(not GPUS, reason="no GPU with an OpenCL driver on this machine")
@pytest.mark.parametrize("gpu", GPUS, ids=lambda d: d.id)
@pytest.mark.parametrize("sync", SYNC)
def test_squeezenet_on_a_real_gpu(gpu: DeviceInfo, sync: str) -> None:
    import onnxruntime

    proven, refused = proven_strategies(gpu)
    if sync not in proven:
        pytest.skip(f"{gpu.id} does not offer {sync}: {refused[sync]}")
    proto = coexec.zoo.squeezenet()
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"input": x})[0]
    got = coexec.partition(proto, device=gpu.id, sync=sync)(x)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
