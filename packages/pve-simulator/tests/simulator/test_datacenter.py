"""Cluster-wide settings: options, log, membership, metric servers, mappings, notifications, jobs, ACME, Ceph."""

from __future__ import annotations

import asyncio

import pytest

from pve_schema.calendar_events import calendar_errors, parse_calendar_event
from pve_simulator.api_client import Api
from pve_simulator.clock import MANUAL_EPOCH

NOTIFICATIONS = "/cluster/notifications"


async def test_options_come_back_as_objects_and_the_next_id_follows_them(api: Api):
    params = {"next-id": "lower=5000,upper=6000", "migration": "insecure,network=10.0.0.0/24"}
    assert (await api.put("/cluster/options", keyboard="de", **params)).data is None
    options = (await api.get("/cluster/options")).data
    assert options["migration"] == {"type": "insecure", "network": "10.0.0.0/24"}
    assert (options["keyboard"], options["mac_prefix"], options["description"]) == ("de", "BC:24:11", "")
    assert (await api.get("/cluster/nextid")).data == "5000"
    await api.put("/cluster/options", delete="next-id,keyboard", **{"registered-tags": "gold;silver"})
    options = (await api.get("/cluster/options")).data
    assert "keyboard" not in options
    assert options["registered-tags"] == ["gold", "silver"]
    assert {"gold", "silver"} <= set(options["allowed-tags"])


async def test_the_cluster_log_has_the_newest_first_and_others_see_only_their_own(api: Api):
    rows = (await api.get("/cluster/log", max=5)).data
    assert len(rows) == 5
    assert [row["time"] for row in rows] == sorted((row["time"] for row in rows), reverse=True)
    assert rows[0].keys() == {"uid", "id", "time", "pri", "tag", "pid", "node", "user", "msg"}
    assert (await api.as_token("alice@pve!ci").get("/cluster/log")).data == []


async def test_the_members_of_the_cluster_are_named(api: Api):
    nodes = (await api.get("/cluster/config/nodes")).data
    assert [node["name"] for node in nodes] == list(api.cluster.world.nodes)
    join = (await api.get("/cluster/config/join")).data
    assert join["preferred_node"] == api.cluster.node
    assert join["nodelist"][0]["pve_fp"] == api.cluster.fingerprint
    assert (await api.get("/cluster/config/totem")).data["cluster_name"] == "homelab"
    refused = await api.post("/cluster/config", clustername="x")
    assert refused.reason == "Permission check failed (user != root@pam)"


@pytest.mark.api(nodes=1, guests=0)
async def test_a_single_node_has_no_members(api: Api):
    alone = await api.get("/cluster/config/join")
    assert (alone.status, alone.body["message"]) == (424, "node is not in a cluster, no join info available!")
    assert (await api.get("/cluster/config/nodes")).data == []
    assert (await api.get("/cluster/config/totem")).data is None


async def test_metric_servers_take_the_options_of_their_type(api: Api):
    server = "/cluster/metrics/server/influx"
    await api.post(server, type="influxdb", server="10.0.0.7", port=8086, token="secret", bucket="pve")
    assert (await api.get("/cluster/metrics/server")).data == [
        {"id": "influx", "disable": 0, "type": "influxdb", "server": "10.0.0.7", "port": 8086}
    ]
    assert "token" not in (await api.get(server)).data
    again = await api.post(server, type="graphite", server="x", port=1)
    assert again.reason == "Metric server 'influx' already exists"
    odd = await api.put(server, server="10.0.0.7", port=8086, path="x")
    assert odd.reason == "unexpected property 'path'"
    await api.put(server, server="10.0.0.8", port=8086, delete="bucket")
    assert (await api.get(server)).data["server"] == "10.0.0.8"
    required = await api.put(server, server="x", port=1, delete="server")
    assert required.reason == "unable to delete required option 'server'"
    await api.delete(server)
    assert (await api.get(server)).reason == "status server entry 'influx' does not exist"
    assert (await api.delete(server)).reason.startswith("cannot lookup undefined type! at ")


async def test_mappings_name_a_device_of_every_node(api: Api):
    device = "node=pve1,path=0000:01:00.0,id=10de:1234"
    assert (await api.post("/cluster/mapping/pci", id="gpu", map=device)).data is None
    again = await api.post("/cluster/mapping/pci", id="gpu", map=device)
    assert again.reason == "create hardware mapping failed: pci ID 'gpu' already defined"
    (row,) = (await api.get("/cluster/mapping/pci", **{"check-node": "pve2"})).data
    assert (row["id"], row["map"]) == ("gpu", [device])
    assert row["checks"][0]["message"] == "No mapping for node pve2."
    await api.put("/cluster/mapping/pci/gpu", map=device, description="card")
    assert (await api.get("/cluster/mapping/pci/gpu")).data["description"] == "card"
    missing = await api.get("/cluster/mapping/usb/gpu")
    assert missing.reason == "mapping 'gpu' not found"
    await api.delete("/cluster/mapping/pci/gpu")
    assert (await api.get("/cluster/mapping/pci")).data == []


async def test_notifications_have_their_own_way_to_say_no(api: Api):
    gotify = f"{NOTIFICATIONS}/endpoints/gotify"
    missing = await api.get(f"{gotify}/phone")
    assert (missing.status, missing.reason) == (404, "gotify 'phone' not found")
    await api.post(gotify, name="phone", server="https://x", token="secret")
    assert (await api.get(gotify)).data == [{"name": "phone", "server": "https://x", "origin": "user-created"}]
    again = await api.post(f"{NOTIFICATIONS}/endpoints/smtp", name="phone", server="x", mailto="a@b.c",
                           **{"from-address": "a@b.c"})  # fmt: skip
    assert (again.status, again.reason) == (
        400,
        "Cannot create 'phone', an entity with the same name already exists",
    )
    for kind, name, expected in (
        ("endpoints/gotify", "phone", "`comment` or `disable`"),
        ("endpoints/webhook", "gone", "one of `comment`, `disable`, `header`, `body`, `secret`"),
    ):
        unknown = await api.put(f"{NOTIFICATIONS}/{kind}/{name}", delete="server")
        assert unknown.reason.startswith(f"unknown variant `server`, expected {expected} at ")
    nowhere = await api.post(f"{NOTIFICATIONS}/matchers", name="night", target="nope")
    assert (nowhere.status, nowhere.reason) == (404, "endpoint 'nope' does not exist")
    await api.post(f"{NOTIFICATIONS}/matchers", name="night", target="phone")
    used = await api.delete(f"{gotify}/phone")
    assert (used.status, used.reason) == (400, "cannot delete 'phone', referenced by: night")
    assert (await api.post(f"{NOTIFICATIONS}/targets/phone/test")).data is None
    assert (await api.post(f"{NOTIFICATIONS}/targets/night/test")).status == 404
    await api.delete(f"{NOTIFICATIONS}/matchers/night")
    assert (await api.delete(f"{gotify}/phone")).data is None
    await api.post("/cluster/backup", id="nightly", schedule="daily", all=1)
    values = (await api.get(f"{NOTIFICATIONS}/matcher-field-values")).data
    assert {"field": "job-id", "value": "nightly", "comment": None} in values


async def test_builtin_entities_are_reset_instead_of_deleted(api: Api):
    endpoint = f"{NOTIFICATIONS}/endpoints/sendmail/mail-to-root"
    await api.put(endpoint, comment="mine", disable=1)
    assert (await api.get(endpoint)).data["origin"] == "modified-builtin"
    (target,) = (await api.get(f"{NOTIFICATIONS}/targets")).data
    assert (target["disable"], target["comment"]) == (1, "mine")
    await api.delete(endpoint)
    assert (await api.get(endpoint)).data["origin"] == "builtin"
    bare = await api.put(endpoint, delete="mailto-user")
    assert bare.status == 400


async def test_a_schedule_is_analyzed_and_nonsense_named(api: Api):
    path = "/cluster/jobs/schedule-analyze"
    rows = (await api.get(path, schedule="*/20", iterations=3)).data
    assert [row["timestamp"] - int(MANUAL_EPOCH) for row in rows] == [1200, 2400, 3600]
    wrong = await api.get(path, schedule="whenever")
    assert wrong.errors["schedule"].startswith("invalid format - invalid calendar event 'whenever' - ")


@pytest.mark.parametrize(
    ("schedule", "hours"),
    [
        ("daily", 16),
        ("hourly", 1),
        ("22:30", 14.5),
        ("sat", 40),
        ("mon..wed 3:00", 91),
        ("*-*-1 00:00", 400),
        ("2026-2-1 0:0:30", 400 + 30 / 3600),
        ("8..10:0/15", 0.25),
    ],
)
def test_calendar_events_come_at_their_time(schedule: str, hours: float):
    """The clock of the tests begins on Thursday, 2026-01-15 08:00 UTC."""
    assert parse_calendar_event(schedule).next_after(MANUAL_EPOCH) == MANUAL_EPOCH + hours * 3600


@pytest.mark.parametrize("schedule", ["", "x", "25:00", "mon..foo", "*/0", "1-2-3-4", "8:00 8:00", "5..2"])
def test_what_is_no_calendar_event_is_refused(schedule: str):
    assert calendar_errors(schedule)


async def test_realm_sync_jobs_are_for_directory_realms(api: Api):
    job_path = "/cluster/jobs/realm-sync/nightly"
    refused = await api.post(job_path, realm="pve", schedule="daily", scope="users")
    assert "Only LDAP/AD realms can be synced." in refused.body["message"]
    await api.post("/access/domains", realm="corp", type="ad", server1="10.0.0.9", domain="corp.lan")
    assert (await api.post(job_path, realm="corp", schedule="daily", scope="users")).data is None
    (job,) = (await api.get("/cluster/jobs/realm-sync")).data
    assert (job["id"], job["next-run"]) == ("nightly", int(MANUAL_EPOCH) + 16 * 3600)
    await api.put(job_path, schedule="hourly", enabled=0)
    assert (await api.get(job_path)).data["enabled"] == 0
    await api.delete(job_path)
    assert (await api.get(job_path)).errors == {"id": "No such job 'nightly'"}


async def test_acme_has_directories_and_plugins_but_no_accounts_and_ceph_is_not_installed(api: Api):
    assert len((await api.get("/cluster/acme/directories")).data) == 2
    assert (await api.get("/cluster/acme/account")).data == []
    await api.post("/cluster/acme/plugins", id="cf", type="dns", api="cf", data="eA==")
    assert [row["plugin"] for row in (await api.get("/cluster/acme/plugins")).data] == ["cf", "standalone"]
    again = await api.post("/cluster/acme/plugins", id="cf", type="dns", api="cf")
    assert again.reason == "ACME plugin ID 'cf' already exists!"
    await api.delete("/cluster/acme/plugins/cf")
    assert (await api.get("/cluster/acme/plugins/cf")).reason == "ACME plugin 'cf' not defined"
    for path in ("status", "flags", "metadata"):
        refused = await api.get(f"/cluster/ceph/{path}")
        assert refused.reason == "binary not installed: /usr/bin/ceph-mon"


async def test_without_quorum_nothing_is_changed(api: Api):
    api.cluster.world.quorate_override = False
    pool = asyncio.ensure_future(api.post("/pools", poolid="x"))
    await api.clock.advance(10)  # it waits for a lock
    assert pool.done()
    assert pool.result().reason == "create pool failed: cfs-lock 'file-user_cfg' error: no quorum!"
    refused = await api.post("/cluster/sdn/zones", zone="z1", type="simple")
    assert (refused.status, refused.reason) == (500, "cluster not ready - no quorum?")
