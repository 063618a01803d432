"""VGG-16 (Simonyan and Zisserman, ICLR 2015), torchvision's vgg16 without batch normalisation."""

from __future__ import annotations

from coexec.errors import InputError
from coexec.zoo.builder import Builder

LAYERS = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")


def vgg16(b: Builder, classes: int) -> str:
    x, index = "input", 0
    for layer in LAYERS:
        if isinstance(layer, int):
            x = b.relu(b.conv(x, f"features.{index}", layer, 3, 1, 1, bias=True), f"features.{index + 1}")
            index += 2
        else:
            x = b.pool(x, f"features.{index}", "MaxPool", 2, 2)
            index += 1
    if b.shape[x][2:] != (7, 7):
        raise InputError("vgg16 is built for image_size=224")  # adaptive pooling to 7x7 is the identity there
    x = b.flatten(x, "flatten")
    x = b.relu(b.gemm(x, "classifier.0", 4096), "classifier.1")
    x = b.relu(b.gemm(x, "classifier.3", 4096), "classifier.4")
    return b.gemm(x, "classifier.6", classes)
