"""The death of a node: what ends with it, how long the others take to notice, and its return."""

from __future__ import annotations

from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.world import Node, World

# The first requests to a dead node wait for an answer. Later ones fail because its address no longer resolves.
_TIMED_OUT_SECONDS, _NO_ROUTE_SECONDS = 30.0, 3.07
_ADDRESS_KNOWN_SECONDS = 20.0
REPORTS_VALID_SECONDS = 180.0
"""How long `/cluster/resources` shows the last reports of a dead node."""


def cut_power(world: World, node: Node) -> None:
    """The node loses its power: its tasks and the guests on it end without a word."""
    now = world.clock.now()
    node.online, node.died_at = False, now
    node.outages.append((now, float("inf")))
    world.tasks.lose(node.name)
    for guest in world.guests_on(node.name):
        guest.stop_running()
        guest.lock_file_held = False


def restore_power(world: World, node: Node) -> None:
    """The node is up again, and has started the guests that start with it."""
    now = world.clock.now()
    node.online, node.died_at, node.booted_at = True, None, now
    node.outages[-1] = (node.outages[-1][0], now)
    world.part(StatusDaemon).forget(node.name)
    for guest in world.guests_on(node.name):
        if guest.config.get("onboot"):
            guest.start_running(now, node.next_pid())
        guest.touch()


def silence_of(node: Node, now: float) -> tuple[float, str]:
    """How long a proxied request to this node takes to fail, and the reason."""
    if node.died_at is None:
        return 0.0, "No route to host"
    if now - node.died_at < _ADDRESS_KNOWN_SECONDS:
        return _TIMED_OUT_SECONDS, "Connection timed out"
    return _NO_ROUTE_SECONDS, "No route to host"


def still_reported(node: Node, now: float) -> bool:
    """Whether the cluster shows what the node reported last."""
    return node.online or (node.died_at is not None and now - node.died_at < REPORTS_VALID_SECONDS)
