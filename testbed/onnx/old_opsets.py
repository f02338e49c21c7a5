"""onnx's node tests as files of older opsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from q8ta_wgpu.ir.graph import Array

OPSETS = (7, 9, 11, 13, 17, 21)

ELSEWHERE = (
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
    "test_onehot_negative_indices",
)
"""Cases of opsets below 19 in which ONNX Runtime computes with a size that it has cut to a whole number, and one that
ONNX did not allow before opset 11."""

_RENAMED = {"value": "constant_value", "k": "K"}
"""Attributes that became inputs of another name."""


@dataclass
class OldCase:
    """A node test at an older opset. The arrays are expected of the operator as it is at that opset."""

    name: str
    model: onnx.ModelProto
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


def at_opset(case: Any, version: int) -> OldCase | None:
    """A node test at an older opset, inputs that were attributes as such; None where the operator had no such form."""
    newest = next((o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx")), 0)
    nodes = case.model.graph.node
    if len(nodes) != 1 or nodes[0].domain not in ("", "ai.onnx") or version > newest:
        return None
    try:
        new, old = (defs.get_schema(nodes[0].op_type, v, "") for v in (newest, version))
    except defs.SchemaError:
        return None
    names = [port.name for port in case.model.graph.input]
    arrays = dict(zip(names, case.data_sets[0][0], strict=False))
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, 8)
    for opset in model.opset_import:
        opset.version = version if opset.domain in ("", "ai.onnx") else opset.version
    if old.deprecated or (new.since_version != old.since_version and not _rewritten(model, arrays, new, old)):
        return None
    kept = [arrays[port.name] for port in model.graph.input]
    results = case.data_sets[0][1]
    if new.since_version != old.since_version:
        results = _computed(model, dict(zip((port.name for port in model.graph.input), kept, strict=True)))
    return None if results is None else OldCase(case.name, model, [(kept, results)], case.rtol, case.atol)


def _rewritten(model: onnx.ModelProto, arrays: dict[str, Any], new: defs.OpSchema, old: defs.OpSchema) -> bool:
    """Makes inputs attributes, in place. Whether the node conforms to the old schema then."""
    node, names = model.graph.node[0], [formal.name for formal in new.inputs]
    attribute: Any
    for name, attribute in old.attributes.items():
        at = names.index(_RENAMED.get(name, name)) if _RENAMED.get(name, name) in names else len(node.input)
        if at < len(node.input) and node.input[at] and names[at] not in [formal.name for formal in old.inputs]:
            values = np.asarray(arrays[node.input[at]]).reshape(-1).tolist()
            single = attribute.type in (defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.FLOAT)
            if single and len(values) != 1:
                return False
            values = [float(v) for v in values] if attribute.type == defs.OpSchema.AttrType.FLOAT else values
            made = values[0] if single else values
            node.attribute.append(helper.make_attribute(name, made, attr_type=int(attribute.type)))
            kept = [port for port in model.graph.input if port.name != node.input[at]]
            del model.graph.input[:]
            model.graph.input.extend(kept)
            node.input[at] = ""
    while node.input and not node.input[-1]:
        del node.input[-1]
    for given in [a for a in node.attribute if a.name not in old.attributes]:
        default = new.attributes[given.name].default_value
        same = default.type and default.SerializeToString() == given.SerializeToString()
        if given.name != "num_outputs" and not same:
            return False
        node.attribute.remove(given)
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def _computed(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any] | None:
    """The results by ONNX Runtime; None where it does not run the file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, {name: np.asarray(array) for name, array in feeds.items()}))
    except Exception:  # classes of its own: dtypes and opsets that it does not know
        return None
