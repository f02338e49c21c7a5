"""store: copies the new value of a state to the memory from which the next run reads it. Lowering inserts it; graphs do
not have it."""

from __future__ import annotations

from q8ta_wgpu.kernels.move.strided import move, strides

store = move(
    "store",
    shape=lambda x, attrs: x,
    digits=lambda x, y, attrs: (list(zip(x, strides(x), strict=True)), 0),
    reference=lambda x, y, attrs: x,
    schema={},
    cases=(((2, 5, 3, 7), {}), ((13,), {}), ((2, 3, 2, 3, 5), {}), ((1, 8, 4, 16), {})),
)

OPS = (store,)
