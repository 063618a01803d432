"""Flags and tensors in host-located buffers (cl_nv_create_buffer), for GPUs without fine-grained SVM."""

from __future__ import annotations

from coexec.device import DeviceInfo
from coexec.errors import DeviceError
from coexec.sync.base import Memory
from coexec.sync.flags import FlagSync


class HostFlags(FlagSync):
    """Reports itself unavailable until it has run on such a GPU."""

    name = "host_flags"

    @classmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        if "cl_nv_create_buffer" not in info.handle.extensions:
            return "no host-located buffers (extension cl_nv_create_buffer)"
        return "host-located buffers have not been proven on such a GPU yet"

    def allocate(self, nbytes: int) -> Memory:
        raise DeviceError(f"host_flags is not available: {self.obstacle(self.session.info)}")
