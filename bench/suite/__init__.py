"""Small networks with real weights, for `python -m bench accuracy`: their data, their training, their weights."""
