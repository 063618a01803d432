"""ViT-B/32 (Dosovitskiy et al., ICLR 2021), torchvision's vit_b_32."""

from __future__ import annotations

import numpy as np

from coexec.errors import InputError
from coexec.zoo.builder import Builder

WIDTH, DEPTH, HEADS, MLP, PATCH = 768, 12, 12, 3072, 32


def vit_b32(b: Builder, classes: int) -> str:
    if b.input_shape[2] % PATCH:
        raise InputError(f"vit_b32: image_size {b.input_shape[2]} is no multiple of {PATCH}")
    x = b.conv("input", "conv_proj", WIDTH, PATCH, PATCH, bias=True)
    n, _, height, width = b.shape[x]
    patches = height * width
    flat = b.constant("patches.shape", np.array([n, WIDTH, patches], np.int64))
    x = b.node("Reshape", "patches", [x, flat], (n, WIDTH, patches))
    x = b.node("Transpose", "tokens", [x], (n, patches, WIDTH), perm=[0, 2, 1])
    token = b.constant("class_token", b.normal((1, 1, WIDTH), 0.5), trained=True)
    if n > 1:
        repeats = b.constant("class_token.repeats", np.array([n, 1, 1], np.int64))
        token = b.node("Tile", "class_tokens", [token, repeats], (n, 1, WIDTH))
    else:
        b.shape[token] = (1, 1, WIDTH)
    x = b.concat([token, x], "with_class_token", axis=1)
    position = b.constant("encoder.pos_embedding", b.normal((1, patches + 1, WIDTH), 0.02), trained=True)
    x = b.add(x, position, "embedded")
    for i in range(DEPTH):
        x = _block(b, x, f"encoder.layers.{i}")
    x = _layer_norm(b, x, "encoder.ln")
    first = b.constant("class_index", np.array(0, np.int64))
    x = b.node("Gather", "class_out", [x, first], (n, WIDTH), axis=1)
    return b.gemm(x, "heads.head", classes)


def _block(b: Builder, x: str, name: str) -> str:
    y = _attention(b, _layer_norm(b, x, f"{name}.ln_1"), f"{name}.self_attention")
    x = b.add(y, x, f"{name}.add_1")
    y = b.linear(_layer_norm(b, x, f"{name}.ln_2"), f"{name}.mlp.0", MLP, gain=2)
    y = b.node("Gelu", f"{name}.mlp.1", [y], b.shape[y])
    y = b.linear(y, f"{name}.mlp.3", WIDTH)
    return b.add(y, x, f"{name}.add_2")


def _attention(b: Builder, x: str, name: str) -> str:
    n, tokens, _ = b.shape[x]
    depth = WIDTH // HEADS
    joint = b.linear(x, f"{name}.in_proj", 3 * WIDTH)
    heads = b.constant(f"{name}.heads.shape", np.array([n, tokens, HEADS, depth], np.int64))
    pieces = b.split(joint, [f"{name}.{part}" for part in ("q", "k", "v")])
    q, k, v = (b.node("Reshape", f"{piece}.heads", [piece, heads], (n, tokens, HEADS, depth)) for piece in pieces)
    q = b.node("Transpose", f"{q}.t", [q], (n, HEADS, tokens, depth), perm=[0, 2, 1, 3])
    k = b.node("Transpose", f"{k}.t", [k], (n, HEADS, depth, tokens), perm=[0, 2, 3, 1])
    v = b.node("Transpose", f"{v}.t", [v], (n, HEADS, tokens, depth), perm=[0, 2, 1, 3])
    scores = b.node("MatMul", f"{name}.scores", [q, k], (n, HEADS, tokens, tokens))
    scale = b.constant(f"{name}.scale", np.array(depth**-0.5, np.float32))
    scores = b.node("Mul", f"{name}.scaled", [scores, scale], b.shape[scores])
    weights = b.node("Softmax", f"{name}.weights", [scores], b.shape[scores], axis=-1)
    mixed = b.node("MatMul", f"{name}.mixed", [weights, v], (n, HEADS, tokens, depth))
    mixed = b.node("Transpose", f"{name}.merged", [mixed], (n, tokens, HEADS, depth), perm=[0, 2, 1, 3])
    joined = b.constant(f"{name}.joined.shape", np.array([n, tokens, WIDTH], np.int64))
    mixed = b.node("Reshape", f"{name}.joined", [mixed, joined], (n, tokens, WIDTH))
    return b.linear(mixed, f"{name}.out_proj", WIDTH)


def _layer_norm(b: Builder, x: str, name: str) -> str:
    scale = b.constant(f"{name}.weight", 1 + b.normal((WIDTH,), 0.05), trained=True)
    bias = b.constant(f"{name}.bias", b.normal((WIDTH,), 0.05), trained=True)
    return b.node("LayerNormalization", name, [x, scale, bias], b.shape[x], axis=-1, epsilon=1e-6)
