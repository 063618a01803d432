"""Which converter turns which ONNX node into an op: the table, and the way in."""

from __future__ import annotations

from coexec.errors import ModelError
from coexec.frontends.converters import elementwise as e
from coexec.frontends.converters import normalization as n
from coexec.frontends.converters import pooling as p
from coexec.frontends.converters import shaping as s
from coexec.frontends.converters.convolution import conv, conv_transpose
from coexec.frontends.converters.linear import gemm, matmul
from coexec.frontends.converters.reading import fail
from coexec.frontends.converters.reduction import arg_reduce, reduce
from coexec.frontends.converters.reference import reference
from coexec.frontends.converters.resizing import resize, upsample
from coexec.frontends.onnx_node import Converted, Converter, OnnxNode
from coexec.ops.base import ArraySpec

"""Before it binary ops broadcast by attributes."""

CONVERTERS: dict[str, Converter] = {
    # matrix products and convolutions
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "MatMul": matmul,
    # pooling
    "AveragePool": p.average_pool,
    "GlobalAveragePool": p.global_pool("average"),
    "GlobalLpPool": p.global_pool("lp"),
    "GlobalMaxPool": p.global_pool("max"),
    "LpPool": p.lp_pool,
    "MaxPool": p.max_pool,
    # arithmetic, comparison and logic
    "Add": e.elementwise("add"),
    "And": e.elementwise("and"),
    "BitShift": e.bit_shift,
    "BitwiseAnd": e.elementwise("bitwise_and"),
    "BitwiseOr": e.elementwise("bitwise_or"),
    "BitwiseXor": e.elementwise("bitwise_xor"),
    "Div": e.elementwise("div"),
    "Equal": e.elementwise("equal"),
    "Greater": e.elementwise("greater"),
    "GreaterOrEqual": e.elementwise("greater_or_equal"),
    "Less": e.elementwise("less"),
    "LessOrEqual": e.elementwise("less_or_equal"),
    "Max": e.elementwise("max"),
    "Mean": e.elementwise("mean"),
    "Min": e.elementwise("min"),
    "Mod": e.mod,
    "Mul": e.elementwise("mul"),
    "Or": e.elementwise("or"),
    "PRelu": e.elementwise("prelu"),
    "Pow": e.elementwise("pow"),
    "Sub": e.elementwise("sub"),
    "Sum": e.elementwise("sum"),
    "Where": e.elementwise("where"),
    "Xor": e.elementwise("xor"),
    # functions of one input
    "Abs": e.unary("abs"),
    "Acos": e.unary("acos"),
    "Acosh": e.unary("acosh"),
    "Asin": e.unary("asin"),
    "Asinh": e.unary("asinh"),
    "Atan": e.unary("atan"),
    "Atanh": e.unary("atanh"),
    "BitwiseNot": e.unary("bitwise_not"),
    "Ceil": e.unary("ceil"),
    "Cos": e.unary("cos"),
    "Cosh": e.unary("cosh"),
    "Erf": e.unary("erf"),
    "Exp": e.unary("exp"),
    "Floor": e.unary("floor"),
    "IsInf": e.unary("is_inf", detect_negative=1, detect_positive=1),
    "IsNaN": e.unary("is_nan"),
    "Log": e.unary("log"),
    "Neg": e.unary("neg"),
    "Not": e.unary("not"),
    "Reciprocal": e.unary("reciprocal"),
    "Round": e.unary("round"),
    "Sign": e.unary("sign"),
    "Sin": e.unary("sin"),
    "Sinh": e.unary("sinh"),
    "Sqrt": e.unary("sqrt"),
    "Tan": e.unary("tan"),
    # activations
    "Celu": e.celu,
    "Clip": e.clip,
    "Elu": e.unary("elu", alpha=1.0),
    "Gelu": e.gelu,
    "HardSigmoid": e.unary("hard_sigmoid", alpha=0.2, beta=0.5),
    "HardSwish": e.activation("hard_swish"),
    "LeakyRelu": e.activation("leaky_relu", alpha=0.01),
    "Mish": e.unary("mish"),
    "Relu": e.activation("relu"),
    "Selu": e.unary("selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Shrink": e.unary("shrink", lambd=0.5, bias=0.0),
    "Sigmoid": e.activation("sigmoid"),
    "Softplus": e.unary("softplus"),
    "Softsign": e.unary("softsign"),
    "Swish": e.swish,
    "Tanh": e.activation("tanh"),
    "ThresholdedRelu": e.unary("thresholded_relu", alpha=1.0),
    # dtype and nothing at all
    "Cast": e.cast,
    "CastLike": e.cast_like,
    "Dropout": e.dropout,
    "Identity": e.identity,
    # moving elements
    "Concat": s.concat,
    "DepthToSpace": s.depth_to_space,
    "Expand": s.expand,
    "Flatten": s.flatten,
    "Gather": s.gather,
    "GatherElements": s.gather_elements,
    "GatherND": s.gather_nd,
    "Pad": s.pad,
    "Reshape": s.reshape,
    "Slice": s.slice_,
    "SpaceToDepth": s.space_to_depth,
    "Split": s.split,
    "Squeeze": s.squeeze,
    "Tile": s.tile,
    "Transpose": s.transpose,
    "Unsqueeze": s.unsqueeze,
    # resizing
    "Resize": resize,
    "Upsample": upsample,
    # reductions
    "ArgMax": arg_reduce(largest=True),
    "ArgMin": arg_reduce(largest=False),
    "ReduceL1": reduce("l1"),
    "ReduceL2": reduce("l2"),
    "ReduceLogSum": reduce("log_sum"),
    "ReduceLogSumExp": reduce("log_sum_exp"),
    "ReduceMax": reduce("max"),
    "ReduceMean": reduce("mean"),
    "ReduceMin": reduce("min"),
    "ReduceProd": reduce("prod"),
    "ReduceSum": reduce("sum", axes_input_opset=13),
    "ReduceSumSquare": reduce("sum_square"),
    # normalisation
    "BatchNormalization": n.batch_norm,
    "GroupNormalization": n.group_norm,
    "InstanceNormalization": n.instance_norm,
    "LRN": n.lrn,
    "LayerNormalization": n.layer_norm,
    "LogSoftmax": n.softmax(log=True),
    "RMSNormalization": n.rms_norm,
    "Softmax": n.softmax(log=False),
}
"""Op type (default domain) -> converter. Any other goes to the ONNX reference evaluator."""


def convert(node: OnnxNode) -> Converted:
    """The op for a node. Raises ModelError naming the node, its op type and the reason."""
    standard = node.domain in ("", "ai.onnx")
    converter = CONVERTERS.get(node.op_type) if standard else None
    converted = (converter or reference)(node)
    try:
        converted.op.infer([_spec(node, source) for source in converted.inputs])
    except ModelError as error:
        raise fail(node, str(error)) from None
    return converted


def _spec(node: OnnxNode, source: object) -> ArraySpec | None:
    """Spec of an op's input: a new constant, or an input of the node by name."""
    if not isinstance(source, str):
        return ArraySpec(source.shape, source.dtype)  # type: ignore[attr-defined]
    return node.specs[node.inputs.index(source)] if source else None
