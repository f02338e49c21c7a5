"""Products on int8 matrix units, as far as machines without them can tell: packing, choice, and what is linked. Bytes
are compared on a GPU that has them, when it is opened and by `python -m bench engines`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT16X4, Call
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, MatrixUnit
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.attention.blocks import BLOCKS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Residual
from q8ta_wgpu.kernels.product import gemm
from q8ta_wgpu.kernels.product.speeds import SPEEDS
from q8ta_wgpu.kernels.product.units import NVIDIA, UNIT_TILES, UnitTile
from q8ta_wgpu.program import known_results
from testbed.graphs import attention, between_integers, conv, linear, plan_for, product, transposed
from testbed.harness import UNITS


@pytest.mark.parametrize("name", UNIT_TILES)
@pytest.mark.parametrize(("channels", "depth"), [(1, 16), (37, 20), (64, 64), (130, 1040)])
def test_weights_are_packed_by_step(name: str, channels: int, depth: int) -> None:
    """A workgroup reads, step by step, its channels' next bytes of k; what lies beyond the weight is 0."""
    weight = np.random.default_rng(0).integers(-127, 128, (channels, depth), dtype=np.int8)
    tile = UNIT_TILES[name].at_depth(-(-depth // 16))
    steps, columns = tile.steps(-(-depth // 16)), -(-channels // tile.n)
    packed = UNIT_TILES[name].pack(weight).view(np.int8).reshape(columns, steps, tile.n, tile.step * 16)
    whole = packed.transpose(0, 2, 1, 3).reshape(columns * tile.n, -1)
    np.testing.assert_array_equal(whole[:channels, :depth], weight)
    assert not whole[channels:].any()
    assert not whole[:, depth:].any()


@pytest.mark.parametrize("name", UNIT_TILES)
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 5, 8, 9, 100])
def test_a_step_is_whole_products_and_whole_loads(name: str, vectors: int) -> None:
    tile = UNIT_TILES[name].at_depth(vectors)
    assert tile.step % (tile.unit.k // 16) == 0
    x, w = tile.step * tile.m, tile.step * tile.n
    assert x % tile.threads == 0
    assert w % tile.threads == 0 or tile.threads % w == 0  # some threads bring one vector of w
    assert tile.steps(vectors) * tile.step >= vectors
    assert tile.memory <= UNITS.workgroup_memory
    assert tile.threads <= BASELINE.invocations


@pytest.mark.parametrize("name", UNIT_TILES)
def test_rows_of_int16_are_two_rows_of_a_tile(name: str) -> None:
    """A tile makes half as many rows of the result. One whose threads cannot share so few rows is not for int16."""
    tile = replace(UNIT_TILES[name], halves=2)
    assert 2 * tile.m == UNIT_TILES[name].m
    assert tile.memory == UNIT_TILES[name].memory
    assert (name in gemm.tiles(2)) == tile.is_shared() == (name != "units_160x128")
    for vectors in (1, 2, 3, 4, 8, 9, 100) if tile.is_shared() else ():
        shortest = tile.at_depth(vectors)
        assert shortest.step * shortest.m % shortest.threads == 0
        assert tile.unit.m // 2 % (tile.unit.lanes // (tile.unit.n * tile.fragments_n // 4)) == 0  # whole rounds


@pytest.mark.parametrize("name", ["units_128x32", "units_128x16", "units_64x32_deep"])
def test_a_step_of_few_channels_is_no_longer_than_k(name: str) -> None:
    """Where x is put together from bytes, a step of zeros takes as long as one of x."""
    assert UNIT_TILES[name].at_depth(2).step == 2


def test_tiles_are_for_devices_that_have_their_unit() -> None:
    other = MatrixUnit(8, 8, 32, lanes=16)
    assert all(tile.fits(UNITS) for tile in UNIT_TILES.values())
    for target in (BASELINE, SOFTWARE, replace(UNITS, matrix_units=(other,))):
        assert not any(tile.fits(target) for tile in UNIT_TILES.values())
        assert gemm.choose((1 << 20, 256, 64), target) not in UNIT_TILES
    assert UnitTile(other, 2, 2, 2, 2).fits(replace(UNITS, matrix_units=(NVIDIA, other)))


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((4096, 4096, 1024), "units_128x128"),
        ((100352, 64, 144), "units_128x64"),  # ResNet-50's first 3x3 at batch 32
        ((6272, 256, 576), "units_64x64"),
        ((1568, 512, 1152), "units_64x64_deep"),
        ((3136, 64, 16), "units_32x32_deep"),  # at batch 1
        ((197, 768, 768), "units_64x32_deep"),  # ViT-B/16 at batch 1
        ((6304, 768, 768), "units_160x128"),  # and at batch 32: one wave of workgroups
        ((32 * 240 * 426, 9, 72), "units_128x16"),  # the last layer of the demo's network
        ((32 * 240 * 426, 32, 7), "units_128x32"),  # its first, 5x5 of one channel
        ((32 * 240 * 426, 64, 7), "units_128x64"),
        ((32 * 112 * 112, 96, 4), "128x32"),  # 16 to 96 channels, MobileNetV2's first: 43 by dot products, units 50
        ((9, 1000, 512), ""),  # few rows: dot products whose threads share k
    ],
)
def test_the_rule(sizes: tuple[int, int, int], tile: str) -> None:
    """The fastest of `python -m bench resnet50` on an H200, and of what its networks' layers took."""
    chosen = gemm.choose(sizes, UNITS)
    assert chosen == tile if tile else chosen not in UNIT_TILES
    assert gemm.choose(sizes, BASELINE) not in UNIT_TILES


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((2 * 6304, 768, 192), "units_128x128"),  # 45 us, by 128x64 48
        ((2 * 512, 2048, 512), "units_128x64"),  # 28 us, by 64x64 33
        ((2 * 197, 3072, 192), "units_64x64"),
    ],
)
def test_the_rule_for_int16(sizes: tuple[int, int, int], tile: str) -> None:
    """Fewer rows of the result in a tile, and rows that are split while they are loaded: measured on an H200."""
    assert gemm.choose(sizes, UNITS, halves_per_row=2) == tile


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((2048, 8192, 512), "units_128x128"),  # 261 us, the fastest 255, by packed dot products 875
        ((512, 3072, 512), "units_128x128"),  # 38 us, the fastest 37, by packed dot products 95
        ((128, 8192, 512), "units_128x64"),  # 27 us, the fastest 24, by packed dot products 67
    ],
)
def test_the_rule_for_weights_of_4_bits(sizes: tuple[int, int, int], tile: str) -> None:
    """A channel is two columns: measured on an H200."""
    assert gemm.choose(sizes, UNITS, parts=2) == tile
    assert gemm.choose(sizes, BASELINE, parts=2) not in UNIT_TILES


@pytest.mark.parametrize("name", UNIT_TILES)
@pytest.mark.parametrize("halves", [1, 2])
def test_a_channel_of_4_bits_is_two_columns_of_a_tile(name: str, halves: int) -> None:
    """A tile makes half as many channels. Of int16 rows, one whose subgroups have too few sums for whole rows is not
    used."""
    whole, tile = replace(UNIT_TILES[name], halves=halves), replace(UNIT_TILES[name], halves=halves, parts=2)
    assert (2 * tile.n, tile.columns, tile.memory) == (whole.n, whole.columns, whole.memory)
    assert tile.is_shared() == (whole.is_shared() and (halves == 1 or tile.fragments_n > 1))


def test_a_residual_favours_smaller_tiles() -> None:
    """ResNet-50's 64 to 256 channels at batch 32 take 35 and 38 microseconds, with a residual 56 and 50."""
    sizes = (100352, 256, 16)
    assert [gemm.choose(sizes, UNITS, residual=residual) for residual in (False, True)] == [
        "units_128x64",
        "units_64x64",
    ]


def test_kernels_ask_whether_a_residual_joins() -> None:
    def pick(call: Call) -> str:
        return next(k.name for k in OPS[call.op].kernels if k.runs(call, UNITS) and k.preferred(call, UNITS))

    for graph, names in (
        (conv((32, 64, 56, 56), 256, 1), ["q8ta_conv2d.pw_units_128x64", "q8ta_conv2d.pw_units_64x64"]),
        (
            transposed((32, 64, 28, 28), 256, 2, 2, 0),
            ["q8ta_conv_transpose2d.implicit_units_128x64", "q8ta_conv_transpose2d.implicit_units_64x64"],
        ),
    ):
        call = graph.call(graph.nodes[0])
        after = Epilogue((Residual(9000), *call.attrs["epilogue"].stages))
        joined = replace(call, attrs={**call.attrs, "epilogue": after}, inputs=(*call.inputs, call.output))
        assert [pick(call), pick(joined)] == names


def test_every_tile_has_a_speed() -> None:
    assert SPEEDS.keys() >= UNIT_TILES.keys()
    assert SPEEDS.keys() <= gemm.TILES.keys()


def test_a_trial_for_every_tile() -> None:
    """What a device computes before its units are relied on: a program a tile, results that use most of int8."""
    trials = list(known_results.unit_trials(UNITS))
    blocks = [f"q8ta_attention.{name}" for name, block in BLOCKS.items() if block.unit]
    tiles = [f"q8ta_linear.tiled_{name}" for name in UNIT_TILES]
    few = [f"q8ta_linear.tiled_units_{name}" for name in ("128x32", "128x16", "64x32_deep")]
    assert [t.kernel for t in trials] == [
        *tiles,
        *few,
        *tiles,
        *blocks,
        *blocks,  # with a mask
    ]
    for each in trials:
        assert len(each.program.dispatches) == 1
        assert each.program.shaders[0].splitlines()[1].startswith("diagnostic(")
        assert known_results.wrong_words(each, each.expected) == 0
        assert known_results.wrong_words(each, each.expected ^ np.uint32(1)) == each.expected.size
        assert np.unique(each.expected.view(np.int8)).size > 250, each.kernel
    other = replace(UNITS, matrix_units=(MatrixUnit(8, 8, 32, lanes=16),))
    assert not list(known_results.unit_trials(other))


def test_every_kernel_for_units_has_a_trial() -> None:
    """Whatever kernel a plan chooses, another one of the same tile computes a known product before."""
    graphs = [
        conv((1, 64, 56, 56), 64, 1),
        conv((1, 64, 56, 56), 64, 3, residual=True),
        conv((1, 3, 56, 56), 64, 3, stride=2),
        transposed((1, 64, 28, 28), 32, 4, 2, 1),
        linear(300, 400, 150),
        linear(300, 32, 150),
        linear(300, 128, 150, group=32),
        product((2, 150, 400), (2, 150, 400)),
        attention(1, 4, 200, 64),
        between_integers("linear", ((300, 256),), ((256, 256), (256,)), {}, INT16X4),
    ]
    without, tried = replace(UNITS, matrix_units=()), {each.tile for each in known_results.unit_trials(UNITS)}
    used = set()
    for graph in graphs:
        for call in map(graph.call, graph.nodes):
            for kernel in OPS[call.op].kernels:
                if kernel.runs(call, UNITS) and not kernel.runs(call, without):
                    assert known_results.tile(kernel, call) in tried, kernel.name
                    used.add(call.op)
    assert used >= {
        "q8ta_conv2d",
        "q8ta_conv_transpose2d",
        "q8ta_linear",
        "q8ta_attention",
        "q16ta_linear",
    }
    few = {next(iter(tried))}
    assert {each.tile for each in known_results.unit_trials(UNITS, few)} == few


def test_only_tiles_in_use_are_tried() -> None:
    """Also of threads that load no weights: only where a step has so few."""
    name = "q8ta_linear.tiled_units_64x32_deep"
    (kernel,) = (kernel for kernel in OPS["q8ta_linear"].kernels if kernel.name == name)
    for depth, spares in ((32, True), (400, False)):
        used = known_results.tiles(plan_for(linear(300, depth, 128), kernel), UNITS)
        assert [("spares", spares) in tile for tile in used] == [True]
        assert [each.tile for each in known_results.unit_trials(UNITS, used)] == list(used)
