"""Rotary position embeddings: pairs of elements rotated by angles."""
