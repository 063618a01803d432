"""How both sides share memory and tell one another how far they are.

Memory kind and signalling are one object, a :class:`Sync`; a new strategy is a file and a line in SYNC, which
lists the best first.

``svm_flags``   fine-grained SVM with atomics; flags polled from both sides.
``host_flags``  the same through host-located buffers (cl_nv_create_buffer on NVIDIA).
``events``      any OpenCL 1.2 device: a launch is enqueued when its inputs exist, regions that cross sides
                are copied, completion is read from events.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from coexec.device import DeviceInfo, Session
from coexec.errors import DeviceError, InputError
from coexec.sync.base import Launch, Memory, Sync
from coexec.sync.events import Events
from coexec.sync.host_flags import HostFlags
from coexec.sync.svm_flags import SvmFlags

__all__ = ["SYNC", "Launch", "Memory", "Sync", "check_strategy", "open_sync", "opened", "proven_strategies"]

SYNC: dict[str, type[Sync]] = {cls.name: cls for cls in (SvmFlags, HostFlags, Events)}


def check_strategy(name: Any, info: DeviceInfo | None) -> None:
    """Refuse a strategy that the user named but that cannot be had: InputError, or DeviceError with the reason."""
    if not isinstance(name, str) or name not in SYNC:
        raise InputError(f"there is no sync strategy {name!r}; there are {', '.join(SYNC)}")
    if info is None:
        raise InputError(f"sync {name!r} needs an OpenCL device, and none is used; leave it out")
    reason = SYNC[name].obstacle(info)
    if reason is not None:
        raise DeviceError(f"{info.id} offers no such synchronisation ({name}: {reason})")


def open_sync(session: Session, name: str | None = None) -> Sync:
    """The named strategy on this session, or the first that the device offers and that proves itself.

    Raises InputError for an unknown name, DeviceError with the reason if the named one (or every one) is not
    available.
    """
    if name is not None:
        check_strategy(name, session.info)
    reasons = []
    for candidate in [SYNC[name]] if name else SYNC.values():
        reason = candidate.obstacle(session.info)
        if reason is None:
            try:
                return candidate(session)
            except DeviceError as error:  # it cannot be built, allocated or proven here
                reason = str(error)
        reasons.append(f"{candidate.name}: {reason}")
    raise DeviceError(f"{session.info.id} offers no such synchronisation ({'; '.join(reasons)})")


def opened(info: DeviceInfo, compute_units: int, name: str | None = None) -> Sync:
    """An open session with its strategy, shared by all models that use the device in the same way."""
    link = _opened(info, compute_units, name)
    if link.lost:  # it got stuck: later models get a queue of their own
        _opened.cache_clear()
        link = _opened(info, compute_units, name)
    return link


@cache
def _opened(info: DeviceInfo, compute_units: int, name: str | None) -> Sync:
    return open_sync(Session(info, compute_units), name)


def proven_strategies(info: DeviceInfo) -> tuple[list[str], dict[str, str]]:
    """Strategies that prove themselves on the device, and why the others do not; opens it for a moment."""
    proven: list[str] = []
    refused: dict[str, str] = {}
    for name, strategy in SYNC.items():
        reason = strategy.obstacle(info)
        if reason is None:
            try:
                strategy(Session(info))
                proven.append(name)
                continue
            except DeviceError as error:
                reason = str(error)
        refused[name] = reason
    return proven, refused
