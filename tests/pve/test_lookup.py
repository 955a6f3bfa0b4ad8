"""Look-ups by index find what a look at every row would find."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.pve.lookup import Reference, Resource, View

NAMES = st.sampled_from(["web", "db", "200", "101", "", "web.example"])
NODES = st.sampled_from(["pve1", "pve2"])
GUESTS = st.builds(
    lambda kind, vmid, name, node: Resource(type=kind, id=f"{kind}/{vmid}", vmid=vmid, name=name, node=node),
    st.sampled_from(["qemu", "lxc"]),
    st.integers(100, 106) | st.just(200),
    NAMES,
    NODES,
)
OTHERS = st.builds(lambda node: Resource(type="node", id=f"node/{node}", node=node, status="online"), NODES)
ROWS = st.lists(GUESTS | OTHERS, max_size=12, unique_by=lambda row: (row.type in ("qemu", "lxc"), row.vmid or row.node))
PREFIXES = st.sampled_from(["", "pve1/", "pve2/", "qemu/", "lxc/"])
KEYS = NAMES.filter(bool) | st.integers(100, 106).map(str)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, PREFIXES, KEYS)
def test_a_reference_means_what_a_look_at_every_guest_would_say(rows: list[Resource], prefix: str, key: str) -> None:
    place = prefix.rstrip("/")
    here = [row for row in rows if row.is_guest and place in ("", row.node, row.type)]
    by_id = [row for row in here if key.isdigit() and row.vmid == int(key)]
    expected = by_id or [row for row in here if row.name == key]
    assert View(rows).matching(Reference.parse(prefix + key)) == expected


def test_a_thousand_lookups_among_five_thousand_guests_scan_nothing() -> None:
    rows = [
        Resource(type="qemu", id=f"qemu/{vmid}", vmid=vmid, name=f"guest-{vmid}", node="pve1")
        for vmid in range(100, 5100)
    ]
    view = View(rows)
    view.matching(Reference.parse(100))  # the index is made once
    view.matching(Reference.parse("guest-100"))
    begun = time.process_time()
    for vmid in range(100, 1100):
        assert view.matching(Reference.parse(vmid)) == [rows[vmid - 100]]
        assert view.matching(Reference.parse(f"guest-{vmid}")) == [rows[vmid - 100]]
    assert time.process_time() - begun < 0.5  # two thousand scans would take ten times that
