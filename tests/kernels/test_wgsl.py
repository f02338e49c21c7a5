"""Every module that the operators' cases reach is WGSL as the specification has it: Tint, which Chrome and Dawn compile
with, takes it. Dawn's Null backend needs no GPU for that; naga is what all other tests compile with."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
import wgpudawn
from wgpudawn.backends.dawn import extras

from q8ta_wgpu.commands.case_graphs import graph_of
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Graph
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.ir.kernel import no_turns
from q8ta_wgpu.ir.layout import word_count
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.kernels import OPS, operators
from q8ta_wgpu.kernels.product import weighted
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.layout_sync import Step, sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program import link
from q8ta_wgpu.program.wgsl_definitions import definitions, files, folders, uses
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import wgpu_errors
from testbed import attention_graphs, expanded_graphs, harness, moved_graphs, rows_with_scales, states
from testbed.op_graphs import SETTINGS, float_ended
from testbed.sample import EVERYTHING, in_turn
from tests.kernels import test_chains
from tests.project.test_imports import MODULES, ROOMS

TARGETS = (
    *(replace(BASELINE, packed_dot=packed) for packed in (True, False)),
    SOFTWARE,
    replace(SOFTWARE, packed_dot=False, shuffles=True),
    harness.UNITS,
)
EVERY = 12
"""Of the kernels of a weighted sum with more than rounding behind it, one in twelve is compiled: a kernel is linked
from a body and an epilogue that know nothing of each other. Each epilogue meets different ones, on one target."""


def graphs() -> Iterator[tuple[Graph, int, int]]:
    """The kernel tests' graphs of one node, with the index of the case and of the epilogue, first layers, attention."""
    yield from harness.graphs()
    yield from ((graph, index, 0) for index, graph in enumerate(test_chains.graphs()))
    yield from ((graph, index, 0) for index, graph in enumerate(attention_graphs.fused_graphs()))
    for n, (graph, index) in enumerate(rows_with_scales.single_nodes()):
        yield graph, index, n if "epilogue" in graph.nodes[0].attrs else 0
    yield from ((graph, index, 0) for index, graph in enumerate(moved_graphs.graphs(BASELINE)))
    yield moved_graphs.taken(), 0, 0
    yield from ((graph, index, 0) for index, graph in enumerate(expanded_graphs.graphs(BASELINE)))
    for cell in ("lstm", "gru"):  # whose result nothing rounds
        yield run_passes(float_ended(OPS[cell], OPS[cell].cases[0], SETTINGS[0])[0]), 0, 0
    conv2d = OPS["conv2d"]
    for index, case in enumerate(conv2d.cases):
        yield lower(run_passes(graph_of(conv2d, case, quantized=True, image=True)), BASELINE), index, 0


def steps() -> Iterator[tuple[Step, tuple[Target, ...]]]:
    """A step for every kernel of every graph, in enough layouts that each is read and written, and where it is linked:
    for CPUs and GPUs, with packed and with emulated dot products. Outside of `make test-all`, cases after an operator's
    first are linked for one of these in turn."""
    for graph, index, epilogue in graphs():
        for _, plan in harness.plans(graph, index, TARGETS) if len(graph.nodes) == 1 else ():
            step = plan.steps[0]
            kernel = step.variant.kernel
            turn, rest = divmod(OPS[step.node.op].kernels.index(kernel) + epilogue + index, EVERY)
            wanted = TARGETS if not epilogue else (TARGETS[turn % len(TARGETS)],) if rest == 0 else ()
            targets = [target for target in wanted if kernel.runs(step.call, target)]
            if index and not epilogue:
                targets = in_turn(targets, turn + rest, len(targets))
            if targets:
                yield step, tuple(targets)
    for dtype, target in itertools.product((FLOAT32, INT8X4, INT16X4), TARGETS):
        for model in (states.written(dtype), *(states.turned(dtype, width=n) for n in (6, 8) if dtype != FLOAT32)):
            plan = sync_layouts(lower(model.graph, target), target)
            yield from ((step, (target,)) for step in plan.steps if step.node.op in OPS)


@functools.cache
def modules() -> dict[str, Step]:
    """Every linked module, and a step it is of."""
    found: dict[str, Step] = {}
    for step, targets in steps():
        op, kernel, reads, out = OPS[step.node.op], step.variant.kernel, step.variant.reads, step.variant.out
        params = link.fields(kernel, op, step.call, word_count(step.call.output.shape, out))
        for target in targets:
            found.setdefault(link.link(kernel, op, step.call, reads, out, params, target), step)
    return found


@pytest.fixture(scope="module")
def tint() -> wgpudawn.GPUDevice:
    """A device that compiles WGSL with Tint, matrix units' too, and runs nothing."""
    with contextlib.suppress(RuntimeError):  # where Dawn runs already, its engine has said so
        extras.set_instance_extras(enable_toggles=["allow_unsafe_apis"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WGPU_BACKEND_TYPE", "Null")
        adapter = wgpudawn.gpu.request_adapter_sync()
    assert adapter.info["backend_type"] == "Null"
    return adapter.request_device_sync(required_features=["subgroups", "chromium-experimental-subgroup-matrix"])


def refused(text: str, tint: wgpudawn.GPUDevice, pipeline: bool = True) -> str:
    """What Tint says against a module, or against a pipeline of it, or an empty string."""
    if "subgroupShuffle" in text:  # linked for naga, which knows no such extension
        text = f"enable subgroups;\n{text}"
    try:
        module = tint.create_shader_module(code=text)
        if pipeline and "chromium_experimental_subgroup_matrix" not in text:  # workgroups of a real adapter's subgroups
            tint.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    except wgpudawn.GPUError as error:
        larger = "total use of workgroup storage" in str(error)  # than this adapter has: for those that have more
        return "" if larger else str(error)
    return ""


NUMBER = re.compile(r"^(const \w+ = )\d+([ui];)$", re.MULTILINE)
"""The declaration of a number that follows from the call."""


def representatives() -> Iterator[tuple[str, str]]:
    """(kernel, module) of what compilers must take: of modules that differ only in numbers of the call the first one,
    but for those with matrix units. Definitions know nothing of each other, so outside of `make test-all` a module is
    left out if a kernel's earlier ones have all of its definitions."""
    shapes, met = set[str](), defaultdict[str, set[str]](set)
    for module, step in modules().items():
        kernel = step.variant.kernel.name
        shape = module if "subgroup_matrix" in module else NUMBER.sub(r"\1\2", module)
        parts = {shape} if EVERYTHING else {*re.split(r"\n(?=// \w+\.wgsl:\d+)", shape)[1:]}
        if shape not in shapes and parts - met[kernel]:
            shapes.add(shape)
            met[kernel] |= parts
            yield kernel, module


def test_tint_takes_every_module(tint: wgpudawn.GPUDevice) -> None:
    """A pipeline is made once for a kernel with the same buffers and workgroup."""
    bound, wrong = set[tuple[str, ...]](), dict[str, str]()
    for kernel, module in representatives():
        own = (kernel, *re.findall(r"@workgroup_size\(.*", module), *re.findall(r"var<(?:workgroup|storage).*", module))
        if text := refused(module, tint, own not in bound):
            wrong[kernel] = text
        bound.add(own)
    assert not wrong, wrong


def test_naga_takes_every_module(vulkan: Device) -> None:
    """Those with matrix units are left out, which lavapipe's features do not allow."""
    plain = [(kernel, module) for kernel, module in representatives() if "subgroup" not in module]
    for kernel, module in plain:
        with wgpu_errors(kernel):
            vulkan.engine.create_module(vulkan.wgpu, kernel, module)
    assert len(plain) > 1000
    with pytest.raises(DeviceError, match="wrong"), wgpu_errors("wrong"):
        vulkan.engine.create_module(vulkan.wgpu, "wrong", "fn main() -> u32 { return 1.5; }")


def test_tint_refuses_what_naga_alone_takes(tint: wgpudawn.GPUDevice) -> None:
    """Tests with Tint can fail: operators mixed without parentheses."""
    text = "@compute @workgroup_size(1) fn main() { let a = 1u >> 2u & 3u; }"
    assert "requires parenthesis" in refused(text, tint)


def test_kernels_link_files_of_the_rooms_below_theirs() -> None:
    """As a Python file imports from the rooms below its own, a kernel's module has definitions of their files alone."""
    homes = {
        id(op): name.rpartition(".")[0].removeprefix("kernels.")
        for name in MODULES
        if name.startswith("kernels.")
        for op in operators(importlib.import_module(f"q8ta_wgpu.{name}"))
    }
    wrong = set[tuple[str, str]]()
    for text, step in modules().items():
        home = homes[id(OPS[step.node.op])]
        for file in text.splitlines()[0].split()[1:]:
            if folders()[file] != home and f"kernels.{folders()[file]}" not in ROOMS[f"kernels.{home}"]:
                wrong.add((step.variant.kernel.name, file))
    assert not wrong


OPEN = re.compile(r"^// Open:\n((?://   .*\n)+)", re.MULTILINE)
ENTRY = re.compile(r"(\w+)(?:(\(.*?\)) -> ([\w<>]+))?(?:, |$)")
OPERANDS = {"params", "a", "b", "weight", "y", "y_quad"}
"""What the linker declares of a call's operands and result."""


def open_names(stem: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The open names that the head of a file lists: the signature of a function, and the files that fill it; none where
    constants or bindings do."""
    (block,) = OPEN.findall(files()[stem])
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in re.sub(r"\n//     ", " ", block).splitlines():
        names, _, by = line.removeprefix("//   ").rpartition(": ")
        if by == "as in gemm":
            found |= {name: open_names("gemm")[name] for name in names.split(", ")}
            continue
        fillers = tuple(name for name in by.split(", ") if name in files())
        assert fillers or by in ("the tile", "the kernel", "the epilogue", "functions of q8ta_matmul"), line
        found |= {
            name: (f"fn {name}{args} -> {to}" if args else "", fillers) for name, args, to in ENTRY.findall(names)
        }
    return found


@pytest.mark.parametrize("stem", [stem for stem, text in files().items() if OPEN.search(text)])
def test_a_body_lists_its_open_names(stem: str) -> None:
    """With who may fill them: the files of every module, which define them with the signature of the head."""
    listed = open_names(stem)
    own = [d for several in definitions().values() for d in several if d.file == stem]
    library = {file for file, folder in folders().items() if folder == "lib"}
    places = {n: {d.file for d in definitions().get(n, ())} for d in own for n in d.names if n not in OPERANDS}
    linked = {n for n, found in places.items() if found & {stem, *uses()[stem]} or (found and found <= library)}
    assert set(listed) == set(places) - linked
    met: dict[str, set[str]] = {}
    for text in modules():
        if stem in text.splitlines()[0].split():
            for file, name in re.findall(r"// (\w+)\.wgsl:\d+\n(?:fn|struct|alias|const) (\w+)", text):
                met.setdefault(name, set()).add(file)
    for name, (signature, fillers) in listed.items():
        texts = {d.file: " ".join(d.text.split()) for d in definitions().get(name, ())}
        assert met.get(name, set()) <= set(fillers), name
        assert all(texts[filler].startswith(signature) for filler in fillers), name


def test_every_definition_is_in_some_module() -> None:
    """Nothing in the files is dead."""
    used = {line for text in modules() for line in text.splitlines() if line.startswith("// ")}
    dead = {d.place for several in definitions().values() for d in several} - {line[3:] for line in used}
    assert not dead


# --- loops ---

LOOP = re.compile(r"\b(?:for\s*\([^;]*;\s*\w+\s*<=?\s*([^;]+);|(while|loop)\b)")
"""Head of a loop: its bound, or a keyword that tells none."""


def test_every_loop_is_accounted_for() -> None:
    """Trusted shader modules have no loop bound, so an operator whose shader loops over anything but a fixed number (a
    literal, module constants) or its weight's taps states its work; `verify` holds it below MAX_WORK."""
    for text, step in modules().items():
        op = OPS[step.node.op]
        names = [operand.name for operand in op.operands[1:5]]
        weighted_sum = isinstance(op.int8, WeightedSum) or names == [each.name for each in weighted.OPERANDS[1:]]
        for bound, keyword in () if weighted_sum or op.work is not None else LOOP.findall(text):
            fixed = re.fullmatch(r"(\d+u?|[A-Z][A-Z0-9_]*)( / [A-Z][A-Z0-9_]*)?", bound.strip())
            assert fixed and not keyword, (
                f"{step.variant.kernel.name} loops to {bound or keyword}; give the Op a `work`"
            )


def test_every_loop_that_grows_has_turns() -> None:
    """A loop of linked WGSL ends at a constant, or its kernel says how many turns it takes."""
    constant = re.compile(r"(\d+u?|[A-Z][A-Z0-9_]*)( [-+*/] (\d+u?|[A-Z][A-Z0-9_]*))*")
    for text, step in modules().items():
        kernel = step.variant.kernel
        for bound, keyword in LOOP.findall(text) if kernel.turns is no_turns else ():
            assert not keyword and constant.fullmatch(bound.strip()), f"{kernel.name} loops to {bound or keyword}"
