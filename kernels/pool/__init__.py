"""Pooling over windows: maximum, average, adaptive average."""
