"""Transposed convolution: a matrix product for each phase of the stride, and a kernel for any call."""
