"""/version, /ping and /status: the server as a whole."""

from __future__ import annotations

from typing import Any

from pve_simulator.pbs.refusals import Refusal
from pve_simulator.pbs.routes.datastore import sees_some_namespace
from pve_simulator.pbs.routing import Call, route

_HISTORY_STEP = 1800
_HISTORY_POINTS = 1440


@route("GET", "/ping")
def ping(_: Call) -> Any:
    return {"pong": True}


@route("GET", "/version")
def version(_: Call) -> Any:
    return {"release": "1", "repoid": "acd1774c", "version": "4.1"}


@route("GET", "/status/datastore-usage")
def list_usage(call: Call) -> Any:
    """A store that is out of order has an error instead of sizes; the others are shown."""
    rows = []
    for store in call.server.datastores.values():
        sees_all = call.holds("Datastore.Audit", "Datastore.Backup", path=f"/datastore/{store.name}")
        if not sees_all and not sees_some_namespace(call, store.name):
            continue
        row: dict[str, Any] = {"mount-status": "nonremovable", "store": store.name}
        try:
            store.refuse_maintenance(write=False)
        except Refusal as refusal:
            rows.append({**row, "error": refusal.text})
            continue
        if sees_all:
            now = int(call.server.clock.now())
            empty: list[float | None] = [None] * (_HISTORY_POINTS - len(store.history))
            row |= {
                **call.server.sizes(),
                "gc-status": store.gc.as_row(),
                "history": [*empty, *store.history],
                "history-delta": _HISTORY_STEP,
                "history-start": now - _HISTORY_STEP * _HISTORY_POINTS,
            }
            if store.full_at is not None:
                row["estimated-full-date"] = int(store.full_at)
        rows.append(row)
    return rows


@route("GET", "/status/metrics")
def list_metrics(call: Call) -> Any:
    now = int(call.server.clock.now())
    host = {"cpu_current": 0.05, "cpu_iowait": 0.0, "cpu_avg1": 0.2, "cpu_avg5": 0.2}
    rows = [
        {"id": "host", "metric": name, "timestamp": now, "type": "gauge", "value": value}
        for name, value in host.items()
    ]
    for name in call.server.datastores:
        rows += [
            {"id": f"datastore/{name}", "metric": f"disk_{kind}", "timestamp": now, "type": "gauge", "value": value}
            for kind, value in call.server.sizes().items()
        ]
    return {"data": rows}
