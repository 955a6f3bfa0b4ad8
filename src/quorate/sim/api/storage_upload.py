"""Upload of ISO images, container templates and disk images."""

from __future__ import annotations

import hashlib
from typing import Any

from aiohttp import hdrs

from quorate.sim import parameters, volume_names, volumes
from quorate.sim.refusals import ServerRefusal, bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.storages import FILE_BASED, Storage, Volume
from quorate.sim.tasks import TaskContext, TaskError, Work
from quorate.sim.uploads import BadUpload, Upload, boundary_of
from quorate.sim.world import Node, World

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
    name = volume_names.normalized_file_name(params["filename"])
    volume_names.check_file_name(content, name)
    if content not in storage.content:
        raise failure(f"storage '{storage.id}' does not support '{content}' content")
    if not node.online:
        raise failure(f"can't activate storage '{storage.id}' on node '{node.name}': No route to host")
    unique = hashlib.md5(f"{name}{call.world.clock.now()}".encode(), usedforsecurity=False).hexdigest()
    temporary = f"/var/tmp/pveupload-{unique}"  # noqa: S108 (only a name in a log)
    volid = f"{storage.id}:{content}/{name}"
    work = _import(call, storage, node, volid, content, received, params, temporary)
    return call.world.tasks.start(call.local_node.name, "imgcopy", "", call.authid, work)


async def _receive(call: Call) -> Upload | None:
    """The body, or None where there is none."""
    request = call.request
    if not request.content_length:
        return None
    declared = request.headers.get(hdrs.CONTENT_TYPE, "")
    boundary = boundary_of(declared)
    if boundary is None:
        raise ServerRefusal(506, f"upload 'Content-Type '{declared}' not implemented")
    received = Upload(boundary)
    try:
        async for piece in request.content.iter_chunked(_PIECE):
            received.feed(piece)
        received.finish()
    except BadUpload as error:
        raise ServerRefusal(error.status, str(error)) from error
    return received


def _checked_parameters(call: Call, received: Upload | None) -> dict[str, Any]:
    raw = {**call.params, **(received.fields if received is not None else {}), **call.values}
    if "tmpfilename" in call.params:
        raise bad_parameters({"tmpfilename": "illegal parameter"})
    errors = call.endpoint.check(raw)
    if errors:
        raise bad_parameters(errors)
    return parameters.typed(call.endpoint, raw)


def _target_node(call: Call) -> Node:
    name = call.local_node.name if call.node == "localhost" else call.node
    node = call.world.nodes.get(name)
    if node is None:
        raise failure(
            f"hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
        )
    return node


def _import(
    call: Call,
    storage: Storage,
    node: Node,
    volid: str,
    content: str,
    received: Upload,
    params: dict[str, Any],
    temporary: str,
) -> Work:
    world, path = call.world, volumes.path_of(storage, volid.partition(":")[2])

    async def work(context: TaskContext) -> None:
        context.log(f"starting file import from: {temporary}")
        if "checksum" in params:
            _verify(context, received, params["checksum"])
        context.log(f"target node: {node.name}")
        context.log(f"target file: {path}")
        context.log(f"file size is: {received.size}")
        context.log(f"command: {_command(call, node, temporary, path)}")
        await context.sleep(0.2 + received.size / _BYTES_PER_SECOND)
        _store(world, storage, node.name, volid, content, received)
        context.log("finished file import successfully")

    return work


def _verify(context: TaskContext, received: Upload, expected: str) -> None:
    actual = received.checksum
    if actual is None or actual.lower() != expected.lower():
        context.log("calculating checksum...")
        raise TaskError(f"checksum mismatch: got '{actual}' != expect '{expected}'")
    context.log("calculating checksum...OK, checksum verified")


def _command(call: Call, node: Node, temporary: str, path: str) -> str:
    if node is call.local_node:
        return f"cp -- {temporary} {path}"
    options = f"-o BatchMode=yes -o HostKeyAlias={node.name}"
    return f"/usr/bin/scp {options} -p -- {temporary} [{node.ip}]:{path}"


def _store(world: World, storage: Storage, node: str, volid: str, content: str, received: Upload) -> None:
    """The file is there now; one of the same name is overwritten."""
    name = volid.rpartition("/")[2]
    fmt = volume_names.listed_format(content, name)
    used = volume_names.used_by_file(received.size)
    volume = Volume(volid, content, fmt, received.size, used, int(world.clock.now()))
    algorithm = received.fields.get("checksum-algorithm")
    if algorithm and received.checksum:
        volume.checksums = {algorithm: received.checksum}
    storage.remove(node, volid)
    try:
        storage.add(node, volume)
    except TaskError as error:
        raise TaskError("import failed: cp: error writing: No space left on device") from error
