"""Storage configuration: add, change and remove storages."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.config_files import changing, check_digest
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call, route
from pve_simulator.storage import plugins
from pve_simulator.storage.storages import Storage
from pve_simulator.world import World

# Options that are fields of Storage.
_FIELDS = frozenset({"content", "nodes", "shared", "disable"})


@route("POST /storage")
def create(call: Call) -> dict[str, Any]:
    options = dict(call.params)
    storage_id, kind = options.pop("storage"), options.pop("type")
    if not options.get("nodes"):
        options.pop("nodes", None)
    plugins.check_new(kind, options)
    content = plugins.content_of(kind, _requested_content(options))
    with changing("create storage failed"):
        _add(call, storage_id, kind, content, options)
        plugins.write_config(call.world)
    return {"storage": storage_id, "type": kind, **_generated_key(options)}


def _add(call: Call, storage_id: str, kind: str, content: tuple[str, ...], options: dict[str, Any]) -> None:
    world = call.world
    if storage_id in world.storages:
        raise failure(f"storage ID '{storage_id}' already defined")
    shared = plugins.PLUGINS[kind].shared or bool(options.get("shared"))
    storage = Storage(storage_id, kind, content, shared, defined_at=world.clock.now())
    if kind in ("nfs", "cifs") and "path" not in options:
        options["path"] = f"/mnt/pve/{storage_id}"
    _set(storage, options)
    if not storage.disabled and storage.on_node(call.local_node.name):
        plugins.activate(world, call.local_node.name, storage)
    plugins.allocate_space(world, storage)
    world.storages[storage_id] = storage


def _requested_content(options: dict[str, Any]) -> list[str] | None:
    return split_list(options["content"]) if "content" in options else None


@route("PUT /storage/{storage}")
def update(call: Call) -> dict[str, Any]:
    options = dict(call.params)
    storage_id = options.pop("storage")
    given_digest, deleted = options.pop("digest", None), split_list(options.pop("delete", ""))
    with changing("update storage failed"):
        check_digest(plugins.digest(call.world), given_digest)
        storage = call.world.storage(storage_id)
        plugins.PLUGINS[storage.type].options.check_change(options, deleted)
        _change(call.world, storage, options, deleted)
        plugins.write_config(call.world)
    return {"storage": storage_id, "type": storage.type, **_generated_key(options)}


def _change(world: World, storage: Storage, options: dict[str, Any], deleted: list[str]) -> None:
    if "content" in options:
        storage.content = plugins.content_of(storage.type, _requested_content(options))
    elif "content" in deleted:
        storage.content = plugins.content_of(storage.type, None)
    for name in deleted:
        storage.config.pop(name, None)
    if "nodes" in deleted:
        storage.nodes = None
    if "disable" in deleted:
        storage.disabled = False
    wants_sharing = options.get("shared", storage.shared and "shared" not in deleted)
    if wants_sharing:
        plugins.share(storage)
    elif storage.shared and not plugins.PLUGINS[storage.type].shared:
        plugins.unshare(storage, list(world.nodes))
    _set(storage, options)


def _set(storage: Storage, options: dict[str, Any]) -> None:
    if "nodes" in options:
        storage.nodes = frozenset(split_list(options["nodes"])) or None
    if "disable" in options:
        storage.disabled = bool(options["disable"])
    for name, value in options.items():
        if name not in _FIELDS and name not in plugins.SENSITIVE:
            storage.config[name] = int(value) if isinstance(value, bool) else value


@route("DELETE /storage/{storage}")
def delete(call: Call) -> None:
    world, storage_id = call.world, call.values["storage"]
    with changing("delete storage failed"):
        world.storage(storage_id)
        if any(str(other.config.get("base", "")).startswith(f"{storage_id}:") for other in world.storages.values()):
            raise failure("can't remove storage - storage is used as base of another storage")
    del world.storages[storage_id]
    plugins.write_config(world)
    _forget_privileges(world, storage_id)


def _forget_privileges(world: World, storage_id: str) -> None:
    """Remove a deleted storage from ACLs and pools."""
    for entry in list(world.access.acl()):
        if entry.path == f"/storage/{storage_id}":
            world.access.revoke(entry.path, entry.role, entry.kind, entry.subject)
    for pool in world.access.pools.values():
        pool.storages.discard(storage_id)
    world.access.invalidate_cache()


def _generated_key(options: dict[str, Any]) -> dict[str, Any]:
    """The key of a backup server is the one secret that PVE returns."""
    key = options.get("encryption-key")
    if key is None:
        return {}
    made = '{"kdf":null,"created":"1970-01-01T00:00:00Z","data":"c2ltdWxhdGVk"}'
    return {"config": {"encryption-key": made if key == "autogen" else key}}
