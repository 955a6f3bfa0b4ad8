"""Looking into backups and importable images without restoring them."""

from __future__ import annotations

import base64
from typing import Any

from quorate.sim import archives, volume_names, volumes
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.storages import Storage, Volume

_FILE_RESTORE = "/nodes/{node}/storage/{storage}/file-restore"
_ROOT_DIRECTORIES = ("bin", "boot", "etc", "home", "opt", "root", "srv", "usr", "var")


@route(f"GET {_FILE_RESTORE}/list")
def list_files(call: Call) -> list[dict[str, Any]]:
    _, volume = _snapshot(call)
    path = _decoded(call.params["filepath"])
    if path in ("", "/"):
        return [_row("/", name, leaf=False) for name in _archive_names(call, volume)]
    parts = [part for part in path.split("/") if part]
    if parts[0] not in _archive_names(call, volume):
        raise failure(f"no such archive '{parts[0]}' in the backup")
    if len(parts) == 1:
        return [_row(f"/{parts[0]}/", name, leaf=False) for name in _ROOT_DIRECTORIES]
    if len(parts) == 2 and parts[1] == "etc":
        return [_row(f"/{parts[0]}/etc/", name, leaf=True) for name in ("hostname", "hosts", "os-release")]
    return []


@route(f"GET {_FILE_RESTORE}/download")
def download(call: Call) -> str:
    """The server that lists the files has none of their data to send."""
    storage, _ = _snapshot(call)
    server = storage.config.get("server", "localhost")
    reason = "tcp connect error: Connection refused (os error 111)"
    raise failure(f"proxmox-file-restore failed: Error: error connecting to https://{server}:8007/ - {reason}")


def _snapshot(call: Call) -> tuple[Storage, Volume]:
    """The backup of the call; only backup servers keep them so that one can look inside."""
    name = call.params["volume"]
    volid = name if ":" in name else f"{call.values['storage']}:backup/{name}"
    storage, parsed = volume_names.check_access(call, volume_names.full_volid(call.values["storage"], volid))
    if storage.type != "pbs":
        raise failure("extract/restore is only supported for Proxmox Backup Server storages")
    if parsed.vmid is not None:
        call.require(f"/vms/{parsed.vmid}", "VM.Backup")
    return storage, volumes.existing(call.world, call.node, volid)


def _archive_names(call: Call, volume: Volume) -> list[str]:
    archive = archives.open_archive(call.world, volume)
    if archive.kind == "lxc":
        return ["root.pxar.didx"]
    return [f"drive-{drive.key}.img.fidx" for drive in archive.drives()]


def _decoded(text: str) -> str:
    """A path comes in base64, but for the root."""
    if text == "/":
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError as error:
        raise failure("failed base64-decoding path") from error


def _row(parent: str, name: str, *, leaf: bool) -> dict[str, Any]:
    full = f"{parent}{name}".encode()
    row: dict[str, Any] = {
        "filepath": base64.b64encode(full).decode(),
        "text": name,
        "type": "f" if leaf else "v" if parent == "/" else "d",
        "leaf": int(leaf),
    }
    if leaf:
        row |= {"size": 220, "mtime": 1_736_500_000}
    return row


@route("GET /nodes/{node}/storage/{storage}/import-metadata")
def import_metadata(call: Call) -> dict[str, Any]:
    volid = f"{call.values['storage']}:{call.params['volume']}"
    storage, parsed = volume_names.check_access(call, volid)
    volume = volumes.existing(call.world, call.node, volid)
    if parsed.content != "import" or parsed.format != "ova":
        raise failure(f"storage type '{storage.type}' does not support import of '{parsed.format}'")
    name = volume.name.rpartition("/")[2].removesuffix(".ova")
    disk = f"{volid}/{name}-disk1.vmdk"
    return {
        "type": "vm",
        "source": "ova",
        "create-args": {"name": name, "cores": 1, "memory": 1024},
        "disks": {"scsi0": {"volid": disk, "size": volume.disk_size}},
        "net": {},
        "warnings": [{"type": "ova-needs-extracting"}],
    }
