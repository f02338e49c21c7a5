"""What tests and benchmarks both stand on: networks, graphs, runs on poisoned memory, files, browsers, yardsticks.

`tests` and `bench` import it, and never each other.
"""
