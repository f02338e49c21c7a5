"""Writes docs/operators.md, `python -m docs.list_operators`: what the operator table says of each operator."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from q8ta_wgpu.importing.import_table import ATEN, ONNX
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, INT32
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.ir.op import MAX_EXTENT, MAX_WORK, Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.verify import MAX_ELEMENTS
from q8ta_wgpu.onnx_import.onnx_walk import RULES

TARGET = Path(__file__).parent / "operators.md"

HEAD = f"""\
# Operators

A network of the torch or ONNX operators below runs. Each form is a way to store what an operator reads and gives: int8
and int16 with the same bytes on every device, int32 exactly, float32 within the relative error that is named. What has
no int8 form runs in float32; the report says so. `python -m docs.list_operators` wrote this page from the table.

torch's names are aten's, without overloads and without forms in place. torch decomposes many others into these, and
the importers find norms, softmax, attention, rotary positions and activations that a program writes by hand. An
operator that is missing is refused by name, with its place; `unsupported="torch"` leaves it to PyTorch.

A value has at most 2^{MAX_ELEMENTS.bit_length() - 1} elements, an attribute at most
2^{MAX_EXTENT.bit_length() - 1}, and a dispatch at most 2^{MAX_WORK.bit_length() - 1} loop steps.

|operator|torch|ONNX|forms|limits|
|---|---|---|---|---|
"""


def forms(op: Op) -> str:
    """How values of an operator may be stored."""
    dtypes = max((set(operand.dtypes) for operand in op.operands), key=lambda found: len(found))
    in_int8 = op.int8 is not None
    wide = in_int8 and (op.int8.reads_int16 or op.int8.gives_int16)  # type: ignore[union-attr]
    held = {"int8": in_int8 or INT8X4 in dtypes, "int16": wide or INT16X4 in dtypes}
    held |= {"int32": INT32 in dtypes, "float32": FLOAT32 in dtypes}
    return "/".join(name for name, there in held.items() if there)


def limits(op: Op) -> str:
    """The choices of its attributes, and the error that float32 may have."""
    found = [
        f"{name}: {', '.join(attr.choices)}" for name, attr in op.schema.items() if attr.choices and name != "result"
    ]
    return "; ".join([*found, *([f"error {op.tolerance:g}"] if op.tolerance else [])])


def torch_names(op: Op) -> set[str]:
    """aten's names without overloads, forms in place, and torch's own variants of an operator."""
    names = {name.split(".")[1] for name, (owner, _) in ATEN.items() if owner is op}
    names = {name if name.startswith("__") else name.removesuffix("_") for name in names}
    return {name for name in names if name.lstrip("_").removesuffix("_default") not in names - {name}}


def onnx_names(op: Op) -> set[str]:
    """ONNX's names without domains."""
    return {name.removeprefix("com.microsoft.") for name, (owner, _) in ONNX.items() if owner is op}


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """A row for each operator that a program may call; functions of one value that are else alike share one."""
    groups: dict[tuple[str, ...], list[Op]] = {}
    for op in sorted(OPS.values(), key=lambda op: op.name):
        if torch_names(op) or onnx_names(op):
            shared = (forms(op), limits(op))
            alone = () if isinstance(op.int8, Elementwise) else (op.name,)
            groups.setdefault((*shared, *alone), []).append(op)
    for (form, limit, *_), found in sorted(groups.items(), key=lambda group: len(group[0])):
        torch = ", ".join(sorted(set().union(*map(torch_names, found))))
        onnx = ", ".join(sorted(set().union(*map(onnx_names, found))))
        yield (found[0].name if len(found) == 1 else "elementwise", torch, onnx, form, limit)


def page() -> str:
    """The text of docs/operators.md."""
    lines = (f"|{'|'.join(row)}|" for row in rows())
    others = ", ".join(sorted({name.removeprefix("com.microsoft.") for name in RULES}))
    text = "\n".join(textwrap.wrap(f"Of ONNX files also: {others}.", 120))
    return f"{HEAD}{chr(10).join(lines)}\n\n{text}\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
