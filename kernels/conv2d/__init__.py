"""Convolution: 1x1 and implicit products, depthwise strips, groups, and first layers that read an image."""
