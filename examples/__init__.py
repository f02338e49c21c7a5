"""Programs to start from. Each runs by itself, `python -m examples.NAME`, and is run by the tests."""
