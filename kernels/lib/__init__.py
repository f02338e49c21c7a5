"""Code that operator families share: arithmetic, and entry points over words, elements, channels and rows."""
