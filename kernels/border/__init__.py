"""Conversions between float32, int32, int16 and int8: quantize, dequantize, and scales of rows."""
