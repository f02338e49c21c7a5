"""Hybrid: a program whose supported subgraphs run on the GPU, and the rest in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import MAX_SHOWN, InputError, UnsupportedError, shown
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.export.folding import fold
from q8ta_wgpu.frontend.export.plain import plain
from q8ta_wgpu.frontend.hybrid.partition import Partitioned, partition
from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.report import Report
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.session.session import Session


@dataclass(frozen=True)
class HybridReport:
    """Where the operators of a hybrid run. Printing it gives a table.

    Attributes:
        pieces: the `Model.report` of each subgraph on the GPU.
        torch: operators that stay in PyTorch: name, position in the module, number of calls, reason.
        macs: multiply-adds on the GPU and in total.
    """

    pieces: tuple[Report, ...]
    torch: tuple[str, ...]
    macs: tuple[int, int]

    def __str__(self) -> str:
        share = 100 * self.macs[0] / max(self.macs[1], 1)
        count = "1 piece" if len(self.pieces) == 1 else f"{len(self.pieces)} pieces"
        lines = [f"{count} on the GPU, {share:.1f} % of the multiply-adds; in PyTorch:"]
        lines += self.torch or ["  nothing"]
        for number, piece in enumerate(self.pieces):
            lines += [f"piece {number}:", *(f"  {line}" for line in str(piece).splitlines())]
        return "\n".join(lines)


class Piece(torch.nn.Module):
    """A subgraph on the GPU: tensors in and out, on the device of its first tensor, without gradients."""

    session: Session

    def __init__(self, model: Model, outputs: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.model = model
        self._outputs = tuple(outputs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any) -> Any:
        """Runs the session. Arguments include the sizes of a dynamic batch, the session's inputs do not."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        found = self.session(*map(self._shifted, self.model.graph.inputs, tensors))
        single = len(self._outputs) == 1
        made = [
            _tensor(array, dtype).to(tensors[0].device)
            for array, dtype in zip([found] if single else found, self._outputs, strict=True)
        ]
        return made[0] if single else tuple(made)

    def _shifted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that was quantized to uint8, as the int8 of the model."""
        moved = tensor.dtype == torch.uint8 and self.model.graph.values[name].given != "uint8"
        return (tensor ^ 128).view(torch.int8) if moved else tensor


def _tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A result of a piece as a torch tensor of a dtype. uint8 is stored as int8 that is 128 less; other dtypes keep
    their numbers."""
    made = torch.from_numpy(array)
    return (made ^ -128).view(dtype) if (made.dtype, dtype) == (torch.int8, torch.uint8) else made.to(dtype)


class Hybrid(torch.nn.Module):
    """A torch module that runs supported subgraphs (pieces) on the GPU, each a Model with a Session, and the rest in
    PyTorch.

    It is called like the original module: tensors in, tensors out, in the module's own structure, without gradients.
    Values between two pieces are passed as they are stored: int8 where the program has quantized them. Weights of
    pieces are on the device only, so `state_dict` holds those of the rest. It cannot be saved (save the exported
    program and compile it again), exported for the web, trained, or used by TiledSession.

    Attributes:
        program: the graph that calls the pieces.
        pieces: the pieces, in order.
    """

    def __init__(self, partitioned: Partitioned, example: Any, device: Any) -> None:
        super().__init__()
        self.program = partitioned.program
        self.pieces = tuple(getattr(partitioned.program, name) for name in partitioned.pieces)
        self._rest, self._macs = tuple(str(partitioned.rest).splitlines()), partitioned.macs
        self._leaves, self._structure = pytree.tree_flatten(example)
        for piece in sorted(self.pieces, key=lambda piece: -_work(piece.model)):
            piece.session = Session(piece.model, device)
            device = piece.session.device or "reference"

    def report(self) -> HybridReport:
        """Which operators run where, and why. Print it."""
        return HybridReport(tuple(piece.model.report() for piece in self.pieces), self._rest, self._macs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program. Raises InputError where arguments are unlike those it was exported with."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if structure != self._structure:
            wanted = _listed(self._leaves, self._structure)
            raise InputError(f"the module was exported for arguments {wanted}, found {_listed(leaves, structure)}")
        checks.check_arguments(leaves, self._leaves)
        with torch.no_grad():
            return self.program(*args, **kwargs)

    def save(self, path: Any) -> NoReturn:
        """Raises UnsupportedError: there is no file format for the operators that run in PyTorch."""
        raise UnsupportedError(
            f"cannot save {shown(path)}: a part of this module runs in PyTorch. Save the program, torch.export.save("
            "program, path), and compile it again; or save what runs on the GPU, module.pieces[0].model.save(path)"
        )

    def close(self) -> None:
        """Frees device memory; further calls raise InputError. Closing twice is harmless."""
        for piece in self.pieces:
            piece.session.close()

    def __enter__(self) -> Hybrid:
        for piece in self.pieces:
            piece.session.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _listed(leaves: Sequence[Any], structure: pytree.TreeSpec) -> str:
    """The arguments of a call by their types, such as `(Tensor, mask=Tensor)`."""
    kinds = ["Tensor" if isinstance(leaf, torch.Tensor) else type(leaf).__name__ for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(kinds, structure)
    listed = ", ".join([*map(str, args), *(f"{name}={kind}" for name, kind in kwargs.items())])
    return f"({listed if len(listed) <= MAX_SHOWN else listed[:MAX_SHOWN] + '…'})"


def hybrid(program: Any, device: Any = None) -> Hybrid:
    """Cuts a program where operators are not supported, and opens a session for every supported piece.

    Returns:
        A torch module that is called like the original.

    Raises:
        UnsupportedError: no piece of the program could run on the GPU (with all reasons), or it changes its state.
        DeviceError: as `Session`.
    """
    exported = plain(program)
    module = exported.module(check_guards=False)
    assert isinstance(module, GraphModule)
    fold(module)
    partitioned = partition(module)
    if not partitioned.pieces:
        raise UnsupportedError(f"nothing of this program would run on the GPU:\n{partitioned.rest}")
    for name, graph in partitioned.pieces.items():
        setattr(partitioned.program, name, _piece(getattr(partitioned.program, name), graph))
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    example = [values.get(name, name) for name in exported.graph_signature.user_inputs]
    spec = exported.call_spec.in_spec
    assert spec is not None
    found = partitioned.program
    without_weights = replace(partitioned, program=GraphModule(found, found.graph))
    return Hybrid(without_weights, pytree.tree_unflatten(example, spec), device)


def _piece(subgraph: GraphModule, graph: Graph) -> Piece:
    ends = subgraph.graph.output_node().args[0]
    dtypes = [end.meta["val"].dtype for end in (ends if isinstance(ends, tuple) else (ends,))]  # type: ignore[union-attr]
    structure = Structure.of(tuple(range(len(dtypes))) if isinstance(ends, tuple) else 0)
    return Piece(Model(run_passes(graph), structure), dtypes)


def _work(model: Model) -> int:
    return sum(array.nbytes for array in model.graph.constants.values())
