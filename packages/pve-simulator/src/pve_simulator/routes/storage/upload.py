"""Uploads to a storage."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import hdrs

from pve_simulator.http import parameters
from pve_simulator.http.refusals import ServerRefusal, bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage import volume_access, volumes
from pve_simulator.storage.storages import FILE_BASED, Storage
from pve_simulator.world import Node

_FIELDS = ("content", "checksum-algorithm", "checksum")
_ALGORITHMS = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")
_MAX_FIELD_BYTES = 64 * 1024
_HEAD = 512
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_FILE_PART = re.compile(
    rb'Content-Disposition: (?P<disposition>.*?); name="(?P<name>.*?)"; filename="(?P<file>[^"]+)"\r?\n', re.DOTALL
)
_FIELD_PART = re.compile(rb'.*?Content-Disposition: (?P<disposition>.*?); name="(?P<name>[^"]*)"', re.DOTALL)
_BOUNDARY = re.compile(r"boundary\s*=\s*\"?([^\s\";,]+)")


class BadUpload(Exception):
    """A body that PVE's HTTP server rejects with HTTP 501."""

    def __init__(self, reason: str, status: int = 501) -> None:
        super().__init__(reason)
        self.status = status


def out_of_order() -> BadUpload:
    """The refusal of a field after one that must follow it; its answer has no body."""
    return BadUpload("Bad Request", status=400)


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def boundary_of(content_type: str) -> str | None:
    """The boundary of a multipart body, None for other content types."""
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        return None
    match = _BOUNDARY.search(content_type)
    return match[1] if match else None


@dataclass(slots=True)
class Upload:
    """Parses the body: `feed` it, then `finish`; holds the fields, and size and checksum of the file."""

    boundary: str
    fields: dict[str, str] = field(default_factory=dict)
    size: int = 0
    head: bytes = b""  # the first bytes of the file, to detect its format
    _buffer: bytes = b""
    _in_file: bool = False
    _done: bool = False
    _hash: _Hash | None = None

    @property
    def checksum(self) -> str | None:
        """The file's checksum, if the fields name a known algorithm."""
        return None if self._hash is None else self._hash.hexdigest()

    def feed(self, data: bytes) -> None:
        """Process the next piece of the body."""
        if self._done:
            return
        self._buffer += data
        if not self._in_file:
            self._read_fields()
            if not self._in_file and len(self._buffer) > _MAX_FIELD_BYTES:
                raise BadUpload("upload failed")
        if self._in_file:
            self._read_file()

    def finish(self) -> None:
        """End the body; it must end with the closing boundary."""
        if not self._done:
            raise BadUpload("upload failed")

    def _read_fields(self) -> None:
        delimiter = f"--{self.boundary}".encode()
        start = self._buffer.find(delimiter)
        if start < 0:
            return
        self._buffer = self._buffer[start:]
        while not self._in_file:
            part = self._next_part(delimiter)
            if part is None:
                return
            self._take_field(part)

    def _next_part(self, delimiter: bytes) -> bytes | None:
        """One complete field, or None if the file starts or more data is needed."""
        after = self._after_delimiter(delimiter)
        if after is None:
            return None
        file_part = _FILE_PART.match(self._buffer, after)
        header_end = _HEADER_END.search(self._buffer, after)
        if file_part is not None and header_end is not None and file_part.end() <= header_end.start() + 2:
            self._begin_file(file_part, header_end.end())
            return None
        if header_end is not None and b'filename="' in self._buffer[after : header_end.start()]:
            raise BadUpload("upload failed")  # a file whose headers do not start with Content-Disposition
        following = self._buffer.find(delimiter, after)
        if following < 0:
            return None
        part = self._buffer[after:following]
        self._buffer = self._buffer[following:]
        return part

    def _after_delimiter(self, delimiter: bytes) -> int | None:
        rest = self._buffer[len(delimiter) : len(delimiter) + 2]
        if len(rest) < 2:
            return None
        if rest == b"--":  # the end, before any file
            raise BadUpload("upload failed")
        return len(delimiter) + (2 if rest == b"\r\n" else 1)

    def _take_field(self, part: bytes) -> None:
        match = _FIELD_PART.match(part)
        header_end = _HEADER_END.search(part)
        name = match["name"].decode("utf-8", "replace") if match else ""
        if match is None or header_end is None or name not in _FIELDS:
            raise BadUpload(f"wrong field name '{name}\"")
        _check_disposition(match["disposition"])
        position = _FIELDS.index(name)
        if any(later in self.fields for later in _FIELDS[position:]):
            raise out_of_order()
        self.fields[name] = part[header_end.end() :].decode("utf-8", "replace").strip()

    def _begin_file(self, match: re.Match[bytes], data_start: int) -> None:
        _check_disposition(match["disposition"])
        name = match["name"].decode("utf-8", "replace")
        if name != "filename":
            raise BadUpload(f"wrong field name '{name}' for file upload, expected 'filename'", status=500)
        self.fields["filename"] = match["file"].decode("utf-8", "replace").strip()
        algorithm = self.fields.get("checksum-algorithm", "")
        if algorithm in _ALGORITHMS:
            self._hash = hashlib.new(algorithm, usedforsecurity=False)
        self._in_file = True
        self._buffer = self._buffer[data_start:]

    def _read_file(self) -> None:
        closing = f"--{self.boundary}--".encode()
        end = self._buffer.find(closing)
        if 0 <= self._buffer.find(f"\r\n--{self.boundary}\r\n".encode()) < (end if end >= 0 else len(self._buffer)):
            raise out_of_order()
        if end >= 0:
            data = self._buffer[:end]
            self._write(data[:-2] if data.endswith(b"\r\n") else data.removesuffix(b"\n"))
            self._buffer, self._done = b"", True
            return
        keep = len(closing) + 2  # a boundary may be split between pieces
        if len(self._buffer) > keep:
            self._write(self._buffer[:-keep])
            self._buffer = self._buffer[-keep:]

    def _write(self, data: bytes) -> None:
        self.size += len(data)
        if len(self.head) < _HEAD:
            self.head += data[:_HEAD]
        if self._hash is not None:
            self._hash.update(data)


def _check_disposition(disposition: bytes) -> None:
    text = disposition.decode("utf-8", "replace").splitlines()[0]
    if text != "form-data":
        raise BadUpload(f"wrong Content-Disposition '{text}' in multipart, expected 'form-data'")


_PIECE = 256 * 1024
_BYTES_PER_SECOND = 400 * 1024**2


@route("POST /nodes/{node}/storage/{storage}/upload", reads_body=True)
async def upload(call: Call) -> str:
    received = await _receive(call)
    params = _checked_parameters(call, received)
    node = _target_node(call)
    storage = volumes.usable_storage(call.world, node.name, call.values["storage"])
    if storage.type not in FILE_BASED:
        raise failure(f"can't upload to storage type '{storage.type}'")
    if received is None:
        raise failure("missing temporary file name")
    content = params["content"]
    name = volume_access.normalized_file_name(params["filename"])
    volume_access.check_file_name(content, name)
    if content not in storage.content:
        raise failure(f"storage '{storage.id}' does not support '{content}' content")
    if not node.online:
        raise failure(f"can't activate storage '{storage.id}' on node '{node.name}': No route to host")
    unique = hashlib.md5(f"{name}{call.world.clock.now()}".encode(), usedforsecurity=False).hexdigest()
    temporary = f"/var/tmp/pveupload-{unique}"  # noqa: S108 (only a name in a log)
    volid = f"{storage.id}:{content}/{name}"
    work = _import(call, storage, node, volid, received, params, temporary)
    return call.start_local_task("imgcopy", "", work)


async def _receive(call: Call) -> Upload | None:
    """The body, or None where there is none."""
    request = call.request
    if not request.content_length:
        return None
    declared = request.headers.get(hdrs.CONTENT_TYPE, "")
    boundary = existing(boundary_of(declared), ServerRefusal(506, f"upload 'Content-Type '{declared}' not implemented"))
    received = Upload(boundary)
    try:
        async for piece in request.content.iter_chunked(_PIECE):
            received.feed(piece)
        received.finish()
    except BadUpload as error:
        raise ServerRefusal(error.status, str(error), empty=error.status == 400) from error
    return received


def _checked_parameters(call: Call, received: Upload | None) -> dict[str, Any]:
    raw = {**call.params, **(received.fields if received is not None else {}), **call.values}
    if "tmpfilename" in call.params:
        raise bad_parameters({"tmpfilename": "illegal parameter"})
    errors = call.endpoint.check(raw)
    if errors:
        raise bad_parameters(errors)
    return parameters.convert_values(call.endpoint, raw)


def _target_node(call: Call) -> Node:
    name = call.local_node.name if call.node == "localhost" else call.node
    node = call.world.nodes.get(name)
    if node is None:
        raise failure(
            f"hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
        )
    return node


def _import(
    call: Call, storage: Storage, node: Node, volid: str, received: Upload, params: dict[str, Any], temporary: str
) -> Work:
    path = volumes.path_of(storage, volid.partition(":")[2])

    async def work(context: TaskContext) -> None:
        context.log(f"starting file import from: {temporary}")
        if "checksum" in params:
            volume_access.verify(context, received.checksum, params["checksum"])
        _check_format(volid, received.head, temporary)
        context.log(f"target node: {node.name}")
        context.log(f"target file: {path}")
        context.log(f"file size is: {received.size}")
        context.log(f"command: {_command(call, node, temporary, path)}")
        await context.sleep(0.2 + received.size / _BYTES_PER_SECOND)
        known = {received.fields.get("checksum-algorithm", ""): received.checksum} if received.checksum else None
        full = "import failed: cp: error writing: No space left on device"
        stored = volume_access.store_file(call.world, storage, node.name, volid, received.size, known, full)
        stored.virtual_size = _disk_inside(volid, received.head)
        context.log("finished file import successfully")

    return work


def _check_format(volid: str, head: bytes, temporary: str) -> None:
    """Refuse a disk image whose content does not match its name; anything is a valid raw image."""
    fmt = volid.rpartition(".")[2].lower() if ":import/" in volid else ""
    if fmt == "qcow2" and not head.startswith(b"QFI\xfb"):
        raise TaskError(f"qemu-img: Could not open '{temporary}': Image is not in qcow2 format")
    if fmt == "vmdk" and not head.startswith((b"KDMV", b"COWD", b"# Disk DescriptorFile")):
        raise TaskError(f"qemu-img: Could not open '{temporary}': Image is not in vmdk format")
    if fmt == "ova" and head[257:262] != b"ustar":
        raise TaskError(f"command 'tar -t -f {temporary}' failed: exit code 2")


def _disk_inside(volid: str, head: bytes) -> int | None:
    """The virtual size in an image's header, None if it has none."""
    if volid.endswith(".qcow2"):
        return int.from_bytes(head[24:32], "big") or None
    return int.from_bytes(head[12:20], "little") * 512 if head.startswith(b"KDMV") else None


def _command(call: Call, node: Node, temporary: str, path: str) -> str:
    if node is call.local_node:
        return f"cp -- {temporary} {path}"
    options = f"-o BatchMode=yes -o HostKeyAlias={node.name}"
    return f"/usr/bin/scp {options} -p -- {temporary} [{node.ip}]:{path}"
