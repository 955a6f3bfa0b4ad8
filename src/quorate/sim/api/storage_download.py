"""Downloads to a storage: from a URL, or from a container registry."""

from __future__ import annotations

from typing import Any

from quorate.sim import downloads, volume_names
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.storages import FILE_BASED, Storage
from quorate.sim.tasks import TaskContext, TaskError, Work

_DECOMPRESSORS = ("gz", "lzo", "zst", "bz2")


@route("POST /nodes/{node}/storage/{storage}/download-url")
def download_url(call: Call) -> str:
    storage = _file_storage(call)
    content = call.params["content"]
    _check_content(storage, content)
    name = volume_names.normalized_file_name(call.params["filename"])
    volume_names.check_file_name(content, name)
    expected = None
    if call.params.get("checksum"):
        expected = (call.params["checksum-algorithm"], call.params["checksum"])
    work = downloads.download(call.world, call.node, storage, content, name, call.params["url"], expected=expected)
    return call.start_task("download", name, _decompressing(call, content, work))


def _decompressing(call: Call, content: str, work: Work) -> Work:
    """The same download for something compressed, which only ISO images may be."""
    compression = call.params.get("compression")
    if compression is None:
        return work

    async def checked(context: TaskContext) -> None:
        if content != "iso":
            raise TaskError(f"decompression not supported for {content}")
        if compression not in _DECOMPRESSORS:
            raise TaskError("no decompression method found")
        await work(context)

    return checked


def _file_storage(call: Call) -> Storage:
    storage = volume_names.storage_of_path(call)
    if storage.type not in FILE_BASED:
        raise failure(f"can't upload to storage type '{storage.type}', not a file based storage!")
    return storage


def _check_content(storage: Storage, content: str) -> None:
    if content not in storage.content:
        raise failure(f"storage '{storage.id}' is not configured for content-type '{content}'")


@route("GET /nodes/{node}/query-url-metadata")
def url_metadata(call: Call) -> dict[str, Any]:
    url, now = call.params["url"], call.world.clock.now()
    try:
        found = downloads.look_up(url, now)
    except downloads.Unreachable as error:
        line = downloads.unreachable_in_words_of_lwp(url, now)
        raise failure(f"invalid server response: '{line}'") from error
    return {"filename": found.name, "mimetype": found.mimetype, "size": found.size}


@route("POST /nodes/{node}/storage/{storage}/oci-registry-pull")
def pull_from_registry(_call: Call) -> str:
    """PVE leaves this to a tool that its installer does not bring."""
    raise failure("Install 'skopeo' to pull OCI images from registries.")


@route("GET /nodes/{node}/query-oci-repo-tags")
def registry_tags(_call: Call) -> list[str]:
    raise failure("Install 'skopeo' to list tags from OCI registries.")
