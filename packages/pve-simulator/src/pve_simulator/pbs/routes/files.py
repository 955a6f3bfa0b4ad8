"""Files of a snapshot: the list, downloads, and what is inside the archives."""

from __future__ import annotations

from typing import Any

from pve_simulator.pbs import archives
from pve_simulator.pbs.archives import Tree
from pve_simulator.pbs.datastores import CATALOG, Snapshot, hash_of
from pve_simulator.pbs.refusals import Refusal, no_such_file
from pve_simulator.pbs.routes.datastore import snapshot_of
from pve_simulator.pbs.routing import Call, Raw, route

_NO_FILE = "File open failed: No such file or directory (os error 2)"


def _snapshot(call: Call, full: str) -> Snapshot:
    snapshot = snapshot_of(call, full, "Datastore.Backup")[2]
    if snapshot is None:
        raise no_such_file()
    return snapshot


def _refuse_encrypted(snapshot: Snapshot, name: str) -> None:
    file = snapshot.find(name)
    if file is not None and file.crypt_mode == "encrypt":
        raise Refusal(f"cannot decode '{name}' - is encrypted")


@route("GET", "/admin/datastore/{store}/files")
def list_files(call: Call) -> Any:
    return [file.as_row() for file in _snapshot(call, "Datastore.Audit").all_files()]


@route("GET", "/admin/datastore/{store}/catalog")
def browse(call: Call) -> Any:
    """A folder of an archive. Without an archive's name the catalog answers, and its first level are the archives."""
    snapshot = _snapshot(call, "Datastore.Read")
    archive = call.params.get("archive-name")
    path = archives.decode_path(str(call["filepath"]))
    if archive is not None:
        return archives.listing(_tree(snapshot, str(archive)), path, "")
    if snapshot.find(CATALOG) is None:
        store = call.datastore()
        file = f'"{store.folder(call.namespace)}/{snapshot.name}/{CATALOG}"'
        why = f"Unable to open dynamic index {file} - No such file or directory (os error 2)"
        raise Refusal(f"unable to read dynamic index '{file}' - {why}")
    _refuse_encrypted(snapshot, CATALOG)
    if path.strip("/") == "":
        return [
            {"filepath": archives.encode_path(f"/{name}"), "leaf": False, "text": name, "type": "d"}
            for name in snapshot.trees
        ]
    name, _, inside = path.strip("/").partition("/")
    if name not in snapshot.trees:
        raise Refusal(f'path "{path}" not found in catalog')
    return archives.listing(snapshot.trees[name], inside, name)


@route("GET", "/admin/datastore/{store}/pxar-file-download")
def download_inside(call: Call) -> Any:
    snapshot = _snapshot(call, "Datastore.Read")
    archive = call.params.get("archive-name")
    path = archives.decode_path(str(call["filepath"])).strip("/")
    if archive is None:
        archive, _, path = path.partition("/")
    return Raw(archives.download(_tree(snapshot, str(archive)), path, as_tar=bool(call.params.get("tar"))))


def _tree(snapshot: Snapshot, archive: str) -> Tree:
    _refuse_encrypted(snapshot, archive)
    if archive not in snapshot.trees:
        raise Refusal(f"unable to open archive '{archive}' - No such file or directory (os error 2)")
    return snapshot.trees[archive]


@route("GET", "/admin/datastore/{store}/download")
def download(call: Call) -> Any:
    """The file as it is stored, so a blob with its header."""
    file = _snapshot(call, "Datastore.Read").find(str(call["file-name"]))
    if file is None:
        raise Refusal(_NO_FILE)
    header = hash_of(file.name).to_bytes(32, "big")[:12]
    return Raw(header + (file.content or b""))


@route("GET", "/admin/datastore/{store}/download-decoded")
def decode_and_download(call: Call) -> Any:
    snapshot = _snapshot(call, "Datastore.Read")
    name = str(call["file-name"])
    _refuse_encrypted(snapshot, name)
    file = snapshot.find(name)
    if file is None:
        raise Refusal(_NO_FILE)
    return Raw(file.content if file.content is not None else b"\0" * min(file.size, 1 << 20))
