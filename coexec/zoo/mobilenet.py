"""MobileNetV2 (Sandler et al., CVPR 2018), width 1.0."""

from __future__ import annotations

from coexec.zoo.builder import Builder

# expansion, channels, repeats, stride of the first
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(b: Builder, classes: int) -> str:
    x = _conv_bn_relu6(b, "input", "features.0", 32, 3, 2)
    index = 1
    for expansion, channels, repeats, first_stride in STAGES:
        for i in range(repeats):
            x = _inverted_residual(b, x, f"features.{index}", expansion, channels, first_stride if i == 0 else 1)
            index += 1
    x = _conv_bn_relu6(b, x, f"features.{index}", 1280, 1, 1)
    return b.gemm(b.flatten(b.global_pool(x, "avgpool"), "flatten"), "classifier.1", classes)


def _conv_bn_relu6(b: Builder, x: str, name: str, channels: int, kernel: int, stride: int, groups: int = 1) -> str:
    y = b.conv(x, f"{name}.0", channels, kernel, stride, kernel // 2, groups)
    return b.relu6(b.batch_norm(y, f"{name}.1"), f"{name}.2")


def _inverted_residual(b: Builder, x: str, name: str, expansion: int, channels: int, stride: int) -> str:
    hidden = b.shape[x][1] * expansion
    y = x if expansion == 1 else _conv_bn_relu6(b, x, f"{name}.expand", hidden, 1, 1)
    y = _conv_bn_relu6(b, y, f"{name}.depthwise", hidden, 3, stride, groups=hidden)
    keeps = stride == 1 and b.shape[x][1] == channels
    y = b.batch_norm(b.conv(y, f"{name}.project", channels, 1), f"{name}.bn", 0.5 if keeps else 1.0)
    return b.add(x, y, f"{name}.add") if keeps else y
