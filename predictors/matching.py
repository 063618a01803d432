"""Finds the shipped profile that fits a device."""

from __future__ import annotations

from coexec.device import DeviceInfo, cpu_model
from coexec.errors import ProfileError
from coexec.predictors.model import shipped_profiles
from coexec.predictors.model_files import PREDICTORS
from coexec.profiling.profile_files import DeviceRecord


def match(device: DeviceInfo, cores: int) -> tuple[str, str] | None:
    """Name of the shipped profile for ``device`` on a machine with ``cores`` cores, and a note.

    The note is "" for an exact match, else it says in words what differs (driver, CPU model). None if no
    profile comes near: another kind of device, other vector registers, another number of cores.
    """
    candidates = []
    for name, folder in shipped_profiles().items():
        if not (folder / PREDICTORS).is_file():
            continue
        try:
            record = DeviceRecord.load(folder)
        except ProfileError:
            continue  # naming the profile tells what is wrong with it
        differences = differences_of(record, device, cores, cpu_model())
        if differences is not None:
            candidates.append((len(differences), name, "; ".join(differences)))
    if not candidates:
        return None
    _, name, note = min(candidates)
    return name, note


def misfit(record: DeviceRecord, device: DeviceInfo, cores: int) -> str:
    """What speaks against a profile that the user named, in words; "" if it fits."""
    differences = differences_of(record, device, cores, cpu_model())
    if differences is None:
        return (
            f"it was measured on another kind of device, {record.device_name!r} beside {record.cores} cores, "
            f"here it is {device.name!r} beside {cores}"
        )
    return "; ".join(differences)


def differences_of(record: DeviceRecord, device: DeviceInfo, cores: int, cpu: str) -> list[str] | None:
    """What differs between a profile's device and this one, in words; None if they are too far apart."""
    if record.traits(1) != device.traits(1):
        return None
    if (record.cores, record.device_type) != (cores, device.type):
        return None
    if _vendor(record.platform) != _vendor(device.platform):
        return None
    # The name of a device that plays the GPU names the CPU; a real GPU must be the same.
    if not record.emulated_gpu and record.device_name != device.name:
        return None
    compared = (
        ("driver", record.driver, device.driver),
        ("platform", record.platform, device.platform),
        ("device", record.device_name, device.name),
        ("CPU", record.cpu_model, cpu),
    )
    return [f"it was measured with {what} {was!r}, here it is {now!r}" for what, was, now in compared if was != now]


def _vendor(platform: str) -> str:
    """Platform name without its version."""
    return platform.split(" (OpenCL")[0]
