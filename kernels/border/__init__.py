"""Between float32 and int8: quantize and dequantize."""
