"""What this machine offers: its OpenCL devices, how each can synchronise, and its CPU side."""

from __future__ import annotations

import os
from typing import Any

from coexec.backends.cpu import CPU_BY_NAME
from coexec.device import DeviceInfo, cpu_cores, cpu_kernels, cpu_model, find_devices
from coexec.opencl_runtime import pip_drivers
from coexec.sync import SYNC, proven_strategies

INSTALL_HINT = (
    "install your GPU's OpenCL driver, or an OpenCL device that runs on the CPU: coexec's extra cpu-device, or pocl"
)


def device_report() -> dict[str, Any]:
    """The document of `coexec devices --json`; opens every usable device for a moment."""
    devices = find_devices()
    return {
        "devices": [_describe(info) for info in devices],
        "cpu": {"model": cpu_model(), "cores": cpu_cores(), "backends": cpu_backends()},
        "hint": _hint(devices),
    }


def cpu_backends() -> list[str]:
    """Libraries that the CPU side's routines come from ("numpy" of numpy_matmul)."""
    return sorted({name.partition("_")[0] for name in CPU_BY_NAME})


def _describe(info: DeviceInfo) -> dict[str, Any]:
    proven, refused = proven_strategies(info) if info.usable else ([], dict.fromkeys(SYNC, "the device is not usable"))
    return {
        "id": info.id,
        "name": info.name,
        "platform": info.platform,
        "driver": info.driver,
        "type": info.type,
        "compute_units": info.compute_units,
        "svm_capabilities": info.svm_capabilities,
        "sync": proven,
        "sync_unavailable": refused,
        "emulated_gpu": info.emulated_gpu,
        "cpu_kernels": beside.device if info.usable and (beside := cpu_kernels(info)) else None,
        "usable": info.usable,
        "reason": info.reason,
    }


def _hint(devices: tuple[DeviceInfo, ...]) -> str:
    """What to do where there is no usable device; "" where there is one."""
    if any(info.usable for info in devices):
        return ""
    try:
        import pyopencl  # noqa: F401
    except ImportError as error:
        return f"pyopencl cannot be imported ({error}): pip install pyopencl; then {INSTALL_HINT}"
    drivers = ", ".join(pip_drivers())
    if drivers and "OCL_ICD_VENDORS" in os.environ:
        return f"{drivers} is installed, but OCL_ICD_VENDORS ({os.environ['OCL_ICD_VENDORS']}) hides it; unset that"
    return INSTALL_HINT
