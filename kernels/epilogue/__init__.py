"""Epilogues: the operators fused into a weighted sum's dispatch, from int32 accumulators to the stored result."""
