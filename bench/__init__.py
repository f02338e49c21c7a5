"""Benchmarks: `python -m bench PART` for GPU times, `python -m pytest bench` for pytest-benchmark's tables."""
