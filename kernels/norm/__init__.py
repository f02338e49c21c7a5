"""Norms (batch, layer, group, instance and rms), and softmax."""
