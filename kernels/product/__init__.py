"""Matrix products: the tiled int8 and float32 ones behind linear, convolution and matmul, and their weights."""
