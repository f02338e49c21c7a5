"""push: a model to the Hugging Face Hub, with its part of the model card."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from q8ta_wgpu import hub
from q8ta_wgpu.errors import InputError, shown
from q8ta_wgpu.model.model import Model


def push(
    model: Model,
    repo: str,
    file: str = "net.q8ta",
    *,
    accuracy: Mapping[str, Any] | None = None,
    private: bool | None = None,
) -> str:
    """Uploads a model to the Hugging Face Hub in one commit, with a section on it in the repository's model card.

    Examples:
        >>> q8.push(model, "owner/name", accuracy={"top-1, ImageNet": "69.6 % (float32: 69.8 %)"})  # doctest: +SKIP
        >>> model = q8.load("hf://owner/name/net.q8ta")  # doctest: +SKIP

    The section has the file's size, inputs and outputs, the report, and `accuracy`. A card that is there keeps
    everything else; a missing one is made.

    Args:
        model: what `compile`, `from_onnx` or `load` returned.
        repo: 'owner/name'; it is made where there is none.
        file: the path in the repository.
        accuracy: what was measured of the network, by name.
        private: whether a repository that is made is private; None for the account's own setting.

    Returns:
        The address to load it by.

    Raises:
        InputError: an argument is wrong, or the Hub refuses or cannot be reached; names the file and the way out.
        UnsupportedError: huggingface_hub is missing.
    """
    address = hub.address_of(f"{hub.PREFIX}{repo}/{file}")
    if not isinstance(model, Model):
        raise InputError(f"push takes a Model, found {type(model).__name__}")
    if not isinstance(file, str) or not file.endswith(".q8ta"):
        raise InputError(f"a model file is called .q8ta, found {shown(file)}")
    if accuracy is not None and not isinstance(accuracy, Mapping):
        raise InputError(f"accuracy must be figures by name, found {shown(accuracy)}")
    package = hub.package()
    with tempfile.TemporaryDirectory() as folder, hub.named_errors(address, InputError):
        model.save(saved := Path(folder) / "net.q8ta")
        package.create_repo(repo, exist_ok=True, private=private)
        made = section(model, address, saved.stat().st_size, accuracy or {})
        text = with_section(_card(address), made, address)
        written = {file: str(saved), "README.md": text.encode()}
        operations = [package.CommitOperationAdd(path_in_repo=at, path_or_fileobj=what) for at, what in written.items()]
        package.create_commit(repo, operations, commit_message=f"{file} by q8ta_wgpu")
    return str(address)


def _card(address: hub.Address) -> str:
    """The repository's model card; empty where it has none."""
    package = hub.package()
    with contextlib.suppress(package.errors.RemoteEntryNotFoundError):  # never an older card from the cache
        path = package.hf_hub_download(address.repo, "README.md", force_download=True)
        return Path(path).read_text(encoding="utf-8")
    return ""


def section(model: Model, address: hub.Address, size: int, accuracy: Mapping[str, Any]) -> str:
    """The part of a model card on one file, of `size` bytes."""
    rows = [
        f"| {name} | {' x '.join(map(str, found.shape))} {found.array_dtype} |" for name, found in model.inputs.items()
    ]
    rows += [f"| result {i} | {' x '.join(map(str, found.shape))} |" for i, found in enumerate(model.outputs)]
    parts = [
        f"## {address.file}",
        f"An int8 network of {size:,} bytes for any GPU, through WebGPU:",
        f'```python\nimport q8ta_wgpu as q8\n\nsession = q8.Session(q8.load("{address}"))\n```',
        "\n".join(["| value | is |", "|---|---|", *rows]),
    ]
    if accuracy:
        parts.append(
            "\n".join(["| accuracy | |", "|---|---|", *(f"| {name} | {it} |" for name, it in accuracy.items())])
        )
    return "\n\n".join([*parts, f"```text\n{model.report()}\n```"])


def with_section(card: str, made: str, address: hub.Address) -> str:
    """A model card with the section of a file, in place of an earlier one of that file."""
    begin, end = f"<!-- q8ta_wgpu: {address.file} -->", f"<!-- end of {address.file} -->"
    marked = f"{begin}\n{made}\n{end}"
    before, found, after = card.partition(begin)
    if found and end in after:
        return f"{before}{marked}{after.partition(end)[2]}"
    head = (
        "---\nlibrary_name: q8ta-wgpu\ntags: [int8, quantized, webgpu]\n---\n\n" + f"# {address.repo.split('/')[1]}\n"
    )
    return f"{(card or head).rstrip()}\n\n{marked}\n"
