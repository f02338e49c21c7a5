"""Edits of torch's graphs: what is made knows its value and its place in the user's model."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from q8ta_wgpu.frontend.export import editor
from q8ta_wgpu.frontend.nodes import source_of

X = torch.linspace(-1, 1, 12).reshape(2, 6)


def _exported() -> tuple[torch.export.ExportedProgram, Node]:
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Sigmoid()).eval(), (X,))
    (node,) = (n for n in program.graph.nodes if str(n.target) == "aten.sigmoid.default")
    return program, node


def _module() -> tuple[GraphModule, Node]:
    module = _exported()[0].module(check_guards=False)
    assert isinstance(module, GraphModule)
    (node,) = (n for n in module.graph.nodes if str(n.target) == "aten.linear.default")
    return module, node


def test_a_call_knows_its_value_and_the_place_of_the_node_that_it_is_put_in_front_of() -> None:
    _, node = _exported()
    made = editor.call(node, torch.ops.aten.unsqueeze.default, node.args[0], 0)
    assert made.meta["val"].shape == (1, 2, 4)
    assert source_of(made) == source_of(node)
    assert made.next is node


def test_a_call_takes_the_place_of_another_node_and_a_value_where_they_are_given() -> None:
    _, node = _exported()
    made = editor.call(node.next, torch.ops.aten.neg.default, node, like=node, value="given")
    assert made.prev is node
    assert made.meta["val"] == "given"


def test_a_traced_graph_takes_the_place_of_an_output_and_its_name_in_the_signature() -> None:
    program, node = _exported()
    traced = make_fx(lambda x: 1 / (1 + (-x).exp()))(torch.zeros(2, 4)).graph
    (made,) = editor.splice(node, traced, node.all_input_nodes[:1])
    editor.replace(program, node, made)
    program.graph.erase_node(node)
    (output,) = program.graph_signature.output_specs
    assert output.arg.name == made.name
    expected = torch.sigmoid(torch.nn.functional.linear(X, *program.state_dict.values()))
    torch.testing.assert_close(program.module(check_guards=False)(X), expected)


def test_constants_are_given_by_name_and_those_that_nothing_reads_any_more_leave_the_graph() -> None:
    module, node = _module()
    before = editor.tensors_of(module, node)
    editor.set_constants(module, node, {"weight": 2 * before["weight"]})
    assert set(module.graph.find_nodes(op="get_attr")) == set(node.all_input_nodes[1:])
    module.recompile()
    expected = torch.nn.functional.linear(X, 2 * before["weight"].float(), before["bias"].float())
    torch.testing.assert_close(module(X), torch.sigmoid(expected))
    assert torch.equal(editor.tensors_of(module, node)["weight"], 2 * before["weight"])
