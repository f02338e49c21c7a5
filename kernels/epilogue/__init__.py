"""Epilogues: what may follow a weighted sum in its own dispatch, from int32 accumulators to the stored result."""
