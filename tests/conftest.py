"""Parametrises tests over what this machine offers: ``opencl_device`` is each usable OpenCL device in turn,
``opencl_link`` each of them with each synchronisation strategy that proves itself on it, ``sampled_link`` so many of
these that each device and each strategy occurs: for tests that take long and are not about handing over."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from functools import cache
from typing import Any

import hypothesis
import pytest

from coexec.device import DeviceInfo

# A shell that runs the suite in the background has it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("coexec", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("coexec")


@cache
def opencl_devices() -> tuple[DeviceInfo, ...]:
    """Every usable OpenCL device."""
    from coexec.device import find_devices

    return tuple(d for d in find_devices() if d.usable)


@cache
def _links() -> tuple[Any, ...]:
    from coexec.experiments.conformance import find_links

    return tuple(find_links())


def pytest_configure(config: pytest.Config) -> None:
    """A cache on disk of the suite's own: nothing that an earlier run stored decides a test."""
    folder = tempfile.mkdtemp(prefix="coexec-test-cache-")
    os.environ["COEXEC_CACHE_DIR"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def _sampled_links() -> tuple[Any, ...]:
    """One link for each device, with a strategy that no earlier one has if it can; then one for each strategy left."""
    chosen: list[Any] = []
    for info in dict.fromkeys(link.info for link in _links()):
        own = [link for link in _links() if link.info == info]
        seen = {link.sync for link in chosen}
        chosen.append(next((link for link in own if link.sync not in seen), own[0]))
    left = {link.sync: link for link in reversed(_links()) if link.sync not in {c.sync for c in chosen}}
    return (*chosen, *left.values())


SOURCES = {
    "opencl_device": (opencl_devices, lambda d: d.id),
    "opencl_link": (_links, str),
    "sampled_link": (_sampled_links, str),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, (find, title) in SOURCES.items():
        if name not in metafunc.fixturenames:
            continue
        found = [pytest.param(value, id=title(value)) for value in find()]
        none = pytest.param(None, id="none", marks=pytest.mark.skip(reason="no usable OpenCL device here"))
        metafunc.parametrize(name, found or [none], indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if set(SOURCES) & set(getattr(item, "fixturenames", ())):
            item.add_marker("opencl")


@pytest.fixture(scope="session")
def opencl_device(request: pytest.FixtureRequest) -> Any:
    """A usable OpenCL device (``DeviceInfo``)."""
    return request.param


@pytest.fixture(scope="session")
def opencl_link(request: pytest.FixtureRequest) -> Any:
    """A device and a strategy (``coexec.experiments.conformance.Link``)."""
    return request.param


@pytest.fixture(scope="session")
def sampled_link(request: pytest.FixtureRequest) -> Any:
    """A device and one of its strategies; over all of them each device and each strategy occurs."""
    return request.param
