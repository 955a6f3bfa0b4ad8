"""Fault injection, by option or from a test.

An option is one text, `KIND[:ARGUMENT…][:METHOD:PATH][;count=N][;p=PROBABILITY]`; docs/reference.md lists them all.
"""

from __future__ import annotations

import fnmatch
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pve_simulator.http.refusals import existing
from pve_simulator.nodes.power_loss import cut_power, restore_power
from pve_simulator.world import Node, World

_REQUEST_SUFFIX = re.compile(r":(GET|POST|PUT|DELETE|\*):(/.*|\*)$")
_FORMS = {
    "latency": (r"\d+(\.\d+)?", "latency:SECONDS"),
    "drop": ("before|after|mid", "drop:before, drop:after or drop:mid"),
    "595": ("", "595"),
    "596": ("(after)?", "596 or 596:after"),
    "401": ("", "401"),
    "403": ("", "403"),
    "500": (".+", "500:TEXT"),
    "501": ("", "501"),
    "garbage": ("json|html", "garbage:json or garbage:html"),
    "null": (r"\w+", "null:FIELD"),
    "task-fails": (r"[\w*-]+:.+", "task-fails:TYPE:TEXT, with * for every type"),
    "locked": (r"\d+:[a-z-]+", "locked:VMID:LOCK, such as locked:102:backup"),
    "node-offline": (".+", "node-offline:NODE"),
    "node-dead": (".+", "node-dead:NODE"),
    "no-quorum": ("", "no-quorum"),
    "clock": (r"[+-]\d+(:.+)?", "clock:+SECONDS or clock:-SECONDS, and :NODE for one node"),
}
"""Each kind of fault: the pattern of its argument, and how the whole is written."""
_PROXY_REASONS = {595: "No route to host", 596: "Connection timed out"}


@dataclass(slots=True)
class Fault:
    """One fault and when it happens."""

    kind: str
    argument: str = ""
    method: str = "*"
    path: str = "*"
    count: int | None = None
    probability: float = 1.0
    text: str = field(default="", compare=False)
    number: int = field(default=0, compare=False)  # its place among all faults of the cluster, from 1

    def matches(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and fnmatch.fnmatchcase(path, self.path)


class Faults:
    """All faults of one cluster. Those of the world itself (locks, nodes, quorum) take effect at once."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random.Random(seed)  # noqa: S311 (repeatable on purpose)
        self._active: list[Fault] = []
        self._added = 0
        world.tasks.failure_of = self._task_failure

    def add(self, text: str) -> Fault:
        """Inject a fault from its option text."""
        fault = parse_fault(text)
        self._apply_to_world(fault)
        self._added += 1
        fault.number = self._added
        self._active.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Remove a fault, also one of the world."""
        if fault in self._active:
            self._active.remove(fault)
        match fault.kind:
            case "node-offline":
                self.set_online(fault.argument, online=True)
            case "node-dead":
                restore_power(self._world, self._node(fault.argument))
            case "no-quorum":
                self._world.quorate_override = None
            case "locked":
                self.unlock(int(fault.argument.partition(":")[0]))
            case "clock":
                self._step_clocks(fault.argument, -1)
            case _:
                pass

    def clear(self) -> None:
        """Remove all faults."""
        for fault in list(self._active):
            self.remove(fault)

    @property
    def active(self) -> list[Fault]:
        """The faults that can still happen, in the order they were added."""
        return list(self._active)

    @property
    def is_empty(self) -> bool:
        return not self._active

    def for_request(self, kind: str, method: str, path: str) -> Iterator[Fault]:
        """The faults of a kind that match this request; each match counts."""
        for fault in list(self._active):
            if fault.kind == kind and fault.matches(method, path) and self._applies(fault):
                yield fault

    def first(self, kind: str, method: str, path: str) -> Fault | None:
        return next(self.for_request(kind, method, path), None)

    def set_online(self, node: str, *, online: bool) -> None:
        self._node(node).online = online
        for guest in self._world.guests_on(node):
            guest.touch()

    def lock(self, vmid: int, lock: str) -> None:
        guest = existing(self._world.guests.get(vmid), ValueError(f"there is no guest {vmid} to lock"))
        guest.config["lock"] = lock
        guest.touch()

    def unlock(self, vmid: int) -> None:
        guest = self._world.guests[vmid]
        guest.config.pop("lock", None)
        guest.touch()

    def _node(self, name: str) -> Node:
        if name not in self._world.nodes:
            raise ValueError(f"there is no node '{name}', only {', '.join(self._world.nodes)}")
        return self._world.nodes[name]

    def _apply_to_world(self, fault: Fault) -> None:
        match fault.kind:
            case "node-offline":
                self.set_online(fault.argument, online=False)
            case "node-dead":
                cut_power(self._world, self._node(fault.argument))
            case "no-quorum":
                self._world.quorate_override = False
            case "locked":
                vmid, _, lock = fault.argument.partition(":")
                self.lock(int(vmid), lock)
            case "clock":
                self._step_clocks(fault.argument, 1)
            case _:
                pass

    def _step_clocks(self, argument: str, direction: int) -> None:
        seconds, _, name = argument.partition(":")
        for node in [self._node(name)] if name else self._world.nodes.values():
            node.clock_offset += direction * int(seconds)

    def _task_failure(self, kind: str, _target: str) -> str | None:
        for fault in list(self._active):
            if fault.kind == "task-fails":
                task_type, _, text = fault.argument.partition(":")
                if task_type in ("*", kind) and self._applies(fault):
                    return text
        return None

    def _applies(self, fault: Fault) -> bool:
        if fault.probability < 1.0 and self._random.random() >= fault.probability:
            return False
        if fault.count is not None:
            fault.count -= 1
            if fault.count <= 0:
                self._active.remove(fault)
        return True


def parse_fault(text: str) -> Fault:
    """Parse a fault; ValueError describes the mistake."""
    spec, *options = text.split(";")
    suffix = _REQUEST_SUFFIX.search(spec)
    method, path = (suffix[1], suffix[2]) if suffix else ("*", "*")
    kind, _, argument = (spec[: suffix.start()] if suffix else spec).partition(":")
    fault = Fault(kind, argument, method, path, text=text)
    for option in options:
        name, _, value = option.partition("=")
        match name.strip():
            case "count":
                fault.count = int(value)
            case "p":
                fault.probability = float(value)
            case _:
                raise ValueError(f"unknown option '{option}' of fault '{text}': count=N or p=PROBABILITY")
    _check(fault, text)
    return fault


def _check(fault: Fault, text: str) -> None:
    if fault.kind not in _FORMS:
        raise ValueError(f"unknown fault '{text}'; there are {', '.join(_FORMS)}")
    pattern, written = _FORMS[fault.kind]
    if not re.fullmatch(pattern, fault.argument, re.DOTALL):
        raise ValueError(f"'{text}' is not how the fault {fault.kind} is written: {written}")


def _plain(row: Any) -> Any:
    return msgspec.json.decode(row) if isinstance(row, msgspec.Raw) else row


def with_null(data: Any, field: str) -> Any:
    """The list with null in this field of the first row that has it."""
    rows = [_plain(row) for row in data] if isinstance(data, list) else []
    hit = next((number for number, row in enumerate(rows) if isinstance(row, dict) and field in row), None)
    if hit is None:
        return data
    rows[hit] = {**rows[hit], field: None}
    return rows


def proxy_reason(status: int) -> str:
    """The status line of a node that cannot be reached."""
    return _PROXY_REASONS[status]
