"""From ONNX nodes to ops, a module per family; onnx_ops.py lists them all."""
