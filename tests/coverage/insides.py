"""Looks inside the simulated guests, independently of the product."""

from __future__ import annotations

from quorate.sim.guest_os.files import FileSystem
from quorate.sim.guest_os.installation import Unit
from quorate.sim.guest_os.machine import Machine, Machines
from tests.coverage.rows import Done


def inside(done: Done) -> Machine:
    return done.world.part(Machines).of(done.guest())


def files(done: Done) -> FileSystem:
    return inside(done).files


def service(done: Done) -> Unit:
    return inside(done).services[done.given["service"]]


"""Of cron, since its machine came up."""
