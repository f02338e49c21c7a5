"""Our quantizer: what is asked for, and the edits of a float graph before it is read. It is a PT2E quantizer, too."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from q8ta_wgpu.errors import InputError, check_switch, is_integer, nearest, shown
from q8ta_wgpu.frontend.export.linears import name_linears
from q8ta_wgpu.frontend.export.norms import norms_before_cats
from q8ta_wgpu.frontend.export.recurrent_layers import expand_recurrent
from q8ta_wgpu.frontend.export.remove_no_ops import remove_identities
from q8ta_wgpu.frontend.export.sdpa import expand_attention
from q8ta_wgpu.frontend.nodes import module_paths
from q8ta_wgpu.frontend.notes import IN_FLOAT, note
from q8ta_wgpu.ir.arithmetic import GROUPS

_SKIPPED = "Quantizer(skip=...) names its module"
"""Why calls of modules that are skipped stay in float32."""


class Quantizer:
    """A quantizer for static int8 in everything that the operator table has in int8.

    Examples:
        >>> quantizer = q8.Quantizer(skip=["layers.2"])    # the module at path "layers.2" stays in float32
        >>> exported = q8.quantize(module, example_inputs, calibration=batches, quantizer=quantizer)

    Activations are int8, affine per tensor; weights are int8, symmetric per output channel. A value is rounded only
    where an int8 tensor is stored. A weighted sum, an add, a mul or a batch norm is one fusion group with the batch
    norm, addend, activation and clamps after it. A weighted sum that nothing reads in int8 is not rounded. Operators
    that only move bytes share one scale and zero point between inputs and output, except slices of a weighted sum,
    which have their own, and what is joined only for an output, or to be taken apart again.

    torchao's `prepare_pt2e` and `prepare_qat_pt2e` take it as they take a `Quantizer` of their own. `quantize` needs no
    torchao.

    Args:
        qat: fake quantization with moving averages, for `prepare_qat_pt2e`.
        residual: dtype of residual streams, "int16" or "int8": the sums that layer_norm and rms_norm read. Networks
            without such norms have none.
        fit_weights: whether `quantize` fits weights to the calibration inputs. The rounding error of a weight is spread
            over others and taken out of the bias. With 128 inputs or more, channels are equalized.
        skip: paths of modules that stay in float, as `compare` names them, with everything inside. Their inputs are not
            rounded for them; their outputs only where something in int8 reads them.
        precision: "auto" lets `quantize` store values in 16 bits, or leave them in float32, where int8 costs more than
            half a decibel of the outputs; "int8" does not; "int16" stores in 16 bits all that may be: int8 weights are
            then what costs, and language models choose the same tokens more often.
        weights: "int4" rounds the weights of linears and products, and tables of embeddings, to 4 bits, with a factor
            for each group of inputs of each output: half the bytes. Those of fewer inputs than a group, of convolutions
            and of recurrent layers stay in 8 bits.
        group: inputs that share a factor with weights="int4": 32, 64 or 128. None is 32.
        activations: "dynamic" stores what linears read in 16 bits, and the device rounds each row of it (each token) to
            8 bits by a scale of its own, with the same bytes on every device (8da8w; with weights="int4" 8da4w). All
            else is as with "static".

    Raises:
        InputError: `residual`, `precision`, `weights`, `group` or `activations` is none of these, `skip` is no list of
            strings, `qat` or `fit_weights` is no bool, `qat` is asked for with 16 or 4 bits or scales of rows, or
            `group` without 4 bits.
    """

    def __init__(
        self,
        qat: bool = False,
        residual: str = "int16",
        skip: Sequence[str] = (),
        fit_weights: bool = True,
        precision: str = "auto",
        weights: str = "int8",
        group: int | None = None,
        activations: str = "static",
    ) -> None:
        for name, value, known in (
            ("residual", residual, ("int16", "int8")),
            ("precision", precision, ("auto", "int8", "int16")),
            ("weights", weights, ("int8", "int4")),
            ("activations", activations, ("static", "dynamic")),
        ):
            if not isinstance(value, str) or value not in known:
                listed = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
                raise InputError(f"{name} must be {listed}, found {shown(value)}")
        check_switch("qat", qat)
        check_switch("fit_weights", fit_weights)
        _check_group(group, weights)
        _check_training(qat, precision, weights, activations)
        _check_skip(skip)
        self.qat, self.fit_weights, self.precision = qat, fit_weights, precision
        self.dynamic = activations == "dynamic"
        self.streams = residual == "int16"
        self.skip = tuple(skip)
        self.group = (group or min(GROUPS)) if weights == "int4" else 0
        if "torchao.quantization.pt2e" in sys.modules:
            _class_of_torchao()

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Replaces attention by two products and a softmax, recurrent layers by one call for each, and products with a
        constant matrix by linears. Moves norms before cats, and removes operators without effect."""
        norms_before_cats(model, self._why_skipped)
        expand_attention(model)
        expand_recurrent(model)
        remove_identities(model)
        name_linears(model)
        model.recompile()
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Writes torchao's annotation of every node whose operator is in the table. Raises InputError if `skip` names
        no module, or weights have 4 bits, which torchao's observers do not find."""
        if self.group:
            raise InputError(
                'weights="int4" is rounded by q8ta_wgpu.quantize alone, with q8ta_wgpu.Quantizer itself: give it the '
                'module, or take weights="int8"'
            )
        from q8ta_wgpu.frontend.pt2e.annotations import Annotations

        self.keep_skipped(model)
        _class_of_torchao()
        Annotations(model, self.qat, self.streams).write()
        return model

    def keep_skipped(self, model: GraphModule) -> None:
        """Notes that the modules in `skip` stay in float32. Raises InputError if a name is no module's."""
        for path in self.skip:
            skipped = [node for node in model.graph.nodes if _comes_from(node, path)]
            if not skipped:
                raise InputError(_no_module(path, model))
            for node in skipped:
                note(node, IN_FLOAT, _SKIPPED)

    def validate(self, model: GraphModule) -> None:
        """Checks nothing: nodes without annotation stay in float and are reported by `compile`."""

    def prepare_obs_or_fq_callback(self, model: GraphModule, observers: Any) -> None:
        """Leaves the observers as they are."""

    def _why_skipped(self, node: Node) -> str:
        return _SKIPPED if any(_comes_from(node, path) for path in self.skip) else ""


def _check_group(group: Any, weights: str) -> None:
    if group is not None and not (is_integer(group) and group in GROUPS):
        raise InputError(f"group must be one of {', '.join(map(str, GROUPS))}, found {shown(group)}")
    if group is not None and weights != "int4":
        raise InputError(
            f"group is how many inputs share a factor in weights of 4 bits, found group={group} with "
            f'weights={weights!r}: add weights="int4", or leave group out'
        )


def _check_training(qat: bool, precision: str, weights: str, activations: str) -> None:
    if qat and precision == "int16":
        raise InputError('values of 16 bits are not trained: use qat=False with precision="int16"')
    if qat and weights == "int4":
        raise InputError('weights of 4 bits are not trained: use qat=False with weights="int4"')
    if qat and activations == "dynamic":
        raise InputError('scales of rows are not trained: use qat=False with activations="dynamic"')


def _check_skip(skip: Any) -> None:
    if isinstance(skip, str):
        raise InputError(f"skip is a list of module paths, found a string: write skip=[{skip!r}]")
    if not isinstance(skip, Iterable) or not all(isinstance(path, str) for path in skip):
        raise InputError(f"skip is a list of module paths, such as 'layer1.0', found {shown(skip)}")


def check_quantizer(quantizer: Any) -> None:
    """Raises InputError unless a quantizer is None or ours, and not for training."""
    if quantizer is not None and type(quantizer) is not Quantizer:
        found = f"the class {quantizer.__name__}" if isinstance(quantizer, type) else shown(quantizer)
        raise InputError(
            f"quantizer must be a q8ta_wgpu.Quantizer, found {found}: write q8ta_wgpu.Quantizer(), or give compile the "
            "program that torchao's prepare_pt2e and convert_pt2e make with another quantizer"
        )
    if quantizer is not None and quantizer.qat:
        raise InputError(
            "Quantizer(qat=True) is for training: torchao's prepare_qat_pt2e takes it, and compile what convert_pt2e "
            "makes. Give quantize q8ta_wgpu.Quantizer()"
        )


def _class_of_torchao() -> type:
    """torchao's class of PT2E quantizers. Ours becomes a virtual subclass of it: it has the same methods."""
    from q8ta_wgpu.frontend.pt2e.torchao import Quantizer as Found

    found: type = Found
    Found.register(Quantizer)
    return found


def _comes_from(node: Node, path: str) -> bool:
    """Whether a node was called in a module, or in one of its submodules."""
    return any(module == path or module.startswith(f"{path}.") for module in module_paths(node))


def _no_module(path: str, model: GraphModule) -> str:
    """The message about an entry of `skip` that is no module's path."""
    known = dict.fromkeys(path for node in model.graph.nodes for path in module_paths(node))
    near = f"nearest to it: {', '.join(map(repr, nearest(path, known)))}" if known else "no module has a path"
    return (
        f"skip names {shown(path)}, but no operator comes from a module of that path: {near} (a batch norm right "
        "behind a convolution or linear is part of that one: name it instead; Identity and Dropout compute nothing)"
    )
