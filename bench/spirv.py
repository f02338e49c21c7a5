"""Inspects the SPIR-V of a kernel in the memory of this process. Linux only.

wgpu does not give access to naga's output, but right after a pipeline is made, the words that were passed to the driver
are still in memory. This makes the pipeline of one linked kernel, finds its module, and counts some instructions. A
packed dot product is one `OpSDot` on two 32-bit words (capability DotProductInput4x8BitPacked). If the adapter lacks
that, naga writes bit field extractions, products and sums instead. Then it times both forms on the adapter. Numbers of
instructions and capabilities are those of the SPIR-V specification 1.6.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.options import Options
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Program
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import chosen, linear, plan_for

MAGIC = 0x07230203
HEADER, LARGEST_BOUND = 5, 1 << 20
FUNCTION_END, ENTRY_POINT, CAPABILITY = 56, 15, 17
COUNTED = {4450: "OpSDot", 4453: "OpSDotAccSat", 202: "OpBitFieldSExtract", 132: "OpIMul"}
CAPABILITIES = {6018: "DotProductInput4x8BitPacked", 6019: "DotProduct"}

Words = NDArray[np.uint32]


def instructions(words: Words) -> list[tuple[int, Words]]:
    """(opcode, operands) of each instruction of the module at the beginning of `words`; empty if there is none."""
    bound = int(words[3]) if len(words) > HEADER else 0
    if not 0 < bound < LARGEST_BOUND or int(words[1]) >> 16 != 1 or int(words[4]) != 0:
        return []
    found: list[tuple[int, Words]] = []
    end = at = HEADER
    while at < len(words):
        length, opcode = divmod(int(words[at]), 1 << 16)
        if length == 0 or at + length > len(words) or (len(found) == 0 and opcode != CAPABILITY):
            break
        found.append((opcode, words[at + 1 : at + length]))
        at += length
        if opcode == FUNCTION_END:
            end = len(found)
    return found[:end] if any(opcode == ENTRY_POINT for opcode, _ in found) else []


def modules() -> Iterator[list[tuple[int, Words]]]:
    """Every SPIR-V module in the writable memory of this process."""
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            first, last = (int(part, 16) for part in span.split("-"))
            if not rights.startswith("rw") or "[v" in line:
                continue
            memory.seek(first)
            try:
                data = memory.read(last - first)
            except OSError:  # a device's registers
                continue
            at = data.find(struct.pack("<I", MAGIC))
            while at >= 0:
                usable = (len(data) - at) // 4 * 4
                if at % 4 == 0 and (found := instructions(np.frombuffer(data, "<u4", usable // 4, at))):
                    yield found
                at = data.find(struct.pack("<I", MAGIC), at + 4)


def counts(device: Device, program: Program) -> tuple[Counter[str], set[str]]:
    """The number of each counted instruction in the module of a program's only kernel, and its capabilities.

    Raises LookupError if no new module is found.
    """
    before = {_key(module) for module in modules()}
    device.pipeline(program.shaders[0], len(program.dispatches[0].buffers))
    found = [module for module in modules() if _key(module) not in before]
    if not found:
        raise LookupError("no SPIR-V is left in this process: another backend, or the driver overwrote it")
    longest = max(found, key=len)
    opcodes = Counter(COUNTED[opcode] for opcode, _ in longest if opcode in COUNTED)
    named = {CAPABILITIES.get(int(operands[0]), "") for opcode, operands in longest if opcode == CAPABILITY}
    return opcodes, named - {""}


def _key(module: list[tuple[int, Words]]) -> bytes:
    return b"".join(operands.tobytes() for _, operands in module)


def part_spirv(options: Options) -> None:
    """Prints the counts for the kernel of a matrix product, and the rates of both forms of the dot product."""
    device = options.device
    graph = linear(1024, 1024, 1024)
    kernel = chosen(graph, device)
    program = build(graph, device.target, plan_for(graph, kernel))
    print(f"{device.name}: {kernel.name}, {program.shaders[0].count('dot4I8Packed(')} dot4I8Packed in its WGSL")
    try:
        opcodes, capabilities = counts(device, program)
        for name in COUNTED.values():
            print(f"  {name:<20} {opcodes[name]}")
        print(f"  capabilities: {', '.join(sorted(capabilities)) or 'no dot product'}")
        print("  the packed dot product is one instruction" if opcodes["OpSDot"] else "  naga emulates the dot product")
    except LookupError as error:
        print(f"  {error}")
    rates = device.dot_rates
    times = rates.packed / rates.emulated
    print(f"  packed {rates.packed:.3g} GOP/s, emulated {rates.emulated:.3g} GOP/s: {times:.2f} times as fast")
