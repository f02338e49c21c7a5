"""The numbers by which kernels of products are chosen, with the device on which each was measured.

Times of tiles on matrix units are in `families/`.
"""

from __future__ import annotations

from collections.abc import Mapping

MANY_GROUPS = 300
"""Workgroups that keep a large GPU busy (H200)."""

SOME_GROUPS = 200
"""The same for tiles whose threads share k (H200)."""

MANY_BLOCKS = 600
"""The same for blocks of 16 queries of attention: from there on, small ones are faster (H200)."""

FEW_ROWS = 8
"""Up to this many rows a tile is mostly padding, and threads share k instead of rows (H200)."""

LONG = 8192
"""Inputs from which teams of 256 threads are faster than teams of 64 for few rows (H200: 8,192 inputs to 2,048 outputs
9.0 -> 7.7 us, with 4 bits 8.6 -> 6.3; 4,096 to 4,096 5.8 -> 7.5 us, 2,048 to 8,192 8.0 -> 9.0)."""

PADDED: Mapping[str, float] = {"64x64": 1.0, "128x32": 1.04, "64x16": 1.6}
"""Relative time for an element of the result, padding included, of large tiles on a GPU (H200)."""

EMULATED = ("64x16", "16x16")
"""The large and the small tile where dot products are emulated. Only these leave registers for four waves of a SIMD
(AMD's compiler for GCN, as `python -m bench amd` prints: 52 to 60 registers; 32x32 takes 76, 64x64 92 and 128x32 116,
for three or two waves). By that compiler's estimate an element takes 8 % longer in 64x16 than in 32x32."""

PADDED_CPU: Mapping[str, float] = {"registers_8x16": 1.0}
"""As PADDED, on a CPU (lavapipe)."""

PADDED_EXCHANGED: Mapping[str, float] = {"registers_7x16": 0.8, "registers_8x16": 1.0}
"""The same where threads exchange weights (lavapipe). The code of 7x16 has 15 KB a step; more does not fit the cache of
decoded instructions of the processor that was measured (Zen 4)."""

PADDED_CPU_NARROW: Mapping[str, float] = {"registers_8x32": 1.0, "registers_8x16": 1.2}
"""The same for kernels that assemble vectors of x from words or bytes (lavapipe)."""
