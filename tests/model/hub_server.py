"""A server on this machine that speaks the part of the Hugging Face Hub's protocol that this library uses."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Files = dict[str, bytes]


@dataclass
class Hub:
    """The repositories of a server.

    Attributes:
        url: what HF_ENDPOINT must be.
        repos: by repository the files of each commit, the last one being main's.
        tags: names of commits, by repository and name.
        gated: repositories that nobody may read.
        requests: methods and paths, as they came.
    """

    url: str = ""
    repos: dict[str, list[Files]] = field(default_factory=dict)
    tags: dict[tuple[str, str], int] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    large: Files = field(default_factory=dict)

    def commit(self, repo: str, number: int) -> str:
        """The name of a commit."""
        return hashlib.sha1(f"{repo} {number}".encode()).hexdigest()

    def number(self, repo: str, revision: str) -> int | None:
        """Which commit a revision is; None for an unknown one."""
        commits = range(len(self.repos[repo]))
        named = {self.commit(repo, i): i for i in commits} | {"main": commits[-1]}
        return {**named, **{name: i for (of, name), i in self.tags.items() if of == repo}}.get(revision)


@contextlib.contextmanager
def served() -> Iterator[Hub]:
    """Runs a server as long as the context."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        self.hub.requests.append(f"{self.command} {self.path.partition('?')[0]}")

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def missing(self, code: str) -> None:
        status = 403 if code == "GatedRepo" else 404
        self.answer(status, json.dumps({"error": code}).encode(), X_Error_Code=code, X_Error_Message=code)

    def found(self, repo: str, revision: str) -> int | None:
        """A commit's number; answers where there is none."""
        if repo not in self.hub.repos:
            self.missing("RepoNotFound")
        elif repo in self.hub.gated:
            self.missing("GatedRepo")
        elif (number := self.hub.number(repo, revision)) is None:
            self.missing("RevisionNotFound")
        else:
            return number
        return None

    def do_HEAD(self) -> None:
        path = self.path.partition("?")[0]
        if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            if (number := self.found(listed[1], listed[2])) is not None:
                files = self.hub.repos[listed[1]][number].items()
                rows = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files]
                self.json(rows)
            return
        asked = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if asked is None:
            return self.answer(404)
        repo, revision, file = asked.groups()
        if (number := self.found(repo, revision)) is None:
            return None
        commit = self.hub.commit(repo, number)
        data = self.hub.repos[repo][number].get(file)
        if data is None:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        return self.answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=commit)

    def do_GET(self) -> None:
        self.do_HEAD()

    def do_PUT(self) -> None:
        self.hub.large[self.path.rpartition("/")[2]] = self.body()
        self.answer(200, ETag='"stored"')

    def body(self) -> bytes:
        if (length := self.headers.get("Content-Length")) is not None:
            return self.rfile.read(int(length))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_POST(self) -> None:
        path, sent = self.path.partition("?")[0], self.body()
        if path == "/api/repos/create":
            asked = json.loads(sent)
            repo = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if repo in self.hub.repos:
                return self.answer(409, json.dumps({"error": "it exists", "url": f"{self.hub.url}/{repo}"}).encode())
            self.hub.repos[repo] = [{}]
            return self.json({"url": f"{self.hub.url}/{repo}", "id": repo, "name": repo})
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(sent)["objects"]
            for each in objects:
                each["actions"] = {"upload": {"href": f"{self.hub.url}/large/{each['oid']}"}}
            return self.json({"transfer": "basic", "objects": objects})
        called = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/([^/]+)", path)
        assert called is not None, path
        if called[2] == "preupload":
            names = [file["path"] for file in json.loads(sent)["files"]]
            modes = {name: "regular" if name.endswith(".md") else "lfs" for name in names}
            rows = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            return self.json({"files": rows})
        commits = self.hub.repos[called[1]]
        files = dict(commits[-1])
        for row in map(json.loads, sent.splitlines()):
            value = row["value"]
            if row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        commits.append(files)
        oid = self.hub.commit(called[1], len(commits) - 1)
        return self.json({"commitUrl": f"{self.hub.url}/{called[1]}/commit/{oid}", "commitOid": oid})
