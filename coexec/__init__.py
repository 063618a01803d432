"""coexec: run each layer of a neural network on the CPU and on an OpenCL GPU at once."""
