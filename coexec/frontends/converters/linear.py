"""MatMul and Gemm: a Linear, which can be cut, where the weights are constant."""

from __future__ import annotations

import numpy as np

from coexec.frontends.converters.reading import integer, is_float, number, present, shape, spec
from coexec.frontends.onnx_node import Converted, OnnxNode
from coexec.layout import Array
from coexec.ops.linear import Linear
from coexec.ops.matmul import Gemm, MatMul
from coexec.ops.operands import element_count


def matmul(node: OnnxNode) -> Converted:
    a, b, weight = shape(node, 0), shape(node, 1), node.constants[1]
    fits = len(b) == 2 and bool(a) and a[-1] == b[0]
    if weight is None or not fits or not is_float(spec(node, 0)):
        return Converted(MatMul(), node.inputs)
    return Converted(Linear(element_count(a[:-1]), b[0], b[1]), node.inputs)


def gemm(node: OnnxNode) -> Converted:
    """alpha, beta and transB go into the constants; what that leaves open stays a Gemm."""
    general = Gemm(
        number(node, "alpha", 1.0),
        number(node, "beta", 1.0),
        bool(integer(node, "transA", 0)),
        bool(integer(node, "transB", 0)),
    )
    a, weight = shape(node, 0), node.constants[1]
    if weight is None or weight.ndim != 2 or general.transpose_a or not is_float(spec(node, 0)):
        return Converted(general, node.inputs)
    matrix = weight.T if general.transpose_b else weight
    k, n = matrix.shape
    folded: str | Array = node.inputs[1]
    if general.transpose_b or general.alpha != 1:
        folded = np.ascontiguousarray(matrix * np.asarray(general.alpha, matrix.dtype))
    if not present(node, 2) or general.beta == 0:
        return Converted(Linear(a[0], k, n), (node.inputs[0], folded))
    bias = _bias(node.constants[2], general.beta, n)
    if bias is not None:
        return Converted(Linear(a[0], k, n, bias=True), (node.inputs[0], folded, bias))
    if node.constants[2] is None and general.beta == 1 and shape(node, 2) == (a[0], n):
        return Converted(Linear(a[0], k, n, residual=True), (node.inputs[0], folded, "", node.inputs[2]))
    return Converted(general, node.inputs)


def _bias(c: Array | None, beta: float, n: int) -> Array | None:
    """beta * c as one value per column, where c is constant and the same in every row."""
    if c is None or c.size not in (1, n) or (c.ndim > 0 and c.shape[-1] != c.size):
        return None
    return np.ascontiguousarray(np.broadcast_to(c.reshape(-1) * np.asarray(beta, c.dtype), (n,)))
