"""Batch, layer and group norm, and softmax."""
