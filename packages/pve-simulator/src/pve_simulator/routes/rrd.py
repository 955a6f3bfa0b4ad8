"""The load of nodes, guests and storages over time (RRD), as points and as pictures.

Nothing is stored. Samples are computed by the same functions of time as the current status, so the end of every series
agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from pve_simulator.guests import status
from pve_simulator.guests.guest import Guest
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import GUEST, Call, route
from pve_simulator.nodes import status_daemon
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.storage.storages import Storage
from pve_simulator.world import Node, World

Sample = dict[str, float]
Sampler = Callable[[float], Sample]

MINUTE, HOUR, DAY = 60, 3600, 86400

_NEWER = {
    "hour": (MINUTE, 60),
    "day": (MINUTE, 1440),
    "week": (30 * MINUTE, 336),
    "month": (30 * MINUTE, 1440),
    "year": (6 * HOUR, 1440),
    "decade": (7 * DAY, 570),
}
_OLDER = {
    "hour": (MINUTE, 60),
    "day": (30 * MINUTE, 70),
    "week": (3 * HOUR, 70),
    "month": (12 * HOUR, 70),
    "year": (7 * DAY, 70),
}

# The cluster is this old when a world begins; charts are empty before.
_CLUSTER_AGE = 420 * DAY
# The load of a node with many guests is computed at this many times at most and interpolated.
_NODE_TIMES = 240
# Samples per interval of hours or days, for average and peak.
_SAMPLES_PER_STEP = 4

_STARTING = frozenset({"qmstart", "qmreboot", "vzstart", "vzreboot"})
_STOPPING = frozenset({"qmstop", "qmshutdown", "qmsuspend", "vzstop", "vzshutdown"})

NODE_FIELDS = frozenset(
    {
        "loadavg", "maxcpu", "cpu", "iowait", "memtotal", "memused", "memavailable", "swaptotal", "swapused",
        "roottotal", "rootused", "netin", "netout", "arcsize", "pressurecpusome", "pressureiosome", "pressureiofull",
        "pressurememorysome", "pressurememoryfull",
    }
)  # fmt: skip
GUEST_FIELDS = frozenset(
    {
        "maxcpu", "cpu", "maxmem", "mem", "memhost", "maxdisk", "disk", "netin", "netout", "diskread", "diskwrite",
        "pressurecpusome", "pressurecpufull", "pressureiosome", "pressureiofull", "pressurememorysome",
        "pressurememoryfull",
    }
)  # fmt: skip
_GUEST_RATES = ("netin", "netout", "diskread", "diskwrite")


@dataclass(frozen=True, slots=True)
class Window:
    """The points of one time frame: `count` of them, `step` seconds apart, the last one at `end`."""

    step: int
    count: int
    end: int
    peak: bool  # consolidated by MAX instead of AVERAGE

    @property
    def times(self) -> range:
        return range(self.end - self.step * (self.count - 1), self.end + 1, self.step)


def window(world: World, timeframe: str, cf: str | None) -> Window:
    """The window that ends now; older versions kept fewer points."""
    step, count = (_NEWER if world.version_at_least(9, 0) else _OLDER)[timeframe]
    now = int(world.clock.now())
    return Window(step, count, now - now % step, peak=cf == "MAX")


def points(frame: Window, sampler: Sampler, *, since: float) -> list[dict[str, Any]]:
    """One row per point, with only its time where nothing was measured; such a last row is left out."""
    rows: list[dict[str, Any]] = []
    for time in frame.times:
        row: dict[str, Any] = {"time": time}
        if time - frame.step >= since:
            row |= _consolidate(frame, sampler, time)
        rows.append(row)
    if rows and len(rows[-1]) == 1:
        rows.pop()
    return rows


def _consolidate(frame: Window, sampler: Sampler, time: int) -> Sample:
    samples_per_step = _SAMPLES_PER_STEP if frame.step > MINUTE else 1
    samples = [sampler(time - frame.step * number / samples_per_step) for number in range(samples_per_step)]
    keys = [key for key in samples[0] if all(key in sample for sample in samples)]
    if frame.peak:
        return {key: _number(max(sample[key] for sample in samples)) for key in keys}
    return {key: _number(sum(sample[key] for sample in samples) / samples_per_step) for key in keys}


def _number(value: float) -> float:
    """Integers have no fraction."""
    return int(value) if value == int(value) else value


def node_points(world: World, node: Node, timeframe: str, cf: str | None) -> list[dict[str, Any]]:
    """The series of a node."""
    frame = window(world, timeframe, cf)
    installed = world.started_at - _CLUSTER_AGE
    load = _NodeLoad(world, node, frame)
    down = node.outages

    def sample(time: float) -> Sample:
        if any(start <= time < end for start, end in down):
            return {}
        return _node_sample(world, node, time, load.at(time))

    return points(frame, sample, since=installed)


class _NodeLoad:
    """The load of a node's guests, computed at a few times and interpolated."""

    def __init__(self, world: World, node: Node, frame: Window) -> None:
        self._world = world
        self._node = node
        self._end = float(frame.end)
        self._grid = max(float(MINUTE), frame.step * frame.count / _NODE_TIMES)
        self._known: dict[int, Sample] = {}

    def at(self, time: float) -> Sample:
        position = (self._end - time) / self._grid
        index = int(position)
        later, earlier = self._on_grid(index), self._on_grid(index + 1)
        part = position - index
        return {key: value + (earlier[key] - value) * part for key, value in later.items()}

    def _on_grid(self, index: int) -> Sample:
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = self._measure(self._end - index * self._grid)
        return known

    def _measure(self, time: float) -> Sample:
        load = status.node_load(self._world, self._node, time)
        sample: Sample = {"cpu": load["cpu"], "mem": load["mem"], "netin": 2_000.0, "netout": 1_500.0}
        for guest in self._world.guests_on(self._node.name):
            if guest.running:
                sample["netin"] += _rate(self._world, guest, "netin", time)
                sample["netout"] += _rate(self._world, guest, "netout", time)
        return sample


def _node_sample(world: World, node: Node, time: float, load: Sample) -> Sample:
    waiting = 0.004 * status_daemon.wave(node.number + 5, time, 600.0)
    sample: Sample = {
        "loadavg": load["cpu"] * node.cpus, "maxcpu": node.cpus, "cpu": load["cpu"], "iowait": waiting,
        "memtotal": node.memory, "memused": load["mem"], "swaptotal": node.swap, "swapused": int(node.swap * 0.02),
        "roottotal": node.disk, "rootused": _past_usage(node.disk_used, world.clock.now() - time),
        "netin": load["netin"], "netout": load["netout"],
    }  # fmt: skip
    if world.version_at_least(9, 0):
        sample |= {"memavailable": node.memory - load["mem"], "arcsize": 0}
        sample |= {"pressurecpusome": 2.5 * load["cpu"], "pressurememorysome": 0, "pressurememoryfull": 0}
        sample |= {"pressureiosome": 60 * waiting, "pressureiofull": 45 * waiting}
    return sample


def guest_points(world: World, guest: Guest, timeframe: str, cf: str | None) -> list[dict[str, Any]]:
    """The series of a VM or container; while it was stopped only its limits are known."""
    history = _PowerHistory(world, guest)
    down = world.nodes[guest.node].outages

    def sample(time: float) -> Sample:
        if any(start <= time < end for start, end in down):
            return {}
        return _guest_sample(world, guest, time, running=history.running_at(time))

    return points(window(world, timeframe, cf), sample, since=_creation_time(world, guest))


def _creation_time(world: World, guest: Guest) -> float:
    if guest.created_at:
        return guest.created_at
    meta = str(guest.config.get("meta", ""))
    for part in meta.split(","):
        key, _, value = part.partition("=")
        if key == "ctime" and value.isdecimal():
            return float(value)
    return world.started_at - _CLUSTER_AGE * (0.2 + 0.75 * status_daemon.spread(status.guest_seed(world, guest), 31))


def _guest_sample(world: World, guest: Guest, time: float, *, running: bool) -> Sample:
    sample: Sample = {"maxcpu": world.guest_cpus(guest), "maxmem": guest.memory, "maxdisk": guest.disk_size, "disk": 0}
    if not running:
        return sample
    seed = status.guest_seed(world, guest)
    used = int(guest.memory * status_daemon.memory_share(seed, time))
    sample |= {"cpu": status_daemon.cpu_load(seed, time), "mem": used}
    sample |= {name: _rate(world, guest, name, time) for name in _GUEST_RATES}
    if guest.kind == "lxc":
        sample["disk"] = _past_usage(status.disk_usage(world, guest), world.clock.now() - time)
    if world.version_at_least(9, 0):
        sample["memhost"] = status.host_memory(guest, used)
        pressure = 0.6 * status_daemon.wave(seed + 3, time, 900.0)
        sample |= {"pressurecpusome": pressure, "pressurecpufull": pressure, "pressureiosome": 0, "pressureiofull": 0}
        sample |= {"pressurememorysome": 0, "pressurememoryfull": 0}
    return sample


def _rate(world: World, guest: Guest, name: str, time: float) -> float:
    """Bytes per second in the previous minute: the slope of the counter in the status."""
    profile = status_daemon.profile(status.guest_seed(world, guest))
    usual: float = getattr(profile, name)
    # A counter starts with its guest; whole periods earlier its wave is the same, but never clipped at zero.
    since = guest.started_at - 600 * 1_000_000
    age = time - since
    counted = status_daemon.counted_seconds(age, since) - status_daemon.counted_seconds(age - MINUTE, since)
    return usual * counted / MINUTE


class _PowerHistory:
    """When a guest ran, as far as its tasks show; before the first of them it was in the other state."""

    def __init__(self, world: World, guest: Guest) -> None:
        self._now_running = guest.running
        events: list[tuple[float, bool]] = []
        for node in world.nodes:
            for task in world.tasks.newest_first(node):
                if task.upid.id != str(guest.vmid) or task.endtime is None or task.exitstatus != "OK":
                    continue
                if task.upid.type in _STARTING or task.upid.type in _STOPPING:
                    events.append((task.endtime, task.upid.type in _STARTING))
        self._events = sorted(events)

    def running_at(self, time: float) -> bool:
        if not self._events:
            return self._now_running
        state = not self._events[0][1]
        for when, running in self._events:
            if when > time:
                return state
            state = running
        return self._now_running


def storage_points(world: World, node: str, storage: Storage, timeframe: str, cf: str | None) -> list[dict[str, Any]]:
    """The series of a storage as a node sees it."""
    space = storage.space(node)
    now = world.clock.now()

    def sample(time: float) -> Sample:
        return {"total": space.total, "used": _past_usage(space.used, now - time)}

    return points(window(world, timeframe, cf), sample, since=max(storage.defined_at, world.started_at - _CLUSTER_AGE))


def _past_usage(used: int, ago: float) -> float:
    """Usage that long ago: a little less each week, down to a third."""
    return used * max(0.35, 1.0 - 0.65 * ago / _CLUSTER_AGE)


def missing_file(path: str) -> str:
    """PVE's error if nothing was ever recorded for this name."""
    opening = f"opening '/var/lib/rrdcached/db/{path}': No such file or directory"
    return f"RRD error: rrdcached@unix:/var/run/rrdcached.sock: rrd_fetch_r failed: {opening}"


def _node(call: Call) -> Node:
    """The node of an RRD file; every node has all files, so it may be down."""
    name = call.local_node.name if call.node == "localhost" else call.node
    return existing(call.world.nodes.get(name), missing_file(f"{_prefix(call, 'node')}/{name}"))


def _guest(call: Call) -> Guest:
    """The guest, once pvestatd has written its first data."""
    guest = call.world.guests.get(call.vmid)
    if guest is None or call.vmid not in call.world.part(StatusDaemon).guests:
        raise failure(missing_file(f"{_prefix(call, 'vm')}/{call.vmid}"))
    return guest


def _prefix(call: Call, what: str) -> str:
    return f"pve-{what}-9.0" if call.world.version_at_least(9, 0) else f"pve2-{what}"


@route("GET /nodes/{node}/rrddata")
def node_data(call: Call) -> list[dict[str, Any]]:
    return node_points(call.world, _node(call), call.params["timeframe"], call.params.get("cf"))


@route(f"GET {GUEST}/rrddata")
def guest_data(call: Call) -> list[dict[str, Any]]:
    return guest_points(call.world, _guest(call), call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/rrd")
def node_picture(call: Call) -> dict[str, str]:
    return _picture(call, f"{_prefix(call, 'node')}/{_node(call).name}", NODE_FIELDS)


@route(f"GET {GUEST}/rrd")
def guest_picture(call: Call) -> dict[str, str]:
    _guest(call)
    return _picture(call, f"{_prefix(call, 'vm')}/{call.vmid}", GUEST_FIELDS)


@route("GET /nodes/{node}/storage/{storage}/rrddata")
def storage_series(call: Call) -> list[dict[str, Any]]:
    storage = call.world.storages.get(call.values["storage"])
    if storage is None or not storage.on_node(call.node):
        raise failure(missing_file(f"{_prefix(call, 'storage')}/{call.node}/{call.values['storage']}"))
    return storage_points(call.world, call.node, storage, call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/storage/{storage}/rrd")
def storage_picture(call: Call) -> dict[str, str]:
    return _picture(call, f"pve2-storage/{call.node}/{call.values['storage']}", ("total", "used"))


def _picture(call: Call, path: str, known: Container[str]) -> dict[str, str]:
    """The path of the rendered graph in PVE."""
    file = f"/var/lib/rrdcached/db/{path}"
    sources = split_list(call.params["ds"])
    for source in sources:
        if source not in known:
            raise failure(f"RRD error: No DS called '{source}' in '{file}'")
    return {"filename": f"{file}_{'_'.join(sources)}.png"}
