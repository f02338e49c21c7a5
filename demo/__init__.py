"""Upscale a real photograph with an int8 network: tooling of the repository, not part of the package."""
