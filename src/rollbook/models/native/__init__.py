"""Kernels of our own for the processor, in C++: what they compute, how they are built, and how tensors reach them."""
