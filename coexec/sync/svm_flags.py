"""Flags and tensors in fine-grained SVM with atomics."""

from __future__ import annotations

import numpy as np

from coexec.device import DeviceInfo
from coexec.errors import DeviceError
from coexec.sync.base import Memory, no_memory
from coexec.sync.flags import FlagSync


class SvmFlags(FlagSync):
    """Both sides work in the same allocation."""

    name = "svm_flags"

    @classmethod
    def obstacle(cls, info: DeviceInfo) -> str | None:
        if not info.svm_atomics:
            return f"no fine-grained SVM with atomics (capabilities {info.svm_capabilities:#x}, 0xa needed)"
        return None

    def allocate(self, nbytes: int) -> Memory:
        import pyopencl as cl

        flags = cl.svm_mem_flags
        size = max(nbytes, 64)
        try:
            array = cl.svm_empty(
                self.session.context,
                flags.READ_WRITE | flags.SVM_FINE_GRAIN_BUFFER | flags.SVM_ATOMICS,
                (size,),
                np.uint8,
                alignment=128,
            )
        except cl.Error as error:
            raise DeviceError(no_memory(self.session, nbytes, error)) from error
        array[...] = 0
        return Memory(array, cl.SVM(array))
