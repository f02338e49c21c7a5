"""Model files edited by hand, with a checksum that fits: each is refused with the key, name or value that is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.op import MAX_EXTENT
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from testbed import epilogue_graphs, op_graphs
from testbed.modelfiles import Edit, field, forge, node, refused, stages


def stage(op: str, place: int, **values: Any) -> Edit:
    return lambda data, _: stages(node(data, op))[place].update(values)


def before(op: str, *more: dict[str, Any]) -> Edit:
    """Stages before those there are."""
    return lambda data, _: stages(node(data, op)).__setitem__(slice(0, 0), list(more))


def attr(op: str, **values: Any) -> Edit:
    return lambda data, _: node(data, op)["attrs"].update(values)


def value(name: str, **fields: Any) -> Edit:
    return lambda data, _: data["values"][name].update(fields)


def constant(name: str, change: Callable[[Array], Array], retype: bool = False) -> Edit:
    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        array = np.ascontiguousarray(change(constants[name]))
        constants[name] = array
        if retype:
            data["values"][name].update(shape=list(array.shape), dtype=str(array.dtype))

    return edit


def both(*edits: Edit) -> Edit:
    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        for each in edits:
            each(data, constants)

    return edit


def far_apart(data: dict[str, Any], constants: dict[str, Array]) -> None:
    """A tiny image whose padding asks for 2^50 results."""
    node(data, "q8ta_conv2d")["attrs"].update(padding=[MAX_EXTENT] * 4)
    data["values"]["first.q"]["shape"] = [2, 6, 2 * MAX_EXTENT + 6, 2 * MAX_EXTENT + 7]


def swap_first_two(data: dict[str, Any], constants: dict[str, Array]) -> None:
    data["nodes"][0], data["nodes"][1] = data["nodes"][1], data["nodes"][0]


def cycle(data: dict[str, Any], constants: dict[str, Array]) -> None:
    node(data, SUM)["inputs"][-1] = "sum.q"


def twice(data: dict[str, Any], constants: dict[str, Array]) -> None:
    data["nodes"].append(copy.deepcopy(node(data, SUM)))


CONV, SUM, TABLE = "q8ta_conv2d", "q8ta_conv2d add", "q8ta_table"

DEEP: Any = 0

for _ in range(60):
    DEEP = {"tuple": [DEEP]}


def dynamic(**entries: Any) -> Edit:
    """An edit that gives the first input any height, and changes entries of what says so."""
    said = {
        "symbols": [{"symbol": "H", "low": 1, "high": 64}],
        "sizes": [{"input": "x", "dim": 2, "size": [[1, "H"]]}],
        "tables": [],
    }
    return lambda d, c: d.update(dynamic={**said, **entries})


EDITS: dict[str, tuple[Edit, str]] = {
    # operators and names
    "unknown operator": (lambda d, c: node(d, TABLE).update(op="exec"), "no operator 'exec'"),
    "operator without kernels": (
        lambda d, c: node(d, TABLE).update(op="dequantize_weight", attrs={"axis": 0}),
        "dequantize_weight",
    ),
    "dangling input": (lambda d, c: node(d, TABLE).update(inputs=["nowhere", "table"]), "reads nowhere"),
    "dangling output": (field(outputs=["y", "nowhere"]), "nowhere"),
    "dtype of no output": (field(dtypes={"9": "uint8"}), "found output 9 as 'uint8'"),
    "unknown dtype of an output": (field(dtypes={"0": "int99"}), "found output 0 as 'int99'"),
    "dangling graph input": (field(inputs=["x", "nowhere"]), "nowhere has no type"),
    "missing constant": (lambda d, c: c.pop("table"), "table"),
    "extra constant": (lambda d, c: c.update(more=np.zeros(3, np.float32)), "more has no type"),
    "undefined value": (lambda d, c: d["values"].update(ghost={"shape": [1], "dtype": "float32"}), "ghost"),
    "reads before it is written": (swap_first_two, "nothing before it writes"),
    "cycle": (cycle, "reads sum.q"),
    "written twice": (twice, "a second time"),
    "writes an input": (lambda d, c: node(d, "quantize").update(output="x"), "a second time"),
    "writes a constant": (lambda d, c: node(d, TABLE).update(output="table"), "a second time"),
    "input twice": (field(inputs=["x", "x"]), "another input"),
    "constant as input": (field(inputs=["x", "table"]), "a constant"),
    "int8 constant as output": (field(outputs=["y", "table"]), "float32 or int32 or int8x4"),
    "no outputs": (field(outputs=[]), "no outputs"),
    "escape sequences in a name": (field(outputs=["y", "\x1b[2J"]), "printable"),
    "escape sequences in a source": (lambda d, c: node(d, TABLE).update(source="\x1b[2J"), "printable"),
    "a name of a megabyte": (field(outputs=["y" * 2**20, "y"]), "1 to 200"),
    "too few inputs": (lambda d, c: node(d, SUM).update(inputs=["first.q"]), "takes 6 inputs"),
    "too many inputs": (lambda d, c: node(d, TABLE).update(inputs=["sum.q", "table", "table"]), "takes 2 inputs"),
    "activation as table": (lambda d, c: node(d, TABLE).update(inputs=["sum.q", "first.q"]), "must be int8"),
    "constants swapped": (
        lambda d, c: node(d, CONV)["inputs"].__setitem__(slice(3, 5), ["first.q.correction", "first.q.multiplier"]),
        "must be int32",
    ),
    # types
    "wrong shape": (value("first.q", shape=[2, 6, 6, 6]), "its type says"),
    "wrong dtype": (value("y", dtype="int32"), "its type says"),
    "unknown dtype": (value("y", dtype="float99"), "float99"),
    "scale on a float": (value("y", scale=0.5, zero=0), "belong to int8x4"),
    "int8 without scale": (lambda d, c: d["values"]["sum.q"].pop("scale"), "'scale' is missing"),
    "scale zero": (value("sum.q", scale=0.0), "a scale must be"),
    "scale negative": (value("sum.q", scale=-1.0), "a scale must be"),
    "scale too small for float32": (value("sum.q", scale=1e-300), "a scale must be"),
    "scale too large": (value("sum.q", scale=1e300), "a scale must be"),
    "scale is text": (value("sum.q", scale="0.1"), "must be a float"),
    "scale is true": (value("sum.q", scale=True), "must be a float"),
    "zero point 128": (value("sum.q", zero=128), "zero point"),
    "zero point huge": (value("sum.q", zero=-(10**40)), "zero point"),
    "zero point 0.5": (value("sum.q", zero=0.5), "must be a int"),
    "shape zero": (value("x", shape=[0, 5, 6, 7]), "positive sizes"),
    "shape negative": (value("x", shape=[-2, 5, 6, 7]), "positive sizes"),
    "shape true": (value("x", shape=[True, 5, 6, 7]), "positive sizes"),
    "shape fraction": (value("x", shape=[2.0, 5, 6, 7]), "positive sizes"),
    "shape of rank 9": (value("x", shape=[1] * 9), "at most 8"),
    "shape with a million entries": (value("x", shape=[1] * 10**6), "entries"),
    "shape with many sizes": (value("x", shape=[1] * 10**5), "at most 8"),
    "size 2^60": (value("x", shape=[2**60]), "positive sizes"),
    "2^60 elements": (value("x", shape=[2**20, 2**20, 2**20]), "elements"),
    "shape is text": (value("x", shape="2567"), "must be a list"),
    "type is a list": (lambda d, c: d["values"].update(x=[2, 5]), "must be an object"),
    "moved bytes change scale": (
        lambda d, c: (
            node(d, TABLE).update(op="q8ta_clone", inputs=["sum.q"]),
            d["values"].pop("table"),
            c.pop("table"),
        ),
        "only moves bytes",
    ),
    # constants
    "table of 255 entries": (constant("table", lambda a: a[:255], retype=True), "256 entries"),
    "table of floats": (constant("table", lambda a: a.astype(np.float32), retype=True), "must be int8"),
    "constant is not what its type says": (constant("table", lambda a: a.astype(np.int32)), "its type says"),
    "weight of rank 3": (constant("first.q.weight", lambda a: a[..., 0], retype=True), "4-D weight"),
    "weight with other channels": (constant("first.q.weight", lambda a: a[:, :4], retype=True), "groups"),
    "multiplier too short": (constant("first.q.multiplier", lambda a: a[:-1], retype=True), "per-channel"),
    "offset too long": (constant("first.q.offset", lambda a: np.append(a, a), retype=True), "per-channel"),
    "multiplier NaN": (constant("first.q.multiplier", lambda a: a * np.float32(np.nan)), "finite"),
    "multiplier infinite": (constant("first.q.multiplier", lambda a: np.full_like(a, np.inf)), "finite"),
    "multiplier negative": (constant("first.q.multiplier", lambda a: -a), "not negative"),
    "offset past int32": (constant("first.q.offset", lambda a: np.full_like(a, 2**31 - 1)), "must be in"),
    "offset at int32's end": (constant("first.q.offset", lambda a: np.full_like(a, -(2**31))), "must be in"),
    "correction of other weights": (constant("first.q.correction", lambda a: a + 1), "sums of the weights"),
    # attributes
    "kernel larger than the image": (attr(CONV, dilation=[2**20, 2**20]), "does not fit"),
    "stride 0": (attr(CONV, stride=[0, 1]), "stride must be in"),
    "stride 2^40": (attr(CONV, stride=[1, 2**40]), "stride must be in"),
    "stride negative": (attr(CONV, stride=[-1, 1]), "stride must be in"),
    "stride with three entries": (attr(CONV, stride=[1, 1, 1]), "2 entries"),
    "stride of lists": (attr(CONV, stride=[[1], [1]]), "an integer"),
    "stride is a number": (attr(CONV, stride=1), "must be a list"),
    "stride is text": (attr(CONV, stride="11"), "must be a list"),
    "stride with 10^5 entries": (attr(CONV, stride=[1] * 10**5), "at most 64"),
    "stride true": (attr(CONV, stride=[True, True]), "an integer"),
    "stride 1.0": (attr(CONV, stride=[1.0, 1.0]), "an integer"),
    "groups 0": (attr(CONV, groups=0), "groups must be in"),
    "groups 5": (attr(CONV, groups=5), "groups"),
    "groups none": (attr(CONV, groups=None), "an integer"),
    "dilation 10^400": (attr(CONV, dilation=[10**400, 1]), "dilation must be in"),
    "padding negative": (attr(CONV, padding=[-1, 0, 0, 0]), "padding must be in"),
    "2^50 results": (far_apart, "elements"),
    "lo 200": (stage(CONV, 0, lo=200), "lo must be in"),
    "lo above hi": (stage(CONV, 0, lo=5, hi=4), "lo..hi is empty"),
    "unknown attribute": (attr(CONV, shader="@compute fn main() {}"), "has attributes"),
    "missing attribute": (lambda d, c: node(d, CONV)["attrs"].pop("groups"), "has attributes"),
    "attribute is an object": (attr(CONV, groups={"a": 1}), "a key that is not known: 'a'"),
    "a size of a graph without any": (attr(CONV, groups={"size": [[1, "H"]]}), "a number and symbols, found"),
    "add's shift 77": (stage(SUM, 1, shift=77), "shift must be in"),
    "add's multipliers pass int32": (stage(SUM, 1, multiplier=2**31 - 1), "pass int32"),
    "add's range is empty": (stage(SUM, 1, lo=5, hi=4), "lo..hi is empty"),
    # epilogues
    "no epilogue": (lambda d, c: node(d, CONV)["attrs"].pop("epilogue"), "has attributes"),
    "epilogue of a table": (attr(TABLE, epilogue=[{"stage": "scale"}]), "has attributes"),
    "epilogue of nothing": (attr(CONV, epilogue=[]), "an epilogue's stages are"),
    "epilogue is text": (attr(CONV, epilogue="requantize"), "is a list of at most 7"),
    "epilogue of 10^4 stages": (attr(CONV, epilogue=[{"stage": "scale"}] * 10**4), "at most 7"),
    "stage is text": (attr(CONV, epilogue=["scale"]), "a stage is one of"),
    "unknown stage": (stage(CONV, 0, stage="exec"), "a stage is one of"),
    "stage's name is a list": (stage(CONV, 0, stage=["requantize"]), "a stage is one of"),
    "stage with another number": (stage(CONV, 0, zero=3), "requantize has ['hi', 'lo']"),
    "stage lacks a number": (lambda d, c: stages(node(d, CONV))[0].pop("hi"), "requantize has ['hi', 'lo']"),
    "stage's number is text": (stage(CONV, 0, lo="-128"), "an integer"),
    "stage's number is true": (stage(CONV, 0, lo=True), "an integer"),
    "stage's number is a list": (stage(CONV, 0, lo=[1]), "an integer"),
    "stage's number is 10^400": (stage(CONV, 0, hi=10**400), "hi must be in"),
    "scale behind rounding": (lambda d, c: stages(node(d, CONV)).append({"stage": "scale"}), "an epilogue's stages"),
    "rounded twice": (before(CONV, {"stage": "requantize", "lo": -128, "hi": 127}), "an epilogue's stages"),
    "a residual nobody gives": (before(CONV, {"stage": "residual", "multiplier": 1}), "takes 6 inputs"),
    "a residual past int32": (before(CONV, {"stage": "residual", "multiplier": 2**23}), "multiplier must be in"),
    "a curve for an addend": (
        both(before(CONV, {"stage": "curve", "by_addition": True}), lambda d, c: node(d, CONV)["inputs"].append("x.q")),
        "must be int32",
    ),
    "an addend of another shape": (lambda d, c: node(d, SUM)["inputs"].__setitem__(5, "x.q"), "the sum's shape"),
    "shuffled channels do not split": (
        attr(
            CONV,
            epilogue=[
                {"stage": "requantize", "lo": -128, "hi": 127},
                {"stage": "pixel_shuffle", "factor": 5},
                {"stage": "dequantize", "zero": 3, "scale": 0.5},
            ],
        ),
        "pixel_shuffle by 5",
    ),
    "dequantized at scale 0": (
        lambda d, c: stages(node(d, CONV)).append({"stage": "dequantize", "zero": 3, "scale": 0.0}),
        "scale must be in",
    ),
    # the document
    "structure with unknown position": (field(structure={"tuple": [0, 2]}), "positions"),
    "structure with a position twice": (field(structure={"tuple": [0, 0, 1]}), "positions"),
    "structure lacks an output": (field(structure=0), "positions"),
    "structure of nothing": (field(structure={"set": [0, 1]}), "structure holds"),
    "structure with two kinds": (field(structure={"tuple": [0], "list": [1]}), "structure holds"),
    "structure named by code": (
        field(structure={"tuple": [0, 1], "named": ["T", "a", "b=print(1)"]}),
        "structure holds",
    ),
    "structure named twice": (field(structure={"tuple": [0, 1], "named": ["T", "a", "a"]}), "structure holds"),
    "structure named too little": (field(structure={"tuple": [0, 1], "named": ["T", "a"]}), "structure holds"),
    "structure named by a keyword": (field(structure={"tuple": [0, 1], "named": ["T", "a", "if"]}), "structure holds"),
    "structure named privately": (field(structure={"tuple": [0, 1], "named": ["T", "a", "_b"]}), "structure holds"),
    "structure of named lists": (field(structure={"list": [0, 1], "named": ["T", "a", "b"]}), "structure holds"),
    "structure ordered by text": (field(structure={"dict": {"a": 0, "b": 1}, "ordered": "x"}), "structure holds"),
    "structure of text": (field(structure="tuple"), "structure holds"),
    "structure with true": (field(structure=[True, 0]), "structure holds"),
    "structure 60 deep": (field(structure=DEEP), "nested"),
    "structure with 10^5 outputs": (field(structure={"tuple": [0] * 10**5}), "positions"),
    "nodes is an object": (field(nodes={}), "'nodes' must be a list"),
    "nodes hold numbers": (field(nodes=[1, 2]), "must be an object"),
    "10^5 nodes": (lambda d, c: d.update(nodes=[d["nodes"][0]] * 10**5), "entries"),
    "unknown key": (field(shader="@compute fn main() {}"), "a key that is not known: 'shader'"),
    "unknown key of a value": (value("x", device="x" * 2**20), "value x has a key that is not known: 'device'"),
    "unknown key of a node": (lambda d, c: node(d, TABLE).update(more=[1]), "a key that is not known: 'more'"),
    "values is a list": (field(values=[]), "'values' must be a dict"),
    "inputs hold numbers": (field(inputs=[0]), "a name must be"),
    "inputs is text": (field(inputs="x"), "'inputs' must be a list"),
    "notes hold objects": (field(notes=[{}]), "printable"),
    "a fixed size of no input": (field(fixed=[{"input": "z", "dim": 0, "step": 0, "why": ""}]), "one of an input"),
    "a fixed size of no dimension": (field(fixed=[{"input": "x", "dim": 9, "step": 0, "why": ""}]), "dimension 9 of x"),
    "a fixed size in steps back": (field(fixed=[{"input": "x", "dim": 0, "step": -1, "why": ""}]), "multiples of -1"),
    "a fixed size without a reason": (field(fixed=[{"input": "x", "dim": 0, "step": 1}]), "'why' is missing"),
    "no symbol": (dynamic(symbols=[]), "1 to 16 symbols, found 0"),
    "a symbol without values": (dynamic(symbols=[{"symbol": "H", "low": 5, "high": 4}]), "found 5 to 4"),
    "a symbol of no size": (dynamic(sizes=[]), "no size of an input is H"),
    "a size of no dimension": (dynamic(sizes=[{"input": "x", "dim": 9, "size": [[1, "H"]]}]), "one of an input"),
    "a size of two symbols": (
        dynamic(sizes=[{"input": "x", "dim": 2, "size": [[1, "H", "H"]]}]),
        "a number and symbols, found",
    ),
    "a size that shrinks": (dynamic(sizes=[{"input": "x", "dim": 2, "size": [[-1, "H"]]}]), "a multiple of one symbol"),
    "a size out of its range": (dynamic(symbols=[{"symbol": "H", "low": 60, "high": 64}]), "H from 60 to 64"),
    "a table that is none": (dynamic(tables=[{"name": "x", "shape": [1]}]), "table x is a constant"),
    "a table of negative size": (
        lambda d, c: dynamic(tables=[{"name": (name := next(iter(c))), "shape": [-1] * c[name].ndim}])(d, c),
        "are read",
    ),
    "a node's inputs are text": (lambda d, c: node(d, TABLE).update(inputs="ab"), "'inputs' must be a list"),
    "a node's attributes are a list": (lambda d, c: node(d, TABLE).update(attrs=[]), "'attrs' must be a dict"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_by_hand(name: str, saved: bytes, tmp_path: Path) -> None:
    edit, expected = EDITS[name]
    message = refused(forge(saved, edit), tmp_path)
    assert expected in message, message
    assert "checksum" not in message


HEAD: dict[str, tuple[Edit, str]] = {
    "denormal multiplier": (constant("real.multiplier", lambda a: a * np.float32(1e-39)), "from 2^-126 on, found"),
    "multiplier zero": (constant("real.multiplier", np.zeros_like), "from 2^-126 on, found 0.0"),
    "denormal offset": (constant("real.offset", lambda a: a * 0 + np.float32(1e-45)), "and whole, found"),
    "offset infinite": (constant("real.offset", lambda a: a + np.float32(np.inf)), "and whole, found"),
    "offset int32": (
        constant("real.offset", lambda a: np.zeros_like(a, np.int32), retype=True),
        "must be float32 before",
    ),
}


@pytest.mark.parametrize("name", HEAD)
def test_a_float_head_edited_by_hand(name: str, tmp_path: Path) -> None:
    """Its result is never rounded: numbers that some devices count as zero would give other bytes."""
    linear = OPS["linear"]
    graph, _ = epilogue_graphs.epilogue_graph(linear, linear.cases[0], op_graphs.SETTINGS[0], "scale")
    Model(graph, Structure(0)).save(tmp_path / "head.q8ta")
    edit, expected = HEAD[name]
    message = refused(forge((tmp_path / "head.q8ta").read_bytes(), edit), tmp_path)
    assert expected in message, message


@pytest.mark.parametrize("key", ["inputs", "outputs", "fixed", "structure", "notes", "values", "nodes"])
def test_missing_key(key: str, saved: bytes, tmp_path: Path) -> None:
    assert f"'{key}' is missing" in refused(forge(saved, lambda data, _: data.pop(key)), tmp_path)


@pytest.mark.parametrize("key", ["op", "inputs", "output", "attrs", "source"])
def test_missing_key_of_a_node(key: str, saved: bytes, tmp_path: Path) -> None:
    assert f"'{key}' is missing" in refused(forge(saved, lambda data, _: data["nodes"][1].pop(key)), tmp_path)
