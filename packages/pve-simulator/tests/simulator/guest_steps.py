"""Steps shared by the tests that create and change guests."""

from __future__ import annotations

from typing import Any

from pve_simulator.access.directory import Token, User
from pve_simulator.api_client import Api, Reply
from pve_simulator.guests.guest import GIB
from pve_simulator.storage.storages import Volume

VM = "/nodes/pve1/qemu"
CT = "/nodes/pve1/lxc"
TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"


async def put(api: Api, path: str, /, **params: Any) -> Reply:
    """PUT with any parameter names, such as `delete`."""
    return await api.request("PUT", path, data={key: str(value) for key, value in params.items()})


async def create_vm(api: Api, vmid: int = 500, /, **params: Any) -> str:
    """Create a VM on pve1; returns the exit status of its task."""
    return await api.finish_task(await api.post(VM, vmid=vmid, **params))


async def create_container(api: Api, vmid: int = 500, /, **params: Any) -> str:
    settings = {"ostemplate": TEMPLATE, "rootfs": "local-lvm:4", "features": "nesting=1", **params}
    return await api.finish_task(await api.post(CT, vmid=vmid, **settings))


async def config(api: Api, path: str, **query: Any) -> dict[str, Any]:
    shown: dict[str, Any] = (await api.get(f"{path}/config", **query)).data
    return shown


async def pending(api: Api, path: str) -> dict[str, dict[str, Any]]:
    """The rows of `pending` with changes, by key."""
    rows = (await api.get(f"{path}/pending")).data
    return {row["key"]: row for row in rows if "pending" in row or "delete" in row}


def log_of(api: Api, reply: Reply) -> list[str]:
    task = api.cluster.world.tasks.find(reply.data)
    assert task is not None
    return task.log


def volume(api: Api, volid: str, node: str = "pve1") -> Volume | None:
    return api.cluster.world.storages[volid.partition(":")[0]].volume(node, volid)


def user(api: Api, *grants: tuple[str, str]) -> Api:
    """A new user's token with these (path, role) pairs."""
    access = api.cluster.world.access
    access.users["eve@pve"] = User(
        "eve@pve", tokens={"tt": Token("00000000-1111-4222-8333-444444444444", privsep=False)}
    )
    for path, role in grants:
        access.grant(path, role, "eve@pve")
    access.invalidate_cache()
    return api.as_token("eve@pve!tt")


def role(api: Api, name: str, *privileges: str) -> str:
    api.cluster.world.access.custom_roles[name] = frozenset(privileges)
    return name


def import_image(api: Api, name: str = "debian-13.qcow2") -> str:
    """Add a cloud image to pve1's `local`, ready for import."""
    volid = f"local:import/{name}"
    api.cluster.world.storages["local"].add("pve1", Volume(volid, "import", "qcow2", 3 * GIB, GIB, 1))
    return volid
