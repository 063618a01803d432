"""Well-known networks as ONNX models with seeded He-scaled weights: for trying out and for tests.

``coexec.zoo.resnet18()`` returns an ``onnx.ModelProto`` with one input "input" (N, 3, size, size) and one output
"output" (N, classes), before softmax. Every builder takes ``seed``, ``batch``, ``image_size`` and ``classes``.
Architectures are torchvision's; batch normalisation is kept as nodes of its own, so that folding has work to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class ZooModel:
    """Where a model is built, its usual image size, and the parameter count that torchvision publishes."""

    module: str
    image_size: int
    parameters: int


MODELS: dict[str, ZooModel] = {
    "resnet18": ZooModel("resnet", 224, 11_689_512),
    "resnet34": ZooModel("resnet", 224, 21_797_672),
    "resnet50": ZooModel("resnet", 224, 25_557_032),
    "vgg16": ZooModel("vgg", 224, 138_357_544),
    "mobilenet_v2": ZooModel("mobilenet", 224, 3_504_872),
    # torchvision publishes 27,161,264 with the auxiliary head, which only training uses: 3,326,696 of them.
    "inception_v3": ZooModel("inception", 299, 23_834_568),
    "squeezenet": ZooModel("squeezenet1_1", 224, 1_235_496),
    "vit_b32": ZooModel("vit", 224, 88_224_232),
}


def build(
    name: str, seed: int = 0, batch: int = 1, image_size: int | None = None, classes: int = 1000
) -> onnx.ModelProto:
    """The named model; see the module's docstring. ``InputError`` for a size that the architecture doesn't take."""
    from coexec.errors import InputError
    from coexec.zoo.builder import Builder

    entry = MODELS[name]
    size = entry.image_size if image_size is None else image_size
    if min(batch, size, classes) < 1:
        raise InputError(f"{name}: batch {batch}, image_size {size} and classes {classes} have to be at least 1")
    builder = Builder(name, (batch, 3, size, size), seed)
    architecture: Callable[..., str] = getattr(import_module(f"coexec.zoo.{entry.module}"), name)
    return builder.finish(architecture(builder, classes), (batch, classes))


def __getattr__(name: str) -> Any:
    if name in MODELS:
        return partial(build, name)
    raise AttributeError(f"coexec.zoo has no model {name!r}; it has {', '.join(MODELS)}")
