"""Sums, means and extremes over dimensions."""
