"""What the SDN endpoints share: which view is asked for, who may see and change a vnet, the change itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quorate.sim.config_files import changing
from quorate.sim.routing import Call
from quorate.sim.sdn import Kind, Sdn
from quorate.sim.sections import Section, options_of
from quorate.sim.world import World

NO_OPTIONS = ("lock-token", "digest", "delete", "pending", "running")


def sdn_of(world: World) -> Sdn:
    return world.part(Sdn)


def view(call: Call, kind: Kind) -> dict[str, Section]:
    """The objects as asked for: with pending changes marked, as running, or as configured."""
    sdn = sdn_of(call.world)
    if call.params.get("pending"):
        return sdn.pending(kind)
    if call.params.get("running"):
        return sdn.running(kind)
    return sdn.files[kind].sections


def digest_shown(call: Call, kind: Kind) -> str | None:
    """Only the configuration itself has a digest; the other views carry an empty one."""
    if call.params.get("pending") or call.params.get("running"):
        return None
    return sdn_of(call.world).files[kind].digest()


def require_vnet(call: Call, vnet: str, *privileges: str) -> None:
    """The zone of a vnet is part of the path of its permissions, so the vnet has to be there."""
    zone = sdn_of(call.world).configured("vnets", vnet)["zone"]
    call.require(f"/sdn/zones/{zone}/{vnet}", *privileges, any_of=True)


def zone_of(row: Section) -> Any:
    """The zone of a vnet in any view."""
    return row.get("zone", row.get("pending", {}).get("zone"))


@contextmanager
def sdn_change(call: Call, what: str) -> Iterator[Sdn]:
    """A change under the lock of the SDN configuration."""
    sdn = sdn_of(call.world)
    with changing(f"{what} failed"):
        sdn.check_lock(call.params.get("lock-token"))
        yield sdn


def options(call: Call, *without: str) -> Section:
    """The options among the parameters of a call."""
    return options_of(call.params, *NO_OPTIONS, *without)
