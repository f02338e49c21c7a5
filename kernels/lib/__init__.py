"""What operator families share: arithmetic, and mains over words, elements, channels and rows."""
