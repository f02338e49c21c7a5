"""Linear and matmul."""
