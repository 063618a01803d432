"""Reads and writes .npz files for the command line, without pickle; files are replaced in one step."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from coexec.errors import InputError
from coexec.layout import Array
from coexec.whole_file import replacing

MAX_NAME_BYTES = 2**16 - 1
"""What a zip file's entry holds."""


def load_arrays(path: str) -> dict[str, Array]:
    """The arrays of an .npz file by name; InputError with one line for anything else."""
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds one array without a name; save it by np.savez(path, name=array)")
        with opened:
            check_names(path, opened.files)
            return {name: opened[name] for name in opened.files}
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"{path} claims arrays that do not fit into memory; it is damaged") from error
    except Exception as error:  # NumPy, zipfile and the decompressors raise a dozen unrelated types on damaged data
        raise InputError(f"{path} is not an .npz file of plain arrays, or is damaged; write it by np.savez") from error


def save_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays under names that `check_names` allows. A file is replaced in one step, or stays as it was."""
    # Not np.savez: it takes names as keyword arguments, and a tensor may be called "file".
    with (
        replacing(path, InputError) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def check_names(path: str, names: Sequence[str]) -> None:
    """Raise InputError unless an .npz file can hold arrays of these names, each to be found again by its own."""
    for name in names:
        if "\0" in name or len(f"{name}.npy".encode(errors="replace")) > MAX_NAME_BYTES:
            problem = "which cannot be a name in an .npz file"
        elif names.count(name) > 1:
            problem = "twice"
        elif f"{name}.npy" in names:  # np.load takes both for "NAME.npy"
            problem = "and the same with .npy, which an .npz file does not tell apart"
        else:
            continue
        shown = repr(name if len(name) <= 60 else f"{name[:57]}...")
        raise InputError(f"{path}: an array is called {shown}, {problem}; rename it")
