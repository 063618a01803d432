"""Shapes of the layers of common networks, for profiles to sample beside a space-filling sample.

Inception-v3 and ViT-B/32 are left out on purpose; what else is kept for testing, `heldout` filters.
"""

from __future__ import annotations

from coexec.ops.base import SplitOp
from coexec.ops.conv2d import Conv2d
from coexec.ops.linear import Linear

# (C_in, size, C_out, kernel, stride); groups follow the name.
_RESNET = (
    (64, 56, 128, 3, 2), (64, 56, 128, 1, 2), (128, 28, 256, 3, 2), (128, 28, 256, 1, 2), (256, 14, 512, 3, 2),
    (256, 14, 512, 1, 2), (64, 56, 64, 1, 1), (256, 56, 128, 1, 1), (256, 56, 512, 1, 2), (128, 28, 512, 1, 1),
    (512, 28, 128, 1, 1), (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (1024, 14, 256, 1, 1),
    (512, 28, 1024, 1, 2), (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (2048, 7, 512, 1, 1),
    (1024, 14, 2048, 1, 2), (3, 160, 64, 7, 2), (64, 40, 64, 3, 1), (128, 20, 128, 3, 1), (256, 10, 256, 3, 1),
)  # fmt: skip
_VGG = (
    (3, 224, 64, 3, 1), (64, 224, 64, 3, 1), (64, 112, 128, 3, 1), (128, 56, 256, 3, 1), (256, 56, 256, 3, 1),
    (256, 28, 512, 3, 1), (512, 28, 512, 3, 1), (512, 14, 512, 3, 1),
)  # fmt: skip
_SQUEEZENET = (
    (3, 224, 64, 3, 2), (64, 55, 16, 1, 1), (16, 55, 64, 1, 1), (16, 55, 64, 3, 1), (128, 55, 16, 1, 1),
    (128, 27, 32, 1, 1), (32, 27, 128, 3, 1), (256, 27, 32, 1, 1), (256, 13, 48, 1, 1), (48, 13, 192, 3, 1),
    (384, 13, 64, 1, 1), (64, 13, 256, 3, 1), (512, 13, 1000, 1, 1),
)  # fmt: skip
_MOBILE = (
    (3, 224, 32, 3, 2), (32, 112, 16, 1, 1), (16, 112, 96, 1, 1), (96, 56, 24, 1, 1), (24, 56, 144, 1, 1),
    (144, 28, 32, 1, 1), (32, 28, 192, 1, 1), (192, 28, 32, 1, 1), (192, 14, 64, 1, 1), (64, 14, 384, 1, 1),
    (384, 14, 64, 1, 1), (384, 14, 96, 1, 1), (96, 14, 576, 1, 1), (576, 7, 160, 1, 1), (160, 7, 960, 1, 1),
    (960, 7, 320, 1, 1), (320, 7, 1280, 1, 1), (40, 28, 240, 1, 1), (80, 14, 480, 1, 1), (112, 14, 672, 1, 1),
)  # fmt: skip
_DETECTORS = (
    (3, 320, 16, 3, 1), (16, 160, 32, 3, 1), (32, 160, 64, 3, 2), (64, 80, 128, 3, 2), (128, 40, 128, 3, 1),
    (256, 20, 256, 3, 1), (384, 26, 256, 3, 1), (512, 20, 256, 1, 1), (256, 40, 255, 1, 1), (128, 52, 64, 1, 1),
)  # fmt: skip
_DEPTHWISE = (
    (32, 112, 3, 1), (144, 56, 3, 2), (192, 28, 3, 1), (192, 28, 3, 2), (384, 14, 3, 1), (576, 14, 3, 1),
    (576, 14, 3, 2), (960, 7, 3, 1), (144, 56, 5, 2), (240, 28, 5, 1), (480, 14, 5, 1), (672, 14, 5, 2),
    (1152, 7, 5, 1), (96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (64, 80, 3, 1), (128, 40, 3, 1),
)  # fmt: skip
# (C_in, size, C_out, kernel, stride, groups): ResNeXt, RegNet, AlexNet.
_GROUPED = (
    (128, 56, 128, 3, 1, 32), (256, 28, 256, 3, 1, 32), (512, 14, 512, 3, 1, 32), (256, 56, 256, 3, 2, 32),
    (96, 27, 256, 5, 1, 2), (384, 13, 384, 3, 1, 2), (120, 28, 120, 3, 1, 5), (240, 14, 240, 3, 1, 10),
)  # fmt: skip
# (M, K, N): BERT, GPT-2, DeiT, ViT-S and ViT-L, mixers, classifiers, perceptrons.
_LINEAR = (
    (64, 768, 768), (64, 768, 3072), (256, 768, 768), (256, 3072, 768), (384, 768, 3072), (128, 1024, 1024),
    (128, 768, 3072), (1, 768, 768), (1, 768, 3072), (8, 768, 2304), (197, 192, 192), (197, 192, 768),
    (197, 384, 384), (197, 384, 1536), (197, 1536, 384), (197, 1024, 4096), (49, 1024, 1024), (512, 196, 256),
    (196, 512, 2048), (1, 512, 1000), (1, 1280, 1000), (1, 25088, 4096), (1, 4096, 1000), (1, 9216, 4096),
    (32, 784, 512), (64, 512, 512), (100, 256, 2048), (100, 2048, 256), (3136, 96, 384), (784, 192, 768),
    (196, 384, 1152), (49, 768, 3072), (16, 1024, 4096), (4, 2048, 2048),
)  # fmt: skip


def conv(c_in: int, size: int, c_out: int, kernel: int, stride: int, groups: int = 1) -> Conv2d:
    """A square convolution that keeps its size but for the stride, with bias."""
    pad = kernel // 2
    return Conv2d(
        1, c_in, size, size, c_out, kernel, kernel, stride, stride, pad, pad, pad, pad, groups=groups, bias=True
    )


def network_layers() -> list[SplitOp]:
    """The layers of common networks, with bias, without activation."""
    layers: list[SplitOp] = [conv(*shape) for shape in (*_RESNET, *_VGG, *_SQUEEZENET, *_MOBILE, *_DETECTORS)]
    layers += [conv(c, size, c, kernel, stride, c) for c, size, kernel, stride in _DEPTHWISE]
    layers += [conv(*shape) for shape in _GROUPED]
    layers += [Linear(*shape, bias=True) for shape in _LINEAR]
    return layers
