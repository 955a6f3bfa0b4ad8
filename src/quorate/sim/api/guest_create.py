"""New guests: made from nothing or from a template here; from a backup by `quorate.sim.backups`."""

from __future__ import annotations

from typing import Any

from quorate.sim.create_container import create_container
from quorate.sim.create_vm import create_vm
from quorate.sim.routing import Call, route


@route("POST /nodes/{node}/qemu")
def new_vm(call: Call) -> Any:
    if "archive" in call.params:
        from quorate.sim.backups import restore_guest

        return restore_guest(call, "qemu")
    return create_vm(call)


@route("POST /nodes/{node}/lxc")
def new_container(call: Call) -> Any:
    if call.params.get("restore"):
        from quorate.sim.backups import restore_guest

        return restore_guest(call, "lxc")
    return create_container(call)
