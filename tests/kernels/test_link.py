"""The linker: what a module holds, what it says of a name that nothing defines, and how it reads WGSL."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from q8ta_wgpu.commands.example import example
from q8ta_wgpu.errors import LinkError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Call, QParams, TensorType
from q8ta_wgpu.ir.layout import Layout, word_count
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.program import link
from q8ta_wgpu.program.wgsl_definitions import definitions, files, scan


def linked(**changes: Any) -> str:
    """The module of q8ta_mul on whole words, of a kernel changed so."""
    op = OPS["q8ta_mul"]
    t = TensorType((1, 4, 4, 4), INT8X4, QParams(0.5, 3))
    call = Call(op.name, {"multiplier": 0.5, "lo": -128, "hi": 127}, (t, t), t)
    kernel = replace(op.kernels[0], **changes)
    layout = Layout.PACKED_INT8_4C
    return link.link(kernel, op, call, (layout, layout), layout, link.fields(kernel, op, call, 16))


def test_what_main_does_not_reach_is_left_out() -> None:
    found = {d.name: d for d in scan(linked())}
    assert {"main", "combine", "q8ta_mul", "round_within"} <= set(found)
    assert not {"compute", "rte", "a_at", "Y_LANE", "index_4C"} & set(found)
    reached, waiting = set[str](), ["main", "Params", "params", "a", "b", "y"]
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += found[name].names
    assert reached == set(found)


def test_each_definition_tells_where_it_stands() -> None:
    lines = linked().splitlines()
    for stem, name in (("words", "fn main"), ("binary_packed", "fn q8ta_mul"), ("arithmetic", "fn round_within")):
        at = next(
            i
            for i, line in enumerate(lines)
            if line.startswith((name, "@compute")) and name in " ".join(lines[i : i + 2])
        )
        where = re.fullmatch(rf"// {stem}\.wgsl:(\d+)", lines[at - 1])
        assert where and files()[stem].splitlines()[int(where[1]) - 1] == lines[at]


def test_names_without_a_definition_are_told() -> None:
    with pytest.raises(LinkError, match=r"kernel q8ta_mul: binary_packed.wgsl:\d+ uses apply, which no file defines"):
        linked(source=("binary_packed", "words"))
    with pytest.raises(LinkError, match=r"kernel q8ta_mul: .* reads params\.\w+, which its `params` does not give"):
        linked(params=lambda call: {})


def forgetting(name: str, *constants: str) -> None:
    """Links a call of a kernel without some of its constants."""
    variant, call, _ = example(name, (BASELINE, SOFTWARE))
    kernel, op = variant.kernel, OPS[call.op]
    left = {name: value for name, value in kernel.constants(call).items() if name not in constants}
    changed = replace(kernel, constants=lambda call: left)
    words = word_count(call.output.shape, variant.out)
    link.link(changed, op, call, variant.reads, variant.out, link.fields(changed, op, call, words))


@pytest.mark.parametrize(
    ("kernel", "constant", "defined"),
    [("q8ta_linear.gemv", "TEAM", "attention"), ("amax", "LARGEST", "chain"), ("q8ta_softmax.rows", "LANES", "")],
)
def test_a_forgotten_constant_links_nothing_of_another_family(kernel: str, constant: str, defined: str) -> None:
    """A file of another folder defines a constant of this name."""
    assert not defined or any(d.file.startswith(defined) for d in definitions()[constant])
    with pytest.raises(LinkError, match=rf"kernel {kernel}.* uses {constant}, which "):
        forgetting(kernel, constant)


def test_a_row_without_a_function_is_told() -> None:
    """Rows of a table are linked by name: no file has a switch, whose default a forgotten row would fall into."""
    op = OPS["sign"]
    t = TensorType((8,), FLOAT32)
    call, layouts = Call("sign", {}, (t,), t), (Layout.DEFAULT,)
    changed = replace(op.kernels[0], source=("unary", "flat_vectors", "at_number=forgotten_of"))
    with pytest.raises(LinkError, match=r"kernel sign: unary.wgsl:\d+ uses forgotten_of, which no file defines"):
        link.link(changed, op, call, layouts, layouts[0], link.fields(changed, op, call, 8))
    assert not [stem for stem, text in files().items() if re.search(r"\bswitch\b", text)]


def test_names_with_several_definitions_are_told() -> None:
    places = r"clone.wgsl:\d+, .*move.wgsl:\d+"
    with pytest.raises(LinkError, match=rf"kernel q8ta_mul: map_packed.wgsl:\d+ uses compute, which .*{places}"):
        linked(source=("clone", "move", "map"))


SCANNED = {
    "fn f(a: T) -> u32 { let b = a.c + d; for (var i = 0u; i < N; i++) { let e = i; } return b + e; }": "T d N e",
    "@compute @workgroup_size(X * 2) fn f(@builtin(global_invocation_id) id: vec3<u32>) { g(id.x); }": "X g",
    "struct S { a: A, b: array<B, N> }": "A B N",
    "fn f() { { let a = 1u; } switch b { case C: { return a; } default: { } } }": "b C a",
    "fn f() { let a = a + 1u; let c = a; } // g /* h */": "a",
    "var<workgroup> tile: array<T, N>;": "T N",
    "@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;": "",
    "const A = B * 2u + select(1u, 0x1fu, C > 1e-5);": "B C",
    "fn f() { var<function> a: T = 1.0e3; a += params.b; }": "T params",
}


@pytest.mark.parametrize(("text", "names"), SCANNED.items())
def test_scanner(text: str, names: str) -> None:
    (definition,) = scan(text)
    assert definition.names == tuple(names.split())


def test_scanner_refuses_what_it_does_not_know() -> None:
    for text in ("const_assert N > 1u;", "fn f() { g();"):
        with pytest.raises(LinkError):
            list(scan(text, "x"))
