"""Operators that move elements and compute nothing: view, permute, slice, cat, pad, shuffles, resizes, copies."""
