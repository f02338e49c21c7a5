"""Attention in one dispatch: scores, softmax and context of int8."""
