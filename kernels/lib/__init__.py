"""What operator families share: index functions, arithmetic, mains over words, elements, channels and rows."""
