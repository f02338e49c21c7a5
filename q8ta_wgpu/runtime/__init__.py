"""What runs a program: numbers and WGSL in, arrays out. Nothing here decides anything about a graph."""
