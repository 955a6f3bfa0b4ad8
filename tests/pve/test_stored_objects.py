"""Where the object of a write is shown, its content, and its content afterwards."""

import re

import pytest

from pve_schema.schema import NEWEST, OLDEST, facts
from quorate.problems import Problem
from quorate.pve.stored_objects import Location, StoredObject, locate, predict, read_stored
from quorate.pve.wire import Request, read
from tests.rigs.mcp_session import rig

LOCATIONS = {
    "PUT /cluster/backup/nightly": Location("/cluster/backup/nightly"),
    "POST /cluster/ha/rules rule=apart": Location("/cluster/ha/rules", "rule", "apart"),
    "POST /cluster/ha/resources/vm:100/migrate node=pve2": Location("/cluster/ha/resources/vm:100"),
    "PUT /pools poolid=lab": Location("/pools", "poolid", "lab", (("poolid", "lab"),)),
    "PUT /access/acl path=/vms": Location("/access/acl", "path", "/vms"),
    "POST /nodes/pve1/qemu/100/status/stop": Location("/nodes/pve1/qemu/100/config"),
    "DELETE /nodes/pve1/qemu/100": Location("/nodes/pve1/qemu/100/config"),
    "POST /nodes/pve1/qemu/100/snapshot snapname=a": Location("/nodes/pve1/qemu/100/snapshot", "name", "a"),
    "POST /nodes/pve1/lxc/200/snapshot/a/rollback": Location("/nodes/pve1/lxc/200/snapshot/a/config"),
    "POST /nodes/pve1/services/pveproxy/restart": Location("/nodes/pve1/services/pveproxy/state"),
    "DELETE /nodes/pve1/ceph/mon/a": Location("/nodes/pve1/ceph/mon", "monid", "a"),
    "POST /cluster/firewall/rules action=DROP": Location("/cluster/firewall/rules"),
    "POST /nodes/pve1/vzdump vmid=100": None,
}

UNREADABLE = 60
"""Writes of the newest table whose effect no object shows. Fewer is better; more needs a reason."""


def request(version: str, text: str) -> Request:
    method, path, *pairs = text.split()
    parsed = read(facts(version), method, path, dict(pair.split("=", 1) for pair in pairs))
    assert parsed is not None
    return parsed


@pytest.mark.parametrize("text", LOCATIONS)
def test_a_write_has_its_object_where_pve_shows_it(text):
    assert locate(facts(NEWEST), request(NEWEST, text)) == LOCATIONS[text]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_location_can_be_read_and_few_writes_have_none(version):
    table, without = facts(version), []
    for endpoint in table.endpoints():
        if endpoint.method == "GET":
            continue
        named = {name: f"x{name}" for name in re.findall(r"{([^}]+)}", endpoint.template)}
        path = endpoint.template.format_map(named)
        params = {name: f"x{name}" for name in endpoint.parameters if name not in named and "[n]" not in name}
        match = table.find(endpoint.method, path)
        assert match is not None
        location = locate(table, Request(match, params))
        if location is None:
            without.append(endpoint)
        else:
            assert table.find("GET", location.path), f"{endpoint}: {location}"
    assert len(without) <= UNREADABLE, without


def test_the_prediction_is_what_is_stored_and_what_is_sent():
    stored = StoredObject(Location("/cluster/backup/nightly"), {"vmid": "100", "remove": 1, "mailto": "a@b.example"})
    put = request(NEWEST, "PUT /cluster/backup/nightly all=1 delete=vmid,mailto digest=abc")
    assert predict(put, stored) == {"remove": 1, "all": "1"}
    assert predict(request(NEWEST, "DELETE /cluster/backup/nightly"), stored) is None


def test_the_order_of_rows_and_what_pve_computes_do_not_change_a_fingerprint():
    location = Location("/cluster/backup/nightly")
    rows = [{"a": 1, "next-run": 5}, {"b": True}]
    same = [{"b": 1}, {"next-run": 9, "a": "1"}]
    assert StoredObject(location, rows).fingerprint == StoredObject(location, same).fingerprint
    assert StoredObject(location, rows).fingerprint != StoredObject(location, rows[:1]).fingerprint
    assert StoredObject(location, {}).fingerprint != StoredObject(location, None).fingerprint == "absent"


@pytest.mark.anyio
async def test_an_object_is_read_where_it_is_and_absent_where_it_is_not(tmp_path):
    async with rig(tmp_path) as quorate:
        cluster = quorate.app.cluster
        assert cluster is not None
        for path, present, absent in (
            ("/pools/{}", "production", "nowhere"),
            ("/storage/{}", "nas", "nowhere"),
            ("/nodes/pve1/qemu/{}/config", "100", "999"),
            ("/access/groups/{}", None, "nowhere"),
            ("/cluster/ha/rules/{}", None, "nowhere"),
            ("/cluster/backup/{}", None, "nowhere"),
        ):
            assert not (await read_stored(cluster, Location(path.format(absent)))).exists, path
            if present:
                assert (await read_stored(cluster, Location(path.format(present)))).exists, path
        assert (await read_stored(cluster, Location("/pools", "poolid", "production"))).options


@pytest.mark.anyio
async def test_what_cannot_be_read_is_not_absent(tmp_path):
    async with rig(tmp_path) as quorate:
        assert quorate.app.cluster is not None
        quorate.sim.faults.add("500:storage is busy:GET:/pools/production")
        with pytest.raises(Problem):
            await read_stored(quorate.app.cluster, Location("/pools/production"))
