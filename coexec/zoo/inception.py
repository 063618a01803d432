"""Inception-v3 (Szegedy et al., CVPR 2016), torchvision's form without the auxiliary head."""

from __future__ import annotations

from coexec.zoo.builder import Builder


def inception_v3(b: Builder, classes: int) -> str:
    x = _conv(b, "input", "Conv2d_1a_3x3", 32, 3, 2)
    x = _conv(b, x, "Conv2d_2a_3x3", 32, 3)
    x = _conv(b, x, "Conv2d_2b_3x3", 64, 3, 1, 1)
    x = b.pool(x, "maxpool1", "MaxPool", 3, 2)
    x = _conv(b, x, "Conv2d_3b_1x1", 80, 1)
    x = _conv(b, x, "Conv2d_4a_3x3", 192, 3)
    x = b.pool(x, "maxpool2", "MaxPool", 3, 2)
    for name, pool_channels in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = _block_a(b, x, name, pool_channels)
    x = _block_b(b, x, "Mixed_6a")
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = _block_c(b, x, name, width)
    x = _block_d(b, x, "Mixed_7a")
    for name in ("Mixed_7b", "Mixed_7c"):
        x = _block_e(b, x, name)
    return b.gemm(b.flatten(b.global_pool(x, "avgpool"), "flatten"), "fc", classes)


def _conv(
    b: Builder,
    x: str,
    name: str,
    channels: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> str:
    y = b.conv(x, f"{name}.conv", channels, kernel, stride, padding)
    return b.relu(b.batch_norm(y, f"{name}.bn", epsilon=1e-3), f"{name}.relu")


def _pooled(b: Builder, x: str, name: str, channels: int) -> str:
    return _conv(b, b.pool(x, f"{name}.avgpool", "AveragePool", 3, 1, 1), f"{name}.branch_pool", channels, 1)


def _block_a(b: Builder, x: str, n: str, pool_channels: int) -> str:
    one = _conv(b, x, f"{n}.branch1x1", 64, 1)
    five = _conv(b, _conv(b, x, f"{n}.branch5x5_1", 48, 1), f"{n}.branch5x5_2", 64, 5, 1, 2)
    three = _conv(b, x, f"{n}.branch3x3dbl_1", 64, 1)
    three = _conv(b, three, f"{n}.branch3x3dbl_2", 96, 3, 1, 1)
    three = _conv(b, three, f"{n}.branch3x3dbl_3", 96, 3, 1, 1)
    return b.concat([one, five, three, _pooled(b, x, n, pool_channels)], f"{n}.concat")


def _block_b(b: Builder, x: str, n: str) -> str:
    three = _conv(b, x, f"{n}.branch3x3", 384, 3, 2)
    double = _conv(b, x, f"{n}.branch3x3dbl_1", 64, 1)
    double = _conv(b, double, f"{n}.branch3x3dbl_2", 96, 3, 1, 1)
    double = _conv(b, double, f"{n}.branch3x3dbl_3", 96, 3, 2)
    return b.concat([three, double, b.pool(x, f"{n}.maxpool", "MaxPool", 3, 2)], f"{n}.concat")


def _block_c(b: Builder, x: str, n: str, width: int) -> str:
    one = _conv(b, x, f"{n}.branch1x1", 192, 1)
    row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    seven = _conv(b, x, f"{n}.branch7x7_1", width, 1)
    for i, ((kernel, padding), channels) in enumerate(((row, width), (column, 192)), 2):
        seven = _conv(b, seven, f"{n}.branch7x7_{i}", channels, kernel, 1, padding)
    double = _conv(b, x, f"{n}.branch7x7dbl_1", width, 1)
    for i, ((kernel, padding), channels) in enumerate(((column, width), (row, width), (column, width), (row, 192)), 2):
        double = _conv(b, double, f"{n}.branch7x7dbl_{i}", channels, kernel, 1, padding)
    return b.concat([one, seven, double, _pooled(b, x, n, 192)], f"{n}.concat")


def _block_d(b: Builder, x: str, n: str) -> str:
    three = _conv(b, _conv(b, x, f"{n}.branch3x3_1", 192, 1), f"{n}.branch3x3_2", 320, 3, 2)
    seven = _conv(b, x, f"{n}.branch7x7x3_1", 192, 1)
    seven = _conv(b, seven, f"{n}.branch7x7x3_2", 192, (1, 7), 1, (0, 3))
    seven = _conv(b, seven, f"{n}.branch7x7x3_3", 192, (7, 1), 1, (3, 0))
    seven = _conv(b, seven, f"{n}.branch7x7x3_4", 192, 3, 2)
    return b.concat([three, seven, b.pool(x, f"{n}.maxpool", "MaxPool", 3, 2)], f"{n}.concat")


def _block_e(b: Builder, x: str, n: str) -> str:
    one = _conv(b, x, f"{n}.branch1x1", 320, 1)
    three = _conv(b, x, f"{n}.branch3x3_1", 384, 1)
    double = _conv(b, _conv(b, x, f"{n}.branch3x3dbl_1", 448, 1), f"{n}.branch3x3dbl_2", 384, 3, 1, 1)
    parts = [one]
    for source, branch in ((three, "branch3x3_2"), (double, "branch3x3dbl_3")):
        a = _conv(b, source, f"{n}.{branch}a", 384, (1, 3), 1, (0, 1))
        c = _conv(b, source, f"{n}.{branch}b", 384, (3, 1), 1, (1, 0))
        parts.append(b.concat([a, c], f"{n}.{branch}.concat"))
    return b.concat([*parts, _pooled(b, x, n, 192)], f"{n}.concat")
