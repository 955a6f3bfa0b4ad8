"""Reboot, shutdown and Wake-on-LAN of nodes, with their guests."""

from __future__ import annotations

from pve_simulator.access.directory import ROOT
from pve_simulator.guests import power
from pve_simulator.guests.bulk_routes import in_start_order
from pve_simulator.guests.guest import Guest
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.world import Node, World

# PVE answers first and acts after this delay; then services stop, and the boot takes a while.
_GRACE_SECONDS = 2.0
_HALT_SECONDS = 4.0
_BOOT_SECONDS = 75.0


class NodePower:
    """The nodes that are going down or booting."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaving: set[str] = set()

    def switch_off(self, node: Node, *, reboot: bool) -> None:
        """Stop the guests, then the node; after a reboot it comes back."""
        if node.name not in self._leaving:
            self._leaving.add(node.name)
            self._world.tasks.in_background(self._go_down(node, reboot=reboot))

    def wake(self, node: Node) -> None:
        """Wake the node by Wake-on-LAN."""
        if not node.online and node.name not in self._leaving:
            self._world.tasks.in_background(self._come_up(node))

    async def _go_down(self, node: Node, *, reboot: bool) -> None:
        world = self._world
        await world.clock.sleep(_GRACE_SECONDS)
        await world.tasks.wait_for(world.tasks.start(node.name, "stopall", "", ROOT, _stop_all(world, node.name)))
        await world.clock.sleep(_HALT_SECONDS)
        for guest in _running(world, node.name):
            guest.stop_running()
        self._set_online(node, online=False)
        self._leaving.discard(node.name)
        if reboot:
            await self._come_up(node)

    async def _come_up(self, node: Node) -> None:
        world = self._world
        self._leaving.add(node.name)
        await world.clock.sleep(_BOOT_SECONDS)
        node.booted_at = world.clock.now()
        node.kernel = node.installed_kernel or node.kernel
        self._set_online(node, online=True)
        self._leaving.discard(node.name)
        world.tasks.start(node.name, "startall", "", ROOT, _start_all(world, node.name))

    def _set_online(self, node: Node, *, online: bool) -> None:
        now = self._world.clock.now()
        node.online = online
        known = node.outages
        if online and known:
            known[-1] = (known[-1][0], now)
        elif not online:
            known.append((now, float("inf")))
        for guest in self._world.guests_on(node.name):
            guest.touch()


def _running(world: World, node: str) -> list[Guest]:
    return [guest for guest in world.guests_on(node) if guest.running]


def _stop_all(world: World, node: str) -> Work:
    async def work(context: TaskContext) -> None:
        for guest in _running(world, node):
            context.log(f"Stopping {guest.word} {guest.vmid} (timeout = 180 seconds)")
            address = power.GuestAddress(world, node, guest.kind, guest.vmid)
            try:
                await power.shutdown(address, timeout=180, force_stop=True, skiplock=True)(context)
            except TaskError as error:
                context.warn(str(error))

    return work


def _start_all(world: World, node: str) -> Work:
    async def work(context: TaskContext) -> None:
        for guest in (guest for group in in_start_order(world.guests_on(node)) for guest in group):
            if guest.running or not guest.config.get("onboot"):
                continue
            context.log(f"Starting {guest.word} {guest.vmid}")
            try:
                await power.start(power.GuestAddress(world, node, guest.kind, guest.vmid))(context)
            except TaskError as error:
                context.warn(str(error))

    return work
