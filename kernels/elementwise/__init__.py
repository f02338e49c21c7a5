"""Elementwise operators of one and two tensors, and the 256-entry table that int8 ones become."""
