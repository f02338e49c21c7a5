"""Convolution: 1x1 and implicit products, depthwise strips, groups, first layers that read an image, im2col."""
