"""The numbers by which kernels are chosen, with the device on which each was measured.

Times of tiles on matrix units are in `kernels/product/families/`. What no one measured says so.
"""

from __future__ import annotations

from collections.abc import Mapping

MANY_GROUPS = 300
"""Workgroups that keep a large GPU busy (H200)."""

SOME_GROUPS = 200
"""The same for tiles whose threads share k (H200)."""

FEW_MACS = 1 << 25
"""Up to this many multiply-accumulates of a 1x1 convolution, the depthwise one behind it makes its image: one dispatch
less to wait for is worth more than the rows between workgroups that are made twice (H100, MobileNetV2 at batch 1 to 32:
up to 30 million both take 0.57 to 0.94 of two dispatches' time, 38 to 77 million 0.75 to 1.18, above 1.1 to 2.4). Other
GPUs were not timed; tuning times both forms."""

FEW_QUERIES = 4
"""Up to this many queries of a head, each gets its own workgroup. A decoder that generates a token has one. Not
measured beyond that."""

MANY_THREADS = 1 << 16
"""Threads that keep a large GPU busy. With fewer, more threads share a row or an image that is averaged, and threads
take shorter strips of a depthwise or grouped convolution (H200)."""

MANY_STRIPS = MANY_THREADS // 2
"""From this many threads on a depthwise strip of twice as many rows is faster (H100: 3x3 windows with 28 thousand to 61
thousand threads)."""

ITEMS = {1: 16, 4: 8}
"""The most items that a thread reads of a row where there are many rows, by the elements of an item (H200)."""

FEW_RESULTS, LARGE_WINDOW = 1 << 13, 256
"""Teams of threads share windows of at least LARGE_WINDOW elements where there are at most FEW_RESULTS results, too few
to keep a GPU busy with one thread each (H200; 100 MB of int16 took 1.7 ms with one thread for each result)."""

MOST_HELD = 4
"""The most words of a row for which a thread of a norm loads all its words once and holds them in registers. With more
words for each thread there are many rows, which hide the latency of memory without that (H200)."""

MOST_TAPS = 16
"""The most taps of a row times pixels of a strip of a grouped convolution that a CPU's compiler holds in registers
(lavapipe)."""

MACS_A_BYTE = {"tiled": 8.0, "shared": 4.0, "direct": 0.75}
"""Multiply-accumulates that a kernel computes in the time in which a large GPU moves a byte, by the kind of kernel:
orders of magnitude (H200)."""

SPLITTING = 24
"""The time to split rows of int16 into rows of int8, as a number of channels that are multiplied in that time
(H200)."""

UNPACKING = 24
"""The same for weights of 4 bits that become two int8, as a number of rows: a guess, by which the chosen tile takes at
most a tenth longer than the fastest (H200)."""

FEW_ROWS = 8
"""Up to this many rows a tile is mostly padding, and threads share k instead of rows (H200)."""

SHALLOW: Mapping[int, int] = {4: 256, FEW_ROWS: 1024}
"""By the most rows, up to how many inputs a tile is faster even so on a GPU: threads that share k add their sums one
after another (H100: 8 rows of 24 inputs 4.8 -> 3.2 us, of 576 18.8 -> 16.4; one row of 40 14.2 -> 12.0, but of 1,280
4.2 -> 5.2)."""

PADDED: Mapping[str, float] = {"64x64": 1.0, "128x32": 1.04, "64x16": 1.6}
"""Relative time for an element of the result, padding included, of large tiles on a GPU (H200). What AMD's compiler
estimates for RDNA 2 to 4 (`python -m bench amd`) chooses the same tiles for any number of channels."""

EMULATED = ("64x16", "16x16")
"""The large and the small tile where dot products are emulated. Only these leave registers for four waves of a SIMD
(AMD's compiler for GCN, as `python -m bench amd` prints: 52 to 60 registers; 32x32 takes 76, 64x64 92 and 128x32 116,
for three or two waves). By that compiler's estimate an element takes 8 % longer in 64x16 than in 32x32."""

PADDED_CPU: Mapping[str, float] = {"registers_8x32": 1.0, "registers_7x16": 0.96, "registers_8x16": 1.2}
"""As PADDED, on a CPU (lavapipe). The first is for kernels that assemble vectors of x from words or bytes, the second
where threads exchange weights, the last one for all. The code of 7x16 has 15 KB a step; more does not fit the cache of
decoded instructions of the processor that was measured (Zen 4). Without 8x32 or 7x16, the products of some network take
1.2 and 1.4 times as long by this table."""
