"""ResNet (He et al., Deep Residual Learning, CVPR 2016), torchvision's form: stride on the 3x3 convolution."""

from __future__ import annotations

from coexec.zoo.builder import Builder

DAMPED = 0.3
"""Scale of a branch's last batch normalisation: keeps activations of order 1 through the depth."""


def resnet18(b: Builder, classes: int) -> str:
    return _resnet(b, classes, (2, 2, 2, 2), bottleneck=False)


def resnet34(b: Builder, classes: int) -> str:
    return _resnet(b, classes, (3, 4, 6, 3), bottleneck=False)


def resnet50(b: Builder, classes: int) -> str:
    return _resnet(b, classes, (3, 4, 6, 3), bottleneck=True)


def _resnet(b: Builder, classes: int, blocks: tuple[int, ...], bottleneck: bool) -> str:
    x = b.relu(b.batch_norm(b.conv("input", "conv1", 64, 7, 2, 3), "bn1"), "relu")
    x = b.pool(x, "maxpool", "MaxPool", 3, 2, 1)
    for stage, count in enumerate(blocks):
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            x = _block(b, x, f"layer{stage + 1}.{i}", 64 << stage, stride, bottleneck)
    return b.gemm(b.flatten(b.global_pool(x, "avgpool"), "flatten"), "fc", classes)


def _block(b: Builder, x: str, name: str, width: int, stride: int, bottleneck: bool) -> str:
    channels = width * (4 if bottleneck else 1)
    # (kernel, channels, stride) of the branch
    convs = [(1, width, 1), (3, width, stride), (1, channels, 1)] if bottleneck else [(3, width, stride), (3, width, 1)]
    y = x
    for i, (kernel, out, s) in enumerate(convs, 1):
        last = i == len(convs)
        y = b.conv(y, f"{name}.conv{i}", out, kernel, s, kernel // 2)
        y = b.batch_norm(y, f"{name}.bn{i}", DAMPED if last else 1.0)
        y = y if last else b.relu(y, f"{name}.relu{i}")
    shortcut = x
    if stride != 1 or b.shape[x][1] != channels:
        shortcut = b.conv(x, f"{name}.downsample.0", channels, 1, stride)
        shortcut = b.batch_norm(shortcut, f"{name}.downsample.1", 0.7)
    return b.relu(b.add(y, shortcut, f"{name}.add"), f"{name}.relu")
