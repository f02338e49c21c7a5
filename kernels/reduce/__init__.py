"""Reductions over dimensions: sums, means, extremes and their indices; sorting; running sums and products."""
