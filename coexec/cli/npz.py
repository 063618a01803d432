"""Reads and writes .npz files for the command line, without pickle; files are replaced in one step."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coexec.errors import InputError
from coexec.layout import Array


def load_arrays(path: str) -> dict[str, Array]:
    """The arrays of an .npz file by name; InputError with one line for anything else."""
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds one array without a name; save it by np.savez(path, name=array)")
        with opened:
            return {name: opened[name] for name in opened.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"{path} claims arrays that do not fit into memory; it is damaged") from error
    except (ValueError, KeyError, EOFError, SyntaxError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{path} is not an .npz file of plain arrays, or is damaged; write it by np.savez") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); write it again by np.savez") from error


def save_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays under their names. An existing file is replaced in one step, or stays as it was."""
    target = Path(path)
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        # Not np.savez: it takes names as keyword arguments, and a tensor may be called "file".
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        draft.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
