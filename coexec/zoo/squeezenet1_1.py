"""SqueezeNet 1.1 (Iandola et al., arXiv 1602.07360), torchvision's squeezenet1_1."""

from __future__ import annotations

from coexec.zoo.builder import Builder

# index in torchvision's features: (squeeze, expand) of a fire module, None for pooling
FEATURES = {
    2: None, 3: (16, 64), 4: (16, 64), 5: None, 6: (32, 128), 7: (32, 128), 8: None,
    9: (48, 192), 10: (48, 192), 11: (64, 256), 12: (64, 256),
}  # fmt: skip


def squeezenet(b: Builder, classes: int) -> str:
    x = b.relu(b.conv("input", "features.0", 64, 3, 2, bias=True), "features.1")
    for index, fire in FEATURES.items():
        name = f"features.{index}"
        x = b.pool(x, name, "MaxPool", 3, 2, ceil_mode=True) if fire is None else _fire(b, x, name, *fire)
    x = b.relu(b.conv(x, "classifier.1", classes, 1, bias=True), "classifier.2")
    return b.flatten(b.global_pool(x, "classifier.3"), "flatten")


def _fire(b: Builder, x: str, name: str, squeeze: int, expand: int) -> str:
    s = b.relu(b.conv(x, f"{name}.squeeze", squeeze, 1, bias=True), f"{name}.squeeze_activation")
    parts = [
        b.relu(b.conv(s, f"{name}.expand{k}x{k}", expand, k, 1, k // 2, bias=True), f"{name}.expand{k}x{k}_activation")
        for k in (1, 3)
    ]
    return b.concat(parts, f"{name}.concat")
