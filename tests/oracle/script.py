"""Calls by seed. Each is drawn from the world as it is by then, so that one can build on another."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from pve_schema.schema import facts
from quorate.config import Access
from quorate.operations.registry import EVERY, TOOLSETS, operations
from quorate.pipeline.caller import Caller
from quorate.surfaces.compat import SYSTEMS
from tests.generators.combined_arguments import combined_arguments
from tests.generators.population import CONTENT
from tests.generators.read_arguments import read_arguments
from tests.oracle.api import ApiCalls
from tests.oracle.names import Names
from tests.oracle.stage import Call, Stage
from tests.oracle.tools import ToolCalls

_SHARES: Final = {"api_call": 40, "native": 26, "lean": 8, "other": 1, **dict.fromkeys(SYSTEMS, 5)}
_RUNNERS: Final = ("pve_read", "pve_change", "pve_change", "pve_destroy")
_LEFT_OUT: Final = frozenset({"guest_screenshot", "metrics_get", "capacity_plan", "network_scan"})
"""What needs sockets, or takes long and tells only numbers."""
_GRAVE: Final = (
    *("guest_configure", "vm_create", "container_create", "guest_clone", "disk_add", "disk_change", "cloudinit_set"),
    *("backup_create", "backup_restore", "backup_job_set", "guest_bulk", "guest_power", "guest_migrate", "ha_set"),
)
"""Operations whose arguments make all the difference: they are drawn four times as often."""
_REACHES_CLUSTERS: Final = ("device_update", "infra_plan", "infra_apply", "infra_scale", "service_install")
"""Of the homelab's operations: those that may change guests."""


class Script:
    def __init__(self, stage: Stage, seed: str) -> None:
        self._chance = Random(seed)
        self._reads = stage.settings.access is Access.READ
        world, table = stage.estate.world, facts(stage.estate.world.version)
        self._names = names = Names(world, self._chance)
        self._api = ApiCalls(table, names)
        self._tools = ToolCalls(table, names, self._api)
        image = stage.settings.audit_file.with_name("tiny.iso")
        image.write_bytes(CONTENT)
        known = operations(EVERY)
        self._operations = [
            operation for operation in operations(TOOLSETS).values() if operation.name not in (*_LEFT_OUT, "api_call")
        ]
        self._operations += [known[name] for name in (*_REACHES_CLUSTERS, *_GRAVE, *_GRAVE, *_GRAVE)]
        world.tasks.start("pve1", "aptupdate", "", "root@pam", _for_ever)  # something that can be stopped
        self._bases = {
            operation.name: read_arguments(operation, world)
            for operation in self._operations
            if not operation.changes and operation.toolset in TOOLSETS
        } | dict(combined_arguments(world, image))
        self._others = {
            name: [tool for tool in stage.surfaces[name].tools(Caller()) if tool.name not in _LEFT_OUT]
            for name in SYSTEMS
        }

    def next(self) -> Call:
        kind = self._chance.choices([*_SHARES], weights=[*_SHARES.values()])[0]
        if kind in self._others:
            tool = self._chance.choice(self._others[kind])
            return Call(kind, tool.name, self._tools.of_another_server(tool.name, tool.input_schema))
        if kind == "other":
            return self._other()
        if kind == "api_call":
            name, arguments = kind, self._api.arguments(reading=self._reads and self._chance.random() < 0.7)
            lean = self._chance.random() < 0.25
        else:
            operation = self._chance.choice(self._operations)
            name, lean = operation.name, kind == "lean"
            arguments = self._tools.arguments(operation.schema(), self._bases.get(name, []))
            if operation.changes and self._chance.random() < 0.05:
                arguments["dry_run"] = True
        return self._leanly(name, arguments) if lean else Call("native", name, arguments)

    def _other(self) -> Call:
        """Not a tool: it only reads."""
        names = self._names
        return self._chance.choice(
            (
                Call("resource", names.address_of_resource(), {}),
                Call("prompt", "diagnose_guest", {"guest": names.guest()}),
                Call("prompt", self._chance.choice(("review_capacity", "plan_upgrade", "review_backups")), {}),
                Call("prompt", "explain_task", {"task": names.task()}),
                Call("completion", self._chance.choice(("guest", "node", "task", "storage")), {"typed": names.typed()}),
            )
        )

    def _leanly(self, name: str, arguments: dict[str, Any]) -> Call:
        passed = json.dumps(arguments) if self._chance.random() < 0.1 else arguments
        return Call("lean", self._chance.choice(_RUNNERS), {"operation": name, "arguments": passed})


async def _for_ever(context: Any) -> None:
    await context.sleep(1e9)
