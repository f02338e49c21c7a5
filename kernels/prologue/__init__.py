"""What a product reads: tensors of which it takes words while it loads them."""
