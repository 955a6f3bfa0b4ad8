"""/config/remote: other servers to synchronize with, and what they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pve_simulator.pbs.maintenance import remote_server
from pve_simulator.pbs.refusals import Refusal, bad_parameter
from pve_simulator.pbs.routes.datastore import group_row, store_row
from pve_simulator.pbs.routing import Call, Payload, route
from pve_simulator.pbs.sections import apply_changes, check_digest
from pve_simulator.pbs.server import BackupServer


@route("GET", "/config/remote")
def list_remotes(call: Call) -> Any:
    visible = [
        _without_password(remote)
        for name, remote in call.server.sections["remote"].items()
        if call.holds("Remote.Audit", path=f"/remote/{name}")
    ]
    return Payload(visible, _digest(call))


@route("GET", "/config/remote/{name}")
def read_remote(call: Call) -> Any:
    return Payload(_without_password(_find_section(call)), _digest(call))


@route("POST", "/config/remote")
def create_remote(call: Call) -> None:
    remotes = call.server.sections["remote"]
    if str(call["name"]) in remotes:
        raise bad_parameter("name", f"remote '{call['name']}' already exists.")
    remotes[str(call["name"])] = dict(call.params)


@route("PUT", "/config/remote/{name}")
def update_remote(call: Call) -> None:
    check_digest(call, _digest(call)["digest"])
    apply_changes(call, _find_section(call), fixed=("name",))


@route("DELETE", "/config/remote/{name}")
def delete_remote(call: Call) -> None:
    name = str(call["name"])
    for job_id, job in sorted(call.server.sections["sync"].items(), reverse=True):
        if job.get("remote") == name:
            text = f"remote '{name}' is used by sync job '{job_id}' (datastore '{job['store']}')"
            raise bad_parameter("name", text)
    _find_section(call)
    check_digest(call, _digest(call)["digest"])
    del call.server.sections["remote"][name]


@route("GET", "/config/remote/{name}/scan")
async def scan_datastores(call: Call) -> Any:
    return await _scan(call, lambda peer: [store_row(store) for store in peer.datastores.values()])


@route("GET", "/config/remote/{name}/scan/{store}/namespaces")
async def scan_namespaces(call: Call) -> Any:
    return await _scan(call, lambda peer: [{"ns": name} for name in peer.datastore(str(call["store"])).below("")])


@route("GET", "/config/remote/{name}/scan/{store}/groups")
async def scan_groups(call: Call) -> Any:
    def groups(peer: BackupServer) -> list[dict[str, Any]]:
        store = peer.datastore(str(call["store"]))
        return [group_row(group) for group in store.groups(str(call.params.get("namespace", ""))).values()]

    return await _scan(call, groups)


async def _scan(call: Call, read: Callable[[BackupServer], Any]) -> Any:
    remote = _find_section(call)
    try:
        return read(remote_server(call.server, remote))
    except Refusal as refusal:
        await call.server.clock.sleep(refusal.delay)
        raise Refusal(f"failed to scan remote '{call['name']}' - {refusal.text}", 500) from refusal


def _find_section(call: Call) -> dict[str, Any]:
    remote = call.server.sections["remote"].get(str(call["name"]))
    if remote is None:
        raise Refusal(f"no such remote '{call['name']}'")
    return remote


def _without_password(remote: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in remote.items() if name != "password"}


def _digest(call: Call) -> dict[str, str]:
    return {"digest": call.server.digest(*call.server.sections["remote"].items())}
