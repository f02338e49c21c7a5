"""Packed layouts: numpy against the address formulas, and the WGSL index functions against numpy on a GPU."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
import wgpu
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from q8ta_wgpu.ir.layout import (
    INT8_LAYOUTS,
    PACKINGS,
    ROW_MAJOR,
    Layout,
    Shape,
    canonical,
    pack,
    packed_axis,
    unpack,
    word_count,
    word_grid,
)
from q8ta_wgpu.program import resolve
from testbed.layout_graphs import byte_address

AWKWARD = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13)  # primes, 1, multiples of 4 and their neighbours
GPU_LAYOUTS = (*INT8_LAYOUTS, ROW_MAJOR)

IntArray = NDArray[np.int64]
each_layout = pytest.mark.parametrize("layout", INT8_LAYOUTS, ids=lambda layout: layout.short)


@cache
def awkward_shapes(rank: int) -> tuple[Shape, ...]:
    """Every awkward size alone on each axis, then random combinations (fixed seed)."""
    rng = np.random.default_rng(rank)
    alone = [tuple(size if axis == a else 3 for a in range(rank)) for axis, size in product(range(rank), AWKWARD)]
    mixed = [tuple(int(d) for d in rng.choice(AWKWARD[:9] if rank < 5 else AWKWARD[:6], rank)) for _ in range(25)]
    return tuple(dict.fromkeys([*alone, *mixed]))


def positions(extents: Shape) -> IntArray:
    """All (n, c, h, w) of the canonical extents in row-major order: (elements, 4)."""
    return np.ascontiguousarray(np.indices(extents).reshape(4, -1).T)


def addresses(places: IntArray, shape: Shape, layout: Layout) -> IntArray:
    n, c, h, w = places.T
    return byte_address(n, c, h, w, shape, layout)


def padded_extents(shape: Shape, layout: Layout) -> Shape:
    """Canonical extents rounded up to whole words and blocks, spelled out layout by layout."""
    n, c, h, w = canonical(shape)
    c4, h4, w4 = (-(-d // 4) * 4 for d in (c, h, w))
    return {
        Layout.PACKED_INT8_4W: (n, c, h, w4),
        Layout.PACKED_INT8_4C: (n, c4, h, w),
        Layout.PACKED_INT8_4C1W: (n, c4, h, w),
        Layout.PACKED_INT8_4W4C: (n, c4, h, w4),
        Layout.PACKED_INT8_4H4W: (n, c, h4, w4),
        ROW_MAJOR: (n, c, h, w),
    }[layout]


def random_int8(shape: Shape) -> NDArray[np.int8]:
    return np.random.default_rng(0).integers(-128, 128, shape, np.int8)


def check_packing(shape: Shape, layout: Layout) -> None:
    """Round trip, agreement with byte_address byte by byte, and the padding."""
    array = random_int8(shape)
    words = pack(array, layout)
    held = words.view(np.int8)
    where = addresses(positions(canonical(shape)), shape, layout)
    padding = np.delete(held, where)

    assert words.dtype == np.uint32 and words.shape == (word_count(shape, layout),)
    assert np.array_equal(unpack(words, shape, layout), array) and unpack(words, shape, layout).shape == shape
    assert np.unique(where).size == array.size  # no two elements share a byte
    assert np.array_equal(held[where], array.reshape(-1))
    assert padding.size == np.prod(padded_extents(shape, layout)) - array.size and not padding.any()
    poisoned = held.copy()
    poisoned[np.setdiff1d(np.arange(held.size), where)] = 77
    assert np.array_equal(unpack(poisoned.view(np.uint32), shape, layout), array)  # padding is never read


@each_layout
@pytest.mark.parametrize("rank", range(1, 6))
def test_pack_and_unpack(layout: Layout, rank: int) -> None:
    for shape in awkward_shapes(rank):
        check_packing(shape, layout)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=3).map(tuple)
    | st.lists(st.integers(1, 6), min_size=4, max_size=5).map(tuple),
    st.sampled_from(INT8_LAYOUTS),
)
def test_pack_and_unpack_any_shape(shape: Shape, layout: Layout) -> None:
    check_packing(shape, layout)


@each_layout
@pytest.mark.parametrize("rank", range(1, 6))
def test_word_grid_counts_the_padded_words(layout: Layout, rank: int) -> None:
    for shape in awkward_shapes(rank):
        extents = list(padded_extents(shape, layout))
        extents[packed_axis(layout)] //= 4
        assert word_grid(shape, layout) == tuple(extents)
        assert word_count(shape, layout) == np.prod(extents)


@pytest.mark.parametrize(
    ("layout", "order"),
    [
        ("4W", [(0, 0, 0, 4), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0)]),
        ("4C", [(0, 4, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (1, 0, 0, 0)]),
        ("4C1W", [(0, 0, 0, 1), (0, 4, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0)]),
        ("4W4C", [(0, 0, 0, 1), (0, 4, 0, 0), (0, 0, 0, 4), (0, 0, 1, 0), (1, 0, 0, 0)]),
        ("4H4W", [(0, 0, 1, 0), (0, 0, 0, 4), (0, 0, 4, 0), (0, 1, 0, 0), (1, 0, 0, 0)]),
    ],
)
def test_order_of_words(layout: str, order: list[tuple[int, int, int, int]]) -> None:
    """Steps along these directions, fast to slow, land further and further away; lane 1 is the next byte."""
    shape, which = (2, 8, 8, 8), Layout[f"PACKED_INT8_{layout}"]
    where = addresses(np.array(order), shape, which)
    assert where[0] == 4 and np.all(np.diff(where) > 0)
    neighbour = np.eye(4, dtype=np.int64)[[packed_axis(which)]]
    assert addresses(neighbour, shape, which) == 1


def test_lowest_byte_is_the_lowest_index() -> None:
    assert pack(np.array([1, 2, 3, -1, 5], np.int8), Layout.PACKED_INT8_4W).tolist() == [0xFF030201, 5]


def test_every_packing_is_listed() -> None:
    assert set(PACKINGS) == set(INT8_LAYOUTS)


# WGSL against numpy.

# index_of[i] = word of position i; coord_of[i] = position of lane 0 of word i.
SHADER = """
struct Job { extents: vec4<u32>, elements: u32, words: u32, unused_0: u32, unused_1: u32 }
@group(0) @binding(0) var<storage, read> job: Job;
@group(0) @binding(1) var<storage, read> places: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> index_of: array<u32>;
@group(0) @binding(3) var<storage, read_write> coord_of: array<vec4<u32>>;

@compute @workgroup_size(64)
fn evaluate(@builtin(global_invocation_id) id: vec3<u32>) {
  if id.x < job.elements { index_of[id.x] = index_{name}(places[id.x], job.extents); }
  if id.x < job.words { coord_of[id.x] = coord_{name}(id.x, job.extents); }
}
"""


@dataclass
class Gpu:
    device: wgpu.GPUDevice
    pipelines: dict[Layout, wgpu.GPUComputePipeline]

    def evaluate(self, layout: Layout, shape: Shape, words: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """index_X of all positions and coord_X of all words of a tensor of `shape`."""
        places = positions(canonical(shape)).astype(np.uint32)
        device, pipeline = self.device, self.pipelines[layout]
        storage, source = wgpu.BufferUsage.STORAGE, wgpu.BufferUsage.COPY_SRC
        job = struct.pack("<8I", *canonical(shape), len(places), words, 0, 0)
        index_of = device.create_buffer(size=4 * len(places), usage=storage | source)
        coord_of = device.create_buffer(size=16 * words, usage=storage | source)
        buffers = [
            device.create_buffer_with_data(data=job, usage=storage),
            device.create_buffer_with_data(data=places, usage=storage),
            index_of,
            coord_of,
        ]
        group = device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": i, "resource": {"buffer": buffer}} for i, buffer in enumerate(buffers)],
        )
        encoder = device.create_command_encoder()
        run = encoder.begin_compute_pass()
        run.set_pipeline(pipeline)
        run.set_bind_group(0, group)
        run.dispatch_workgroups(-(-max(len(places), words) // 64))
        run.end()
        device.queue.submit([encoder.finish()])
        found = np.frombuffer(device.queue.read_buffer(index_of), np.uint32)
        return found, np.frombuffer(device.queue.read_buffer(coord_of), np.uint32).reshape(-1, 4)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    device = wgpu.gpu.request_adapter_sync().request_device_sync()  # no adapter: an error, not a skip
    pipelines = {}
    for layout in GPU_LAYOUTS:
        module = device.create_shader_module(code=resolve.complete(SHADER.replace("{name}", layout.short)))
        pipelines[layout] = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "evaluate"}
        )
    yield Gpu(device, pipelines)
    device.destroy()


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("layout", GPU_LAYOUTS, ids=lambda layout: layout.short)
def test_wgsl_addresses_equal_numpy(gpu: Gpu, layout: Layout, rank: int) -> None:
    for shape in awkward_shapes(rank):
        words = word_count(shape, layout)
        index_of, coord_of = gpu.evaluate(layout, shape, words)
        assert np.array_equal(index_of, addresses(positions(canonical(shape)), shape, layout) // 4), shape

        padded = positions(padded_extents(shape, layout))  # the addresses of padding continue the formula
        where = addresses(padded, shape, layout)
        first_lane = where % 4 == 0
        expected = np.full((words, 4), -1)
        expected[where[first_lane] // 4] = padded[first_lane]
        assert np.array_equal(coord_of, expected), shape
