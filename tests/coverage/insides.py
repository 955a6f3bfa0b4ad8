"""Looks inside the simulated guests, beside the product."""

from __future__ import annotations

import shlex

from quorate.sim.guest_os.files import FileSystem
from quorate.sim.guest_os.installation import Unit
from quorate.sim.guest_os.machine import Machine, Machines
from quorate.sim.world import World
from tests.coverage.rows import Done


def inside(done: Done) -> Machine:
    return done.world.part(Machines).of(done.guest())


def files(done: Done) -> FileSystem:
    return inside(done).files


def service(done: Done) -> Unit:
    return inside(done).services[done.given["service"]]


def is_read(done: Done) -> None:
    assert done.facts["content"].encode() == files(done).read(done.given["path"])
    assert done.facts["content"]


def is_written(done: Done) -> None:
    assert files(done).read(done.given["path"]) == done.given["content"].encode()


def is_described(done: Done) -> None:
    entry = files(done).get(done.given["path"])
    assert (done.facts["size"], int(done.facts["mode"], 8)) == (entry.size, entry.mode)
    assert (done.facts["type"], done.facts["owner"]) == ("file", entry.owner)


def is_listed(done: Done) -> None:
    children = files(done).get(done.given["path"]).children
    assert [row["name"] for row in done.rows] == sorted(children)
    assert children


def service_is_told(done: Done) -> None:
    assert done.facts["state"] == "active (running)"
    assert done.facts["pid"] == service(done).pid


def service_runs(done: Done) -> None:
    assert service(done).active
    assert done.facts["now"] == "active (running)"


def service_was_restarted(done: Done) -> None:
    service_runs(done)
    assert service(done).pid != PID_BEFORE


def service_is_stopped(done: Done) -> None:
    assert not service(done).active
    assert done.facts["now"] == "inactive (dead)"


PID_BEFORE = 301
"""Of cron, since its machine came up."""


def stopped_service(vmid: int, name: str):
    def prepare(world: World) -> None:
        world.part(Machines).of(world.guests[vmid]).services[name].active = False

    return prepare


def has_run(done: Done) -> None:
    """The command has left its mark, and its outputs and exit code came back apart."""
    assert files(done).read("/srv/mark") == b"made\n"
    assert (done.facts["stdout"], done.facts["stderr"]) == (f"{inside(done).hostname}\n", "oh\n")
    assert done.facts["exit_code"] == 3


def echoed_its_input(done: Done) -> None:
    assert files(done).read("/srv/a b") == done.given["input_data"].encode()
    assert done.facts["stdout"] == done.given["input_data"]


def is_a_host(done: Done) -> None:
    """The line for Ansible names the guest, an address of it, and the user and key that were given."""
    guest = done.guest()
    host, *pairs = shlex.split(done.facts["inventory"].splitlines()[0])
    variables = dict(pair.split("=", 1) for pair in pairs)
    assert host == guest.name
    assert variables["ansible_host"] == next(
        address.ip for address in guest.addresses if address.interface == done.given["prefer_interface"]
    )
    assert variables["ansible_user"] == done.given["ssh_user"]
    assert variables["ansible_ssh_private_key_file"] == done.given["ssh_private_key_path"]
