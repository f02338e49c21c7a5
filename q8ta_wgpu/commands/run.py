"""Runs a model on files."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from q8ta_wgpu.commands import output
from q8ta_wgpu.commands.arguments import described, device, inputs, opened
from q8ta_wgpu.errors import InputError, printable
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.session.session import Session
from q8ta_wgpu.writing import write


def run(options: argparse.Namespace) -> None:
    """`run FILE --input X.npy --output Y.npy`: checks all arguments before it computes anything."""
    model = opened(options.file)
    given = inputs(model, options.input)
    if missing := [name for name in model.graph.arguments if name not in given]:
        raise InputError(f"{options.file} takes {described(model)}; missing: {', '.join(missing)}")
    target = _target(options, model)
    with Session(model, device(options.device)) as session:
        outputs = model.structure.flatten(session(*(given[name] for name in model.graph.arguments)))
        where = session.name
    names = model.graph.results
    made = io.BytesIO()
    if target.suffix == ".npy":
        np.save(made, outputs[0])
    else:
        _write_npz(made, {_key(names, i): array for i, array in enumerate(outputs)})
    write(target, made.getvalue())
    texts = [f"{name} {array.dtype}{list(array.shape)}" for name, array in zip(names, outputs, strict=True)]
    print(f"{printable(str(target))}: {', '.join(texts)}, computed on {where}")


def _target(options: argparse.Namespace, model: Model) -> Path:
    target, names = output.target(options.output, "--output", (".npy", ".npz")), model.graph.results
    if target.suffix == ".npy" and len(names) != 1:
        raise InputError(
            f"{options.file} has {len(names)} outputs ({', '.join(names)}): use --output {target.stem}.npz"
        )
    return target


def _write_npz(target: io.BytesIO, arrays: Mapping[str, Array]) -> None:
    """Writes arrays like np.savez, which cannot write one called `file`."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _key(names: Sequence[str], i: int) -> str:
    """An output's name; numbered where one value is several outputs."""
    return names[i] if names.count(names[i]) == 1 else f"{names[i]}.{i}"
