"""Files on the Hugging Face Hub: `hf://owner/name/file` in place of a path.

Cache, token, endpoint and offline mode are huggingface_hub's own (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from q8ta_wgpu.errors import InputError, Q8taError, UnsupportedError, nearest, one_line, shown

PREFIX = "hf://"
FORM = "hf://owner/name/file, or hf://owner/name@revision/file"


@dataclass(frozen=True)
class Address:
    """A file of a repository on the Hub.

    Attributes:
        repo: 'owner/name'.
        file: the path in the repository.
        revision: a branch, a tag or a commit; None for the main branch.
    """

    repo: str
    file: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}{f'@{self.revision}' if self.revision else ''}/{self.file}"

    def beside(self, file: str) -> Address:
        """A file whose path is relative to the folder of this one."""
        return Address(self.repo, "/".join([*self.file.split("/")[:-1], file]), self.revision)


def address_of(text: str, revision: str | None = None) -> Address:
    """The parts of an address. Raises InputError for one of another form, or with two revisions."""
    found = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([^/]+))?/([^/].*)", text)
    if found is None or text.endswith("/"):
        raise InputError(f"a file on the Hub is called {FORM}, found {shown(text)}")
    if revision is not None and not isinstance(revision, str):
        raise InputError(f"revision must be the name of a branch, a tag or a commit, found {shown(revision)}")
    if revision is not None and found[2] not in (None, revision):
        raise InputError(f"{shown(text)} names revision {shown(found[2])}, revision= names {shown(revision)}")
    return Address(found[1], found[3], revision or found[2])


def local(
    source: Any,
    revision: str | None = None,
    error: type[Q8taError] = InputError,
    beside: Callable[[Path], Iterable[str]] = lambda path: (),
) -> Any:
    """What a function that takes a path was given; for an address on the Hub the path of the downloaded file.

    Args:
        source: an address, or anything else, which is returned as it is.
        revision: a branch, a tag or a commit, in place of one in the address.
        error: what to raise where the file cannot be had.
        beside: (path of the file) -> further files that it needs, relative to its folder.

    Raises:
        InputError: the address has another form, or `revision` is given for a path.
        UnsupportedError: huggingface_hub is missing.
    """
    if not (isinstance(source, str) and source.startswith(PREFIX)):
        if revision is not None:
            raise InputError(f"revision={shown(revision)} is for files on the Hub, {FORM}; found {shown(source)}")
        return source
    address = address_of(source, revision)
    path = _downloaded(address, error)
    for file in beside(path):
        _downloaded(address.beside(file), error)
    return path


def package() -> Any:
    """huggingface_hub. Raises UnsupportedError where it is missing."""
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f'{PREFIX} needs huggingface_hub: pip install "q8ta-wgpu[hub]" ({error}); or download the file yourself'
        ) from error
    return huggingface_hub


def _downloaded(address: Address, error: type[Q8taError]) -> Path:
    hub = package()
    with named_errors(address, error):
        return Path(hub.hf_hub_download(address.repo, address.file, revision=address.revision))


@contextlib.contextmanager
def named_errors(address: Address, error: type[Q8taError]) -> Iterator[None]:
    """Raises `error`, with file, revision and way out, for whatever huggingface_hub raises."""
    from huggingface_hub import errors

    at = f"revision {shown(address.revision)}" if address.revision else "its main branch"
    try:
        yield
    except errors.GatedRepoError as failed:
        text = f"{address.repo} is given on request: ask for it on its page, and log in by `hf auth login` or HF_TOKEN"
        raise error(f"cannot read {address}: {text}") from failed
    except errors.RevisionNotFoundError as failed:
        text = f"{address.repo} has no {at}: give a branch, a tag or a commit that it has, or none for its main branch"
        raise error(f"cannot read {address}: {text}") from failed
    except errors.RepositoryNotFoundError as failed:
        text = f"there is no repository {address.repo}, or it is private: log in by `hf auth login` or HF_TOKEN"
        raise error(f"cannot read {address}: {text}") from failed
    except errors.LocalEntryNotFoundError as failed:
        text = f"{address.file} at {at} is not in the cache, and the Hub cannot be reached or HF_HUB_OFFLINE is set"
        raise error(f"cannot read {address}: {text}; load it once while connected, or give a path") from failed
    except errors.EntryNotFoundError as failed:
        raise error(f"cannot read {address}: {at} has no file {address.file}{_others(address)}") from failed
    except Q8taError:
        raise
    except Exception as failed:  # of the network, the file system, or a server: of several libraries
        text = f"{one_line(failed)}; try again, or download the file and give its path"
        raise error(f"cannot reach {address} at {at}: {text}") from failed


def _others(address: Address) -> str:
    """The names of files in the repository that are most like one; empty where they cannot be had."""
    with contextlib.suppress(Exception):
        files = package().list_repo_files(address.repo, revision=address.revision)
        return f"; it has {', '.join(nearest(address.file, files))}"
    return ": look at its page for the files it has"
