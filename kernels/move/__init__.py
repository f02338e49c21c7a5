"""Operators that move elements: view, permute, slice, cat, pad, shuffles, resizing, gather and update."""
