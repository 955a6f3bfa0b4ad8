"""Images for application containers, pulled from registries (PVE 9.1 and newer)."""

from __future__ import annotations

import hashlib

from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage import oci_images, volume_access, volumes
from pve_simulator.storage.storages import FILE_BASED, Storage
from pve_simulator.world import World

_BYTES_PER_SECOND = 45 * 1024**2
_DENIED = "requested access to the resource is denied"


@route("GET /nodes/{node}/query-oci-repo-tags")
def repository_tags(call: Call) -> list[str]:
    if not call.world.nodes[call.node].has_skopeo:
        raise failure("Install 'skopeo' to list tags from OCI registries.")
    repository = call.params["reference"]
    tags = oci_images.tags_of(repository)
    if tags is None:
        raise failure(f"command 'skopeo list-tags docker://{repository}' failed: exit code 1")
    return list(tags)


@route("POST /nodes/{node}/storage/{storage}/oci-registry-pull")
def pull(call: Call) -> str:
    if not call.world.nodes[call.node].has_skopeo:
        raise failure("Install 'skopeo' to pull OCI images from registries.")
    storage, reference = volume_access.storage_of_path(call), call.params["reference"]
    if storage.type not in FILE_BASED:
        raise failure(f"can't upload to storage type '{storage.type}', not a file based storage!")
    if "vztmpl" not in storage.content:
        raise failure(f"storage '{storage.id}' is not configured for content-type 'vztmpl'")
    name = f"{volume_access.normalized_file_name(call.params.get('filename') or reference)}.tar"
    if storage.volume(call.node, f"{storage.id}:vztmpl/{name}") is not None:
        raise failure(f"refusing to override existing file '{name}'")
    return call.start_task("ociregistrypull", name, _pulling(call.world, call.node, storage, reference, name))


def _pulling(world: World, node: str, storage: Storage, reference: str, name: str) -> Work:
    path = volumes.path_of(storage, f"vztmpl/{name}")

    async def work(context: TaskContext) -> None:
        command = f"skopeo copy docker://{reference} oci-archive:{path}.tmp.{context.task.upid.pid}"
        failed = TaskError(f"command '{command}' failed: exit code 1")
        image = oci_images.look_up(reference)
        if image is None:
            repository, _, tag = reference.rpartition(":")
            context.log(f'level=fatal msg="initializing source docker://{reference}: reading manifest {tag} in')
            context.log(f'{repository}: {_DENIED}"')
            raise failed
        digest = hashlib.sha256(reference.encode()).hexdigest()
        context.log("Getting image source signatures")
        context.log(f"Copying blob sha256:{digest}")
        await context.sleep(0.5 + image.size / _BYTES_PER_SECOND)
        context.log(f"Copying config sha256:{digest[::-1]}")
        context.log("Writing manifest to image destination")
        full = f"{failed}: no space left on device"
        volume = volume_access.store_file(world, storage, node, f"{storage.id}:vztmpl/{name}", image.size, None, full)
        volume.image = image

    return work
