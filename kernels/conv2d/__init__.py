"""Convolution: matrix products, depthwise strips, grouped convolutions, first layers that read float images, im2col."""
