"""Transposed convolution: one product for each phase of the stride, and the general kernel."""
