"""Links a kernel's WGSL: generates declarations for a call, and adds definitions that `main` uses (resolve.py).

A word is four elements: a u32 of int8, a vec2<u32> of int16. The linker generates these for an activation operand `x`:

* `x_index(p)`: the index of the word at coordinates p.
* `x_word(p)`: that word (integers only).
* `x_at(p)`: the element as i32 or f32.
* `x_word_of(word)`: its word that corresponds to a word of the result, if both are integers.
* `x_Word`, `x_lanes(word)`: the type of its words, and the elements of a word.
* `x_quad(m, quad)`: in the epilogue of a weighted sum, the word in row m of an operand stored like the result.

For the result there are `y_index(p)`, `y_coord(word)`, Y_LANE (the step from one lane to the next), Element (i32 or
f32), `Word`, `packed(elements)`, and in an epilogue `y_quad(m, quad)`, the index of its word. The epilogue's stages
bring functions of their own.

Constant operands are arrays of their name. Operands in `Kernel.wide` are bound as vectors of four words instead. For a
variadic operand `x`, `x_at(i, p)` reads the i-th, and `x_item(i, at)` its buffer at an index. A synced kernel with the
main of `words` defines `combine(a, b, ...)`, a word from words. If all its layouts and dtypes are equal, all operands
and the result are bound as vectors of 16 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.errors import LinkError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, INT32, RANGES, Call
from q8ta_wgpu.ir.kernel import Kernel, Params
from q8ta_wgpu.ir.layout import Layout, packed_axis
from q8ta_wgpu.ir.op import Op, dims
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.program import resolve
from q8ta_wgpu.program.wgsl_definitions import files

_FIELD = {np.uint32: "u32", np.int32: "i32", np.float32: "f32", tuple: "vec4<u32>"}
_BUFFER = {INT8X4: "u32", INT16X4: "vec2<u32>", "int8": "u32", "int16": "u32", INT32: "i32", FLOAT32: "f32"}
_ELEMENT = {INT8X4: "i32", INT16X4: "i32", INT32: "i32", FLOAT32: "f32"}
_SUFFIX = {INT8X4: "4xI8", INT16X4: "4xI16"}
_LANE = {INT8X4: "lane", INT16X4: "lane_int16"}


@dataclass(frozen=True)
class Binding:
    """One operand of a dispatch: its WGSL name, dtype, layout (None for constants), and whether an epilogue reads it at
    the position of the result."""

    name: str
    dtype: str
    layout: Layout | None
    at_result: bool = False


def bindings(op: Op, call: Call, layouts: Sequence[Layout | None]) -> tuple[Binding, ...]:
    """The bindings of a call's operands, in order. Operands of a variadic operator are numbered: x0, x1 ..."""
    found = []
    for position, t in enumerate(call.inputs):
        operand = op.operand(position, call.attrs)
        name = (
            f"{operand.name}{position - len(op.operands) + 1}"
            if op.variadic and operand is op.operands[-1]
            else operand.name
        )
        found.append(Binding(name, t.dtype, None if operand.constant else layouts[position], operand.at_result))
    return tuple(found)


def _axis(layout: Layout) -> str:
    return "xyzw"[packed_axis(layout)]


def _operand(binding: Binding, slot: int, wide: Sequence[str], by_word: bool) -> list[str]:
    """The declarations of an operand. `by_word`: what a kernel calls row m is the index of a word of the result."""
    name = binding.name
    lines = [f"@group(0) @binding({slot}) var<storage, read> {name}: array<{_element(name, binding.dtype, wide)}>;"]
    if binding.dtype in RANGES:
        word, unpack = _BUFFER[binding.dtype], f"unpack{_SUFFIX[binding.dtype]}"
        lines.append(f"alias {name}_Word = {word};")
        lines.append(f"fn {name}_lanes(word: {word}) -> vec4<i32> {{ return {unpack}(word); }}")
    if binding.at_result and binding.dtype == FLOAT32:
        lines.append(f"alias {name}_Word = vec4<f32>;")
        elements = (f"{name}[first + channel_offset(min(quad * 4u + {i}u, params.channels - 1u))]" for i in range(4))
        body = f"let first = first_index(m); return vec4<f32>({', '.join(elements)});"
        lines.append(f"fn {name}_quad(m: u32, quad: u32) -> {name}_Word {{ {body} }}")
    elif binding.at_result and binding.layout is not None:
        read = f"{name}_word_of(m)" if by_word else f"{name}[{_quad_index(name, binding.layout)}]"
        lines.append(f"fn {name}_quad(m: u32, quad: u32) -> {name}_Word {{ return {read}; }}")
    if binding.layout is None or name in wide:
        return lines
    lines.append(
        f"fn {name}_index(p: vec4<u32>) -> u32 {{ return index_{binding.layout.short}(p, params.{name}_dims); }}"
    )
    if binding.dtype in RANGES:
        axis, word = _axis(binding.layout), _BUFFER[binding.dtype]
        lines += [
            f"fn {name}_word(p: vec4<u32>) -> {word} {{ return {name}[{name}_index(p)]; }}",
            f"fn {name}_at(p: vec4<u32>) -> i32 {{ return {_LANE[binding.dtype]}({name}_word(p), p.{axis} % 4u); }}",
        ]
    else:
        lines.append(f"fn {name}_at(p: vec4<u32>) -> {_ELEMENT[binding.dtype]} {{ return {name}[{name}_index(p)]; }}")
    return lines


def _quad_index(name: str, layout: Layout) -> str:
    """WGSL for the index of a word: four channels of row m of a weighted sum."""
    if layout in (Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4W):  # channels are contiguous
        return "m * params.quads + quad"
    return f"index_{layout.short}(position(m, quad), params.{name}_dims)"


def _counterpart(binding: Binding, same: bool) -> str:
    """The function from an index of the result to the operand's word. `same`: shape and layout are those of the result,
    so the index is, too."""
    name = binding.name
    index = "word" if same else f"{name}_index(y_coord(word))"
    return f"fn {name}_word_of(word: u32) -> {_BUFFER[binding.dtype]} {{ return {name}[{index}]; }}"


def _element(name: str, dtype: str, wide: Sequence[str]) -> str:
    """The WGSL type of one entry of a buffer. A wide entry holds four words of int8 or two of int16."""
    if dtype == INT16X4 and name in wide:
        return "vec4<u32>"
    return f"vec4<{_BUFFER[dtype]}>" if name in wide else _BUFFER[dtype]


def _variadic(op: Op, operands: Sequence[Binding], wide: Sequence[str]) -> list[str]:
    name = op.operands[-1].name
    members = [b for b in operands if re.fullmatch(rf"{name}\d+", b.name)]

    def body(read: str) -> str:
        cases = " ".join(f"case {i}u: {{ return {b.name}{read}; }}" for i, b in enumerate(members[1:], 1))
        return f"{{ switch i {{ {cases} default: {{ return {members[0].name}{read}; }} }} }}"

    stored, element = _element(members[0].name, members[0].dtype, wide), _ELEMENT[members[0].dtype]
    return [
        f"fn {name}_item(i: u32, at: u32) -> {stored} {body('[at]')}",
        f"fn {name}_at(i: u32, p: vec4<u32>) -> {element} {body('_at(p)')}",
    ]


def _synced(operands: Sequence[Binding], call: Call, out: Layout) -> tuple[str, ...]:
    """The names that a synced kernel binds as vectors: all, if all have one dtype, shape and layout; else none."""
    activations = [(b, t.shape) for b, t in zip(operands, call.inputs, strict=True) if b.layout]
    same = (out, call.output.dtype, call.output.shape)
    if any((b.layout, b.dtype, shape) != same for b, shape in activations):
        return ()
    return *(b.name for b, _ in activations), "y"


def _combined(operands: Sequence[Binding], dtype: str, wide: bool) -> list[str]:
    """The declarations that words.wgsl needs, from `combine`. An item is a word, or with `wide` a vector of words."""
    names = [b.name for b in operands if b.layout]
    items = ", ".join(f"{name}: {'vec4<u32>' if wide else f'{name}_Word'}" for name in names)
    loads = ", ".join(f"{name}[at]" if wide else f"{name}_word_of(at)" for name in names)
    words = ("x", "y", "z", "w") if dtype == INT8X4 else ("xy", "zw")
    lanes = [f"combine({', '.join(f'v.{name}.{word}' for name in names)})" for word in words]
    result = f"vec4<u32>({', '.join(lanes)})" if wide else f"combine({', '.join(f'v.{name}' for name in names)})"
    size = len(words) if wide else 1
    return [
        f"const ITEM_WORDS = {size}u;",
        f"const ITEMS = {8 // size}u;",
        f"struct Loaded {{ {items} }}",
        f"fn load(at: u32) -> Loaded {{ return Loaded({loads}); }}",
        f"fn result(v: Loaded) -> {'vec4<u32>' if wide else 'Word'} {{ return {result}; }}",
    ]


def _result(dtype: str, layout: Layout, slot: int, wide: Sequence[str]) -> list[str]:
    """The declarations of the result."""
    buffer = f"@group(0) @binding({slot}) var<storage, read_write> y: array<{_element('y', dtype, wide)}>;"
    step = ["0u"] * 4
    stored = []
    if dtype in RANGES:
        step[packed_axis(layout)] = "1u"
        pack = f"pack{_SUFFIX[dtype]}"
        stored = [
            f"alias Word = {_BUFFER[dtype]};",
            f"fn packed(elements: vec4<i32>) -> Word {{ return {pack}(elements); }}",
        ]
    return [
        buffer,
        *stored,
        f"alias Element = {_ELEMENT[dtype]};",
        f"fn y_index(p: vec4<u32>) -> u32 {{ return index_{layout.short}(p, params.y_dims); }}",
        f"fn y_coord(word: u32) -> vec4<u32> {{ return coord_{layout.short}(word, params.y_dims); }}",
        f"const Y_LANE = vec4<u32>({', '.join(step)});",
    ]


def fields(kernel: Kernel, op: Op, call: Call, words: int) -> Params:
    """All uniform fields of a dispatch, 4-vectors first, so that no padding is needed between fields."""
    found: dict[str, np.uint32 | np.int32 | np.float32 | tuple[int, int, int, int]] = {}
    for binding, t in zip(bindings(op, call, [Layout.DEFAULT] * len(call.inputs)), call.inputs, strict=True):
        if binding.layout is not None:
            found[f"{binding.name}_dims"] = dims(t)
    found["y_dims"] = dims(call.output)
    found["words"] = np.uint32(words)
    found.update(kernel.params(call))
    return dict(sorted(found.items(), key=lambda item: not isinstance(item[1], tuple)))


def params_bytes(params: Params) -> bytes:
    """The uniform buffer's contents, padded to 16 bytes."""
    fields = [np.array(v, np.uint32).tobytes() if isinstance(v, tuple) else v.tobytes() for v in params.values()]
    data = b"".join(fields)
    return data + bytes(-len(data) % 16)


def link(
    kernel: Kernel,
    op: Op,
    call: Call,
    layouts: Sequence[Layout | None],
    out: Layout,
    params: Params,
    target: Target = BASELINE,
) -> str:
    """The complete WGSL module for a call of `kernel` with operands in `layouts` and the result in `out`, in the form
    that is fastest on `target`."""
    operands = bindings(op, call, layouts)
    source, wide = kernel.linked(call)
    combines = kernel.synced and "words" in source
    if combines:
        wide = _synced(operands, call, out)
    struct = ", ".join(f"{name}: {_FIELD[type(value)]}" for name, value in params.items())
    generated = [f"struct Params {{ {struct} }}"]
    for slot, (binding, t) in enumerate(zip(operands, call.inputs, strict=True)):
        generated += _operand(binding, slot, wide, kernel.synced)
        words = binding.layout is not None and binding.name not in wide
        if words and binding.dtype in RANGES and call.output.dtype in RANGES:
            generated.append(_counterpart(binding, binding.layout == out and t.shape == call.output.shape))
    if op.variadic:
        generated += _variadic(op, operands, wide)
    if prologue := call.attrs.get("prologue"):
        generated += prologue.declarations("x" in wide, math.prod(call.inputs[1].shape[2:]))
    if combines:
        generated += _combined(operands, call.output.dtype, "y" in wide)
    generated += _result(call.output.dtype, out, len(operands), wide)
    generated.append(f"@group(0) @binding({len(operands) + 1}) var<uniform> params: Params;")
    epilogue = call.attrs.get("epilogue")
    generated += epilogue.declarations if epilogue else ()
    if epilogue and call.output.dtype in RANGES:
        generated.append(f"fn y_quad(m: u32, quad: u32) -> u32 {{ return {_quad_index('y', out)}; }}")
    generated += [f"const {name} = {_literal(value)};" for name, value in kernel.constants(call).items()]
    chosen = _chosen(source, op, call, target)
    try:
        return resolve.module(chosen, tuple(generated), kernel.unrolled(target))
    except LinkError as error:
        raise LinkError(f"kernel {kernel.name}: {error}") from None


def _chosen(stems: Sequence[str], op: Op, call: Call, target: Target) -> tuple[str, ...]:
    """The files and bindings that the stems in `Kernel.source` stand for. Most are names of files. Others are

    * `map`: `map_packed` or `map_float32`, by the dtype of the result; likewise other stems without a file. int32 is
      stored as float32.
    * `dot`: `dot_instruction` or `dot_emulated`, the dot product that is faster on the target.
    * `exchange`: `exchange_by_shuffles` or `exchange_by_loads`, how the threads of gemm_registers.wgsl get weights.
    * `x`, an optional operand that the call leaves out: `no_x`.
    """
    known = {operand.name: f"no_{operand.name}" for operand in op.operands[len(call.inputs) :]}
    known["dot"] = "dot_instruction" if target.packed_dot else "dot_emulated"
    known["exchange"] = "exchange_by_shuffles" if target.shuffles else "exchange_by_loads"
    dtype = call.output.dtype
    kinds = ("packed", "integers") if dtype in RANGES else ("integers", FLOAT32) if dtype == INT32 else (dtype,)
    found = (known.get(stem, stem) for stem in stems)
    return tuple(stem if stem in files() or "=" in stem else _file_of(stem, kinds) for stem in found)


def _file_of(stem: str, kinds: Sequence[str]) -> str:
    """The file `stem_kind` of the first kind that has one."""
    names = [f"{stem}_{kind}" for kind in kinds]
    return next((name for name in names if name in files()), names[-1])


def _literal(value: int) -> str:
    return f"{int(value)}u" if value >= 0 else f"{int(value)}i"
