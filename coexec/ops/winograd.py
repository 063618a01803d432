"""Winograd convolution F(m x m, 3 x 3): transforms that both sides' implementations use.

A tile of (m + 2) x (m + 2) inputs gives m x m outputs with (m + 2)^2 products instead of 9 m^2.
Method: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv 1509.09308.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from coexec.layout import Array
from coexec.ops.base import Ints
from coexec.ops.conv2d import output_height, output_width

WEIGHT = {
    4: np.array(
        [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
         [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
    ),
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
}  # fmt: skip
"""m -> G of G g G^T."""
INPUT = {
    4: np.array(
        [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0],
         [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]
    ),
    2: np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]),
}  # fmt: skip
"""m -> B^T of B^T d B."""
OUTPUT = {
    4: np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]),
    2: np.array([[1, 1, 1, 0], [0, 1, -1, -1]]),
}
"""m -> A^T of A^T p A."""
BLOCK_ELEMENTS = 1 << 18


def plain_3x3(c: Mapping[str, Ints]) -> npt.NDArray[np.bool_]:
    """Which candidates are 3x3 with stride 1, undilated and ungrouped: what F(m x m, 3 x 3) computes."""
    fits = (c["KH"] == 3) & (c["KW"] == 3) & (c["groups"] == 1)
    for name in ("stride_h", "stride_w", "dilation_h", "dilation_w"):
        fits = fits & (c[name] == 1)
    return np.asarray(fits)


def tiles(c: Mapping[str, Ints], m: Ints | int) -> Ints:
    """Tiles of m x m outputs that cover the output."""
    return np.asarray(c["N"] * -(-output_height(c) // m) * -(-output_width(c) // m), np.int64)


def transformed_blocks(weight: Array, m: int) -> Iterator[tuple[slice, Array]]:
    """The transform of a canonical weight [3, 3, C_in, C_out], some input channels at a time.

    Gives the channels and [(m + 2)^2, channels, C_out] in float64, small enough for a core's cache.
    """
    both_axes = np.kron(WEIGHT[m], WEIGHT[m])
    channels_in, channels_out = weight.shape[2:]
    step = max(1, BLOCK_ELEMENTS // (len(both_axes) * channels_out))
    for start in range(0, channels_in, step):
        some = slice(start, min(start + step, channels_in))
        taps = np.ascontiguousarray(weight[:, :, some], np.float64).reshape(9, -1)
        yield some, (both_axes @ taps).reshape(len(both_axes), -1, channels_out)


def transformed_weight(weight: Array, m: int) -> Array:
    """[(m + 2)^2, C_in, C_out] in float32 of a canonical weight [3, 3, C_in, C_out]; computed in float64."""
    transformed = np.empty(((m + 2) ** 2, *weight.shape[2:]), np.float32)
    for channels, block in transformed_blocks(weight, m):
        transformed[:, channels] = block
    return transformed
