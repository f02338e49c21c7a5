"""Pooling over windows: maxima and averages, with windows of a given size or for a given output size."""
