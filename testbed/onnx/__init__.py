"""ONNX files: what makes them, what quantizes them, and what they are compared with."""
