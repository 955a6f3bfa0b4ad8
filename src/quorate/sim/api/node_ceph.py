"""Ceph is not installed on the simulated nodes: its directories are there, and all else says so."""

from __future__ import annotations

from quorate.sim.refusals import failure
from quorate.sim.routing import Call, Handler, route

_BASE = "/nodes/{node}/ceph"
_INDEXES = {
    "": "cmd-safety cfg crush fs init log mds mgr mon osd pool restart rules start status stop",
    "/cfg": "raw db value",
    "/osd/{osdid}": "metadata lv-info",
    "/pool/{name}": "status",
}
_REFUSED = (
    "GET /cfg/db", "GET /cfg/raw", "GET /cfg/value", "GET /cmd-safety", "GET /crush", "GET /fs", "POST /fs/{name}",
    "DELETE /fs/{name}", "POST /init", "GET /log", "GET /mds", "POST /mds/{name}", "DELETE /mds/{name}", "GET /mgr",
    "POST /mgr/{id}", "DELETE /mgr/{id}", "GET /mon", "POST /mon/{monid}", "DELETE /mon/{monid}", "GET /osd",
    "POST /osd", "DELETE /osd/{osdid}", "POST /osd/{osdid}/in", "POST /osd/{osdid}/out", "POST /osd/{osdid}/scrub",
    "GET /osd/{osdid}/metadata", "GET /osd/{osdid}/lv-info", "GET /pool", "POST /pool", "PUT /pool/{name}",
    "DELETE /pool/{name}", "GET /pool/{name}/status", "POST /restart", "GET /rules", "POST /start", "GET /status",
    "POST /stop",
)  # fmt: skip


def _index(names: str) -> Handler:
    def handler(_call: Call) -> list[dict[str, str]]:
        return [{"name": name} for name in names.split()]

    return handler


def _refuse(_call: Call) -> None:
    raise failure("binary not installed: /usr/bin/ceph-mon")


for _path, _names in _INDEXES.items():
    route(f"GET {_BASE}{_path}")(_index(_names))

for _spec in _REFUSED:
    _method, _, _path = _spec.partition(" ")
    route(f"{_method} {_BASE}{_path}")(_refuse)
