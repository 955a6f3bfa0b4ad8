"""The whole PVE API: search, explain and call, with the risk derived from method and path."""

import re
from typing import Any

import pytest

from pve_schema.schema import facts
from pve_simulator.http.routing import all_routes
from quorate.config import Access
from quorate.operations.registry import Risk, Table
from quorate.operations.risk import ORDER, effects_of, refusal
from quorate.pve.connection import Limits
from quorate.tools.api import bound_response, cut, objection
from tests.rigs.mcp_session import rig, second_server, text_of

VERSIONS = ["8.4", "9.2"]

KNOWN_RISKS = {
    Risk.READ: """
        GET /version
        GET /nodes
        GET /nodes/{node}/status
        GET /nodes/{node}/qemu/{vmid}/config
        GET /nodes/{node}/qemu/{vmid}/agent
        GET /nodes/{node}/qemu/{vmid}/cloudinit/dump
        GET /nodes/{node}/lxc/{vmid}/interfaces
        GET /nodes/{node}/storage/{storage}/content/{volume}
        GET /nodes/{node}/syslog
        GET /cluster/resources
        GET /access/acl
        GET /access/users/{userid}/token/{tokenid}
    """,
    Risk.LOOK_INSIDE: """
        GET /nodes/{node}/qemu/{vmid}/agent/file-read
        GET /nodes/{node}/qemu/{vmid}/agent/exec-status
        GET /nodes/{node}/qemu/{vmid}/agent/get-users
        GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces
        GET /nodes/{node}/storage/{storage}/file-restore/list
    """,
    Risk.CHANGE: """
        PUT /pools/{poolid}
        POST /nodes/{node}/qemu
        PUT /nodes/{node}/qemu/{vmid}/config
        POST /nodes/{node}/qemu/{vmid}/clone
        POST /nodes/{node}/qemu/{vmid}/snapshot
        POST /nodes/{node}/qemu/{vmid}/migrate
        POST /nodes/{node}/qemu/{vmid}/agent/exec
        POST /nodes/{node}/qemu/{vmid}/agent/file-write
        POST /nodes/{node}/qemu/{vmid}/status/start
        POST /nodes/{node}/lxc/{vmid}/status/shutdown
        PUT /nodes/{node}/qemu/{vmid}/resize
        POST /nodes/{node}/network
        PUT /nodes/{node}/network/{iface}
        POST /nodes/{node}/apt/update
        POST /nodes/{node}/services/{service}/restart
        POST /nodes/{node}/storage/{storage}/download-url
        POST /cluster/sdn/zones
        POST /cluster/ha/resources
        POST /nodes/{node}/qemu/{vmid}/firewall/rules
        POST /pools
    """,
    Risk.DESTROY: """
        DELETE /nodes/{node}/qemu/{vmid}
        DELETE /nodes/{node}/lxc/{vmid}
        DELETE /nodes/{node}/qemu/{vmid}/snapshot/{snapname}
        DELETE /nodes/{node}/storage/{storage}/content/{volume}
        DELETE /nodes/{node}/storage/{storage}/prunebackups
        DELETE /storage/{storage}
        DELETE /cluster/backup/{id}
        POST /nodes/{node}/qemu/{vmid}/status/stop
        POST /nodes/{node}/lxc/{vmid}/status/stop
        POST /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback
        POST /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/rollback
        POST /nodes/{node}/qemu/{vmid}/template
        POST /nodes/{node}/qemu/{vmid}/monitor
        POST /nodes/{node}/qemu/{vmid}/remote_migrate
        POST /nodes/{node}/qemu/{vmid}/agent/set-user-password
        PUT /nodes/{node}/qemu/{vmid}/unlink
        POST /nodes/{node}/status
        POST /nodes/{node}/stopall
        PUT /nodes/{node}/network
        PUT /nodes/{node}/dns
        POST /nodes/{node}/hosts
        POST /nodes/{node}/disks/initgpt
        POST /nodes/{node}/disks/zfs
        PUT /nodes/{node}/disks/wipedisk
        POST /nodes/{node}/ceph/osd
        POST /nodes/{node}/certificates/custom
        POST /nodes/{node}/execute
        POST /nodes/{node}/services/{service}/stop
        PUT /access/acl
        PUT /access/password
        POST /access/users
        PUT /access/users/{userid}
        POST /access/users/{userid}/token/{tokenid}
        POST /access/roles
        PUT /access/groups/{groupid}
        POST /access/domains
        POST /access/domains/{realm}/sync
        POST /cluster/jobs/realm-sync/{id}
        PUT /cluster/firewall/options
        PUT /nodes/{node}/firewall/options
        PUT /cluster/sdn
        POST /nodes/{node}/lxc
        POST /cluster/backup
        POST /storage
        POST /cluster/mapping/dir
        PUT /cluster/mapping/pci/{id}
    """,
}

REFUSED = """
    POST /nodes/{node}/qemu/{vmid}/vncproxy
    POST /nodes/{node}/lxc/{vmid}/termproxy
    POST /nodes/{node}/qemu/{vmid}/spiceproxy
    GET /nodes/{node}/qemu/{vmid}/vncwebsocket
    GET /nodes/{node}/vncwebsocket
    POST /nodes/{node}/vncshell
    POST /nodes/{node}/spiceshell
    POST /nodes/{node}/termproxy
    POST /nodes/{node}/qemu/{vmid}/mtunnel
    GET /nodes/{node}/lxc/{vmid}/mtunnelwebsocket
    POST /access/ticket
    GET /access/ticket
    POST /access/openid/login
    PUT /access/password
    POST /access/tfa/{userid}
    POST /nodes/{node}/execute
    PUT /nodes/{node}/disks/wipedisk
    POST /cluster/config/join
    POST /nodes/{node}/storage/{storage}/upload
    GET /nodes/{node}/storage/{storage}/file-restore/download
"""

SPELLINGS = [
    "/nodes/pve1/qemu/100/../101/status/stop",
    "/nodes/pve1/qemu/100/%2e%2e/101",
    "/nodes/pve1/./status",
    "/nodes//pve1/status",
    "//nodes/pve1/status",
    "/nodes/pve1/status/",
    "/api2/json/nodes",
    "/API2/json/nodes",
    "/api2/extjs/nodes",
    "/extjs/nodes",
    "/json/nodes",
    "nodes/pve1/status",
    "/nodes/pve1/status?command=reboot",
    "/nodes/pve1/status#x",
    "/nodes/pve1/qemu%2F100",
    "/nodes/pve1/qemu/100 ",
    " /nodes",
    "/nodes/pve1/\tstatus",
    "/nodes/pve1/status\n",
    "/nodes/pve1/qemu/100;x",
    "/nodes/pve1\\status",
    "/nodes/{node}/status",
    "/nodes/pve1/qemu/\uff11\uff10\uff10",
    "/nodes/pve1/qemu/100\u200b",
    "",
]


def lines(text):
    return [line.strip() for line in text.strip().splitlines()]


def risk_of(method, template, params=None):
    return effects_of(facts("9.2").endpoint(method, template), params)[0].risk


# -- the risk table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_method_of_the_api_has_a_risk_that_fits_its_method(version):
    endpoints = list(facts(version).endpoints())
    assert len(endpoints) == {"8.4": 605, "9.2": 675}[version]
    for endpoint in endpoints:
        worst_effect, *others = effects_of(endpoint)
        assert str(worst_effect)
        risk = worst_effect.risk
        assert all(ORDER.index(other.risk) <= ORDER.index(risk) for other in others)
        if endpoint.method == "GET":
            assert risk in (Risk.READ, Risk.LOOK_INSIDE), endpoint
        else:
            assert risk in (Risk.CHANGE, Risk.DESTROY), endpoint


@pytest.mark.parametrize(("risk", "call"), [(risk, line) for risk, text in KNOWN_RISKS.items() for line in lines(text)])
def test_the_risk_of_well_known_calls(risk, call):
    method, _, template = call.partition(" ")
    assert facts("9.2").endpoint(method, template)
    assert risk_of(method, template) is risk


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_that_deletes_or_grants_rights_is_below_destroy(version):
    for endpoint in facts(version).endpoints():
        if endpoint.method == "GET":
            continue
        needed = str(endpoint.permission)
        suspicious = (
            endpoint.method == "DELETE"
            or endpoint.template.startswith("/access/")
            or re.search(r"Permissions\.Modify|User\.Modify|Realm\.Allocate|Group\.Allocate|Sys\.PowerMgmt", needed)
            or re.search(r"delete|destroy|remove|wipe|rollback|prune", endpoint.name)
        )
        if suspicious and not endpoint.template.endswith("wakeonlan"):  # a node that wakes up loses nothing
            assert effects_of(endpoint)[0].risk is Risk.DESTROY, endpoint


@pytest.mark.parametrize(
    ("call", "params"),
    [
        ("PUT /nodes/{node}/qemu/{vmid}/config", {"delete": "unused0"}),
        ("POST /nodes/{node}/qemu/{vmid}/config", {"delete": "description, scsi1"}),
        ("PUT /nodes/{node}/lxc/{vmid}/config", {"delete": ["mp0"]}),
        ("PUT /nodes/{node}/qemu/{vmid}/config", {"delete": "description", "force": 1}),
        ("POST /nodes/{node}/qemu", {"archive": "x", "force": True}),
        ("POST /nodes/{node}/qemu/{vmid}/status/shutdown", {"forceStop": "1"}),
        ("POST /nodes/{node}/qemu/{vmid}/move_disk", {"delete": 1}),
        ("POST /nodes/{node}/qemu/{vmid}/move_disk", {"target-vmid": 200}),
        ("PUT /nodes/{node}/qemu/{vmid}/config", {"scsi0": "local-lvm:8"}),
        ("PUT /storage/{storage}", {"prune-backups": "keep-last=1"}),
        ("PUT /cluster/options", {"user-tag-access": "user-allow=free"}),
        ("PUT /cluster/replication/{id}", {"remove_job": "full"}),
    ],
)
def test_telling_parameters_make_a_change_a_destruction(call, params):
    method, _, template = call.partition(" ")
    assert risk_of(method, template) is Risk.CHANGE
    assert risk_of(method, template, params) is Risk.DESTROY


def test_a_raw_backup_is_a_destruction_unless_it_deletes_nothing():
    assert risk_of("POST", "/nodes/{node}/vzdump", {"vmid": "100"}) is Risk.DESTROY
    assert risk_of("POST", "/nodes/{node}/vzdump", {"vmid": "100", "remove": 0}) is Risk.CHANGE
    assert risk_of("POST", "/nodes/{node}/vzdump", {"remove": 0, "prune-backups": "keep-last=1"}) is Risk.DESTROY


@pytest.mark.parametrize("where", ["rules", "rules/{pos}", "options", "groups", "ipset/{name}", "aliases"])
def test_the_firewall_of_the_cluster_is_opened_or_closed_only_as_a_destruction(where):
    method = "PUT" if where.endswith(("}", "options")) and "ipset" not in where else "POST"
    assert facts("9.2").endpoint(method, f"/cluster/firewall/{where}")
    assert risk_of(method, f"/cluster/firewall/{where}") is Risk.DESTROY


def test_harmless_values_of_telling_parameters_change_nothing():
    assert risk_of("PUT", "/nodes/{node}/qemu/{vmid}/config", {"delete": "description", "force": 0}) is Risk.CHANGE
    assert risk_of("GET", "/nodes/{node}/status", {"force": 1}) is Risk.READ


@pytest.mark.parametrize("call", lines(REFUSED))
def test_consoles_tickets_passwords_and_what_only_root_may_do_are_refused(call):
    method, _, template = call.partition(" ")
    assert refusal(facts("9.2").endpoint(method, template))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_no_token_may_call_is_always_refused(version):
    for endpoint in facts(version).endpoints():
        if endpoint.permission is None or not endpoint.allow_token:
            assert refusal(endpoint), endpoint


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SPELLINGS)
def test_only_the_plain_spelling_of_a_path_is_accepted(path):
    assert objection(path) is not None


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/version",
        "/nodes/pve1/tasks/UPID:pve1:00000504:1464B400:69681780:aptupdate::root@pam:/status",
        "/nodes/pve1/storage/local/content/local:iso/debian-13.1.0-amd64-netinst.iso",
        "/cluster/firewall/ipset/trusted/10.0.0.0/8",
        "/access/users/alice@pve/token/ci",
        "/cluster/ha/resources/vm:100",
    ],
)
def test_plain_paths_are_accepted(path):
    assert objection(path) is None


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_no_odd_spelling_reaches_the_cluster(tmp_path, method):
    async with rig(tmp_path) as quorate:
        await quorate.facts("cluster_status")
        mark = len(quorate.sim.requests)
        for path in SPELLINGS:
            assert "is not accepted" in await quorate.refusal("api_call", method=method, path=path)
        assert {path for _, path in quorate.requests_since(mark)} <= {"/version"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/Nodes/pve1/status", "Did you mean"),
        ("/nodes/pve1/QEMU/100/config", "has no"),
        ("/nodes/pve1/qemu/100/status/Stop", "has no"),
        ("/nodes/pve1/nonsense", "has no"),
        ("/nodes/pve1/qemu/100/status/stop", "It has POST"),
    ],
)
async def test_a_path_that_leads_nowhere_is_refused_with_a_hint(tmp_path, path, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("api_call", method="GET", path=path)


# -- reads -------------------------------------------------------------------------------------------------------------


# Values for the placeholders of paths; with other placeholders a path is not asked.
THERE = {
    "node": "pve1", "storage": "local", "userid": "alice@pve", "realm": "pam", "poolid": "lab", "roleid": "PVEAdmin",
    "groupid": "admins", "service": "pveproxy", "sid": "vm:101", "iface": "vmbr0", "tokenid": "ci",
    "snapname": "pre-migration",
}  # fmt: skip
EXPECTED_ERRORS = "ceph-mon|migrated to rules|no prune-backups options|snapshot 'pre-migration' does not exist"


def concrete(template):
    guest = {"node": "pve2", "vmid": "203"} if "/lxc/" in template else {"vmid": "102"}
    for name, value in {**THERE, **guest}.items():
        template = template.replace(f"{{{name}}}", value)
    return template


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["9.1.8", "8.4.1"])
async def test_every_read_that_the_simulator_knows_is_answered_in_bounds_or_explained(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        answered = 0
        for endpoint in facts(version).endpoints():
            path = concrete(endpoint.template)
            needed = {name for name, spec in endpoint.parameters.items() if not spec.get("optional")}
            needed -= set(re.findall(r"{([^}]+)}", endpoint.template))
            if endpoint.method != "GET" or ("GET", endpoint.template) not in all_routes() or needed or "{" in path:
                continue
            answer = await quorate.call("api_call", method="GET", path=path)
            text = text_of(answer)
            if refusal(endpoint):
                assert "is never called" in text, path
            elif answer.is_error:
                assert re.search(EXPECTED_ERRORS, text), (path, text)
            else:
                answered += 1
            assert len(text) < 30_000, path
        assert answered > 150


PLAUSIBLE = {
    "vmid": "108",
    "newid": "900",
    "target": "pve2",
    "storage": "local",
    "disk": "scsi0",
    "size": "+1G",
    "snapname": "walk",
    "command": "reboot",
    "type": "in",
    "action": "ACCEPT",
    "userid": "walker@pve",
    "roleid": "Walker",
    "groupid": "walkers",
    "poolid": "walk",
    "cidr": "10.9.0.0/24",
    "schedule": "02:00",
    "ostemplate": "local:vztmpl/none.tar.zst",
    "url": "https://example.test/x.iso",
    "content": "iso",
    "filename": "x.iso",
}


def plausible(name, spec):
    """A value that a parameter may well have."""
    if name in PLAUSIBLE:
        return PLAUSIBLE[name]
    if spec.get("enum"):
        return spec["enum"][0]
    kind = spec.get("type")
    return {"boolean": False, "integer": spec.get("minimum", 1), "number": 1, "array": ["walk"]}.get(kind, "walk")


@pytest.mark.thorough
@pytest.mark.anyio
@pytest.mark.parametrize("version", VERSIONS)
async def test_every_write_that_the_simulator_knows_is_planned_and_carried_out_or_explained(tmp_path, version):
    limits = Limits(request_seconds=2, total_seconds=4)  # time does not move here, and some calls wait for a lock
    async with rig(tmp_path, version=version, limits=limits) as quorate:
        planned = carried_out = 0
        for endpoint in facts(version).endpoints():
            path = concrete(endpoint.template)
            if endpoint.method == "GET" or (endpoint.method, endpoint.template) not in all_routes() or "{" in path:
                continue
            inside = set(re.findall(r"{([^}]+)}", endpoint.template))
            params = {
                name: plausible(name, spec)
                for name, spec in endpoint.parameters.items()
                if not spec.get("optional") and name not in inside
            }
            call = {"method": endpoint.method, "path": path, "params": params}
            shown = await quorate.call("api_call", **call, dry_run=True)
            text = text_of(shown)
            assert "inside Quorate" not in text, (path, text)
            assert bool(refusal(endpoint)) == ("is never called" in text), (path, text)
            if shown.is_error:
                continue
            planned += 1
            if endpoint.template == "/nodes/{node}/status":  # a node that reboots would hide the others
                continue
            done = await quorate.call("api_call", **call, wait=0)
            assert "inside Quorate" not in text_of(done), (path, text_of(done))
            assert "internal error" not in text_of(done), (path, text_of(done))
            carried_out += not done.is_error
        assert planned > 130
        assert carried_out > 60


@pytest.mark.anyio
async def test_a_list_answers_as_a_table_with_pages(tmp_path):
    async with rig(tmp_path) as quorate:
        first = await quorate.facts("api_call", method="GET", path="/cluster/resources", limit=5)
        assert len(first["rows"]) == 5
        assert first["next_offset"] == 5
        second = await quorate.facts("api_call", method="GET", path="/cluster/resources", limit=5, offset=5)
        assert first["rows"] != second["rows"]
        vms = await quorate.rows("api_call", method="GET", path="/cluster/resources", params={"type": "vm"}, limit=200)
        assert {row["vmid"] for row in vms} == set(quorate.sim.world.guests)


@pytest.mark.anyio
async def test_an_object_and_a_text_are_answered(tmp_path):
    async with rig(tmp_path) as quorate:
        config = (await quorate.facts("api_call", method="GET", path="/nodes/pve1/qemu/102/config"))["data"]
        assert config["cores"] == quorate.sim.world.guests[102].config["cores"]
        report = await quorate.facts("api_call", method="GET", path="/nodes/pve1/report", limit=3)
        assert len(report["rows"]) == 3
        assert report["total"] > 10


@pytest.mark.anyio
async def test_wrong_parameters_of_a_read_are_refused_before_pve_is_asked(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("cluster_status")
        text = await quorate.refusal("api_call", method="GET", path="/cluster/resources", params={"type": "pool"})
        assert "does not have a value in the enumeration" in text
        assert "api_search" in text
        assert all(path != "/cluster/resources?type=pool" for _, path in quorate.sim.requests)
        twice = await quorate.refusal("api_call", method="GET", path="/nodes/pve1/status", params={"node": "pve2"})
        assert "is already in the path" in twice


@pytest.mark.anyio
async def test_a_download_is_refused_because_it_is_no_fact(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal(
            "api_call", method="GET", path="/nodes/pve1/tasks/UPID:x/log", params={"download": True}
        )
        assert "It returns a file" in text


@pytest.mark.anyio
async def test_looking_inside_a_guest_needs_the_level_for_it(tmp_path):
    async with rig(tmp_path, access=Access.READ) as quorate:
        path = "/nodes/pve1/qemu/102/agent/file-read"
        text = await quorate.refusal("api_call", method="GET", path=path, params={"file": "/etc/hostname"})
        assert "look inside guests" in text
        assert "--access operate" in text
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        facts_ = await quorate.facts("api_call", method="GET", path=path, params={"file": "/etc/hostname"})
        assert "docker01" in facts_["data"]["content"]


@pytest.mark.anyio
async def test_secrets_that_pve_shows_are_hidden(tmp_path):
    async with rig(tmp_path) as quorate:
        path = "/cluster/metrics/server/influx"
        params = {
            "type": "influxdb", "server": "10.0.0.9", "port": 8086, "influxdbproto": "http", "token": "verysecrettoken",
        }  # fmt: skip
        dry = await quorate.facts("api_call", method="POST", path=path, params=params, dry_run=True)
        assert "verysecrettoken" not in str(dry)
        await quorate.facts("api_call", method="POST", path=path, params=params)
        shown = await quorate.facts("api_call", method="GET", path=path)
        assert shown["data"]["server"] == "10.0.0.9"
        assert "verysecrettoken" not in str(shown)
        assert "verysecrettoken" not in quorate.audit_file.read_text()


@pytest.mark.anyio
async def test_variables_of_a_container_are_hidden_in_both_spellings(tmp_path):
    """`env` is of PVE 9.1; before that, people wrote raw options."""
    async with rig(tmp_path, access=Access.READ) as quorate:
        guest = quorate.sim.world.guests[200]
        raw: Any = [["lxc.environment", "B=verysecrettoken"], ["lxc.x", "1"]]
        guest.config |= {"env": "A=verysecrettoken", "lxc": raw}
        guest.touch()
        for part in ("config", "pending"):
            shown = await quorate.facts("api_call", method="GET", path=f"/nodes/pve1/lxc/200/{part}")
            assert "lxc.environment" in str(shown)
            assert "verysecrettoken" not in str(shown)
        shown = await quorate.facts("guest_get", guest=200, detail=True)
        assert shown["options"]["lxc"] == [["lxc.environment", "***"], ["lxc.x", "1"]]
        assert "verysecrettoken" not in str(shown)
        compared = await quorate.call("guest_diff", guest=200, other=204)
        assert "lxc.environment" in str(compared)
        assert "verysecrettoken" not in str(compared)


@pytest.mark.anyio
async def test_variables_in_a_backup_are_hidden_in_both_spellings(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[200]
        guest.config |= {"env": "A=verysecrettoken", "lxc.environment": "B=verysecrettoken", "lxc.x": "1"}
        guest.touch()
        await quorate.facts("backup_create", guests=200, storage="pbs")
        shown = await quorate.facts("backup_show", backup="newest:200")
        assert shown["options"]["lxc.x"] == "1"
        compared = await quorate.call("guest_diff", guest=200, backup="newest:200")
        assert "verysecrettoken" not in str(shown) + str(compared)


@pytest.mark.anyio
async def test_secrets_of_a_refused_call_are_not_recorded_either(tmp_path):
    async with rig(tmp_path, access=Access.READ) as quorate:
        params = {"type": "influxdb", "server": "10.0.0.9", "port": 8086, "token": "verysecrettoken"}
        await quorate.refusal("api_call", method="POST", path="/cluster/metrics/server/influx", params=params)
        assert quorate.audit()[-1]["decision"] == "refused"
        assert "verysecrettoken" not in quorate.audit_file.read_text()


def test_a_flood_is_cut_and_says_so():
    rows = [{"id": number, "text": "x" * 5000, "nested": {"a": [1] * 500}} for number in range(300)]
    table = bound_response(rows, limit=200, offset=0)
    assert isinstance(table, Table)
    assert 1 < len(table.rows) < 200
    assert table.next_offset == len(table.rows)
    assert "characters" in str(table.rows[0])
    assert table.note
    big = cut({"items": list(range(10_000)), "text": "y" * 100_000})
    assert len(str(big)) < 25_000
    assert big["items"][-1] == "… 9950 more"


# -- writes ------------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_write_follows_its_task_to_the_end(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[108]
        result = await quorate.facts("api_call", method="POST", path="/nodes/pve1/qemu/108/status/start")
        assert result["result"] == "done"
        assert ":qmstart:108:" in result["task"]
        assert guest.running
        assert quorate.audit()[-1]["risk"] == "change"


@pytest.mark.anyio
async def test_a_synchronous_write_takes_effect(tmp_path):
    async with rig(tmp_path) as quorate:
        path = "/nodes/pve1/qemu/108/config"
        result = await quorate.facts("api_call", method="PUT", path=path, params={"description": "by hand"})
        assert result["result"] == "done"
        assert "by hand" in str(quorate.sim.world.guests[108].config["description"])


@pytest.mark.anyio
async def test_a_backup_that_pve_silently_leaves_out_is_not_called_done(tmp_path):
    async with rig(tmp_path) as quorate:
        path = "/nodes/pve2/vzdump"
        text = await quorate.refusal("api_call", method="POST", path=path, params={"vmid": "102", "storage": "nas"})
        assert "PVE backed up nothing" in text


@pytest.mark.anyio
async def test_a_task_that_pve_does_not_name_is_followed_all_the_same(tmp_path):
    async with rig(tmp_path) as quorate:
        result = await quorate.facts("api_call", method="POST", path="/nodes/pve3/lxc/206/template")
        assert ":vztemplate:206:" in result["task"]
        assert quorate.sim.world.guests[206].template


@pytest.mark.anyio
async def test_a_dry_run_changes_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        result = await quorate.facts("api_call", method="DELETE", path="/nodes/pve1/qemu/108", dry_run=True)
        assert result["steps"][0]["call"] == "DELETE /nodes/pve1/qemu/108"
        assert 108 in quorate.sim.world.guests
        assert all(method == "GET" for method, _ in quorate.sim.requests)


@pytest.mark.anyio
async def test_at_each_access_level_only_what_it_allows_is_called(tmp_path):
    async with rig(tmp_path, access=Access.READ) as quorate:
        assert "api_call" in [tool.name for tool in (await quorate.client.list_tools()).tools]
        await quorate.facts("api_call", method="GET", path="/version")
        text = await quorate.refusal("api_call", method="POST", path="/nodes/pve1/qemu/108/status/start")
        assert "--access operate" in text
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await quorate.facts("api_call", method="POST", path="/nodes/pve1/qemu/108/status/start")
        for method, path, params in (
            ("DELETE", "/nodes/pve1/qemu/108", {}),
            ("POST", "/nodes/pve1/status", {"command": "reboot"}),
            ("PUT", "/access/acl", {"path": "/", "roles": "Administrator", "users": "bob@pve"}),
            ("PUT", "/nodes/pve1/qemu/108/config", {"delete": "unused0"}),
        ):
            assert "--access admin" in await quorate.refusal("api_call", method=method, path=path, params=params)
        assert 108 in quorate.sim.world.guests


@pytest.mark.anyio
async def test_wrong_parameters_of_a_write_are_refused_before_it_is_sent(tmp_path):
    async with rig(tmp_path) as quorate:
        path = "/nodes/pve1/qemu/108/config"
        text = await quorate.refusal("api_call", method="PUT", path=path, params={"cores": "many", "colour": "red"})
        assert "cores: type check ('integer') failed" in text
        assert "colour: property is not defined in schema" in text
        assert all(method == "GET" for method, _ in quorate.sim.requests)


@pytest.mark.anyio
async def test_the_refusal_for_a_guest_on_another_node_names_its_path(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("api_call", method="POST", path="/nodes/pve2/qemu/108/status/start")
        assert "Its path is /nodes/pve1/qemu/108" in text


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/nodes/pve1/qemu/102/vncproxy", "opens a console"),
        ("POST", "/nodes/pve1/termproxy", "opens a console"),
        ("POST", "/access/ticket", "hands out tickets"),
        ("PUT", "/access/password", "belong to the person"),
        ("POST", "/nodes/pve1/execute", "reserves it for root@pam"),
        ("POST", "/nodes/pve1/storage/local/upload", "image_upload"),
    ],
)
async def test_what_is_never_called_is_refused_with_its_reason(tmp_path, method, path, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("api_call", method=method, path=path)
        assert "is never called" in text
        assert words in text
        assert all(sent == "GET" for sent, _ in quorate.sim.requests)
        assert quorate.audit()[-1]["outcome"] == "refused"


@pytest.mark.anyio
async def test_the_secret_of_a_new_token_is_shown_once_and_recorded_nowhere(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts("api_call", method="POST", path="/access/users/alice@pve/token/fresh")
        secret = answer["answer"]["value"]
        assert secret == quorate.sim.world.access.users["alice@pve"].tokens["fresh"].secret
        assert secret not in quorate.audit_file.read_text()


@pytest.mark.anyio
async def test_a_command_inside_a_guest_is_started_with_its_words_kept_apart(tmp_path):
    async with rig(tmp_path) as quorate:
        path = "/nodes/pve1/qemu/102/agent"
        started = await quorate.facts(
            "api_call", method="POST", path=f"{path}/exec", params={"command": ["echo", "two words"]}
        )
        params = {"pid": started["answer"]["pid"]}
        ended = await quorate.facts("api_call", method="GET", path=f"{path}/exec-status", params=params)
        assert ended["data"]["out-data"].strip() == "two words"


@pytest.mark.anyio
async def test_a_lost_answer_of_a_synchronous_write_is_settled_by_reading_back(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/qemu/*/config"]) as quorate:
        path = "/nodes/pve1/qemu/108/config"
        result = await quorate.facts("api_call", method="PUT", path=path, params={"onboot": True})
        assert "the effect was found" in result["note"]
        assert [method for method, _ in quorate.sim.requests].count("PUT") == 1


# -- search and description --------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("clone vm", "POST /nodes/{node}/qemu/{vmid}/clone"),
        ("container snapshot rollback", "POST /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/rollback"),
        ("create backup job", "POST /cluster/backup"),
        ("VM.GuestAgent.FileRead", "GET /nodes/{node}/qemu/{vmid}/agent/file-read"),
        ("replication schedule now", "POST /nodes/{node}/replication/{id}/schedule_now"),
        ("firewall macros", "GET /cluster/firewall/macros"),
        ("smart", "GET /nodes/{node}/disks/smart"),
    ],
)
async def test_words_find_the_endpoint_near_the_top(tmp_path, words, expected):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("api_search", words=words)
        assert expected in [f"{row['method']} {row['path']}" for row in rows[:5]]


@pytest.mark.anyio
async def test_words_of_a_sentence_that_name_nothing_do_not_hide_what_the_others_find(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("api_search", words="the firewall of a guest")
        assert rows == await quorate.rows("api_search", words="firewall guest")
        assert {row["path"].split("/")[3] for row in rows} == {"qemu", "lxc"}
        assert (await quorate.facts("api_search", words="of a"))["total"] == 0


@pytest.mark.anyio
async def test_a_search_is_bounded_and_filtered_and_shows_the_risk(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("api_search", words="qemu", method="DELETE", limit=3)
        assert len(rows) == 3
        assert {row["method"] for row in rows} == {"DELETE"}
        assert {row["risk"] for row in rows} == {"destroy"}
        consoles = await quorate.rows("api_search", words="vncproxy")
        assert {row["risk"] for row in consoles} == {"refused"}
        assert (await quorate.facts("api_search", words="zzzzzz"))["total"] == 0
        assert "no words" in await quorate.refusal("api_search", words="!?")


@pytest.mark.anyio
async def test_an_endpoint_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        described = await quorate.facts("api_search", method="POST", path="/nodes/{node}/qemu/{vmid}/clone")
        assert described["risk"].startswith("change")
        assert "newid" in described["required"]
        assert "raw|qcow2|vmdk" in described["optional"]["format"]
        assert described["task"] == "qmclone"
        assert "VM.Clone on /vms/{vmid} and (VM.Allocate on /vms/{newid} or" in described["needs"]
        real = await quorate.facts("api_search", method="POST", path="/nodes/pve1/qemu/100/vncproxy")
        assert "console" in real["refused"]


@pytest.mark.anyio
async def test_one_parameter_is_explained_in_full(tmp_path):
    async with rig(tmp_path) as quorate:
        path = "/nodes/{node}/qemu/{vmid}/config"
        described = await quorate.facts("api_search", method="PUT", path=path, parameter="net0")
        assert "bridge" in str(described["format"])
        text = await quorate.refusal("api_search", method="PUT", path=path, parameter="colour")
        assert "has no parameter 'colour'" in text
        missing = await quorate.refusal("api_search", method="PUT", path="/nodes/{node}/nothing")
        assert "has no PUT /nodes/{node}/nothing" in missing


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/nodes/{node}/qemu/{vmid}/snapshot", "/nodes/pve1/qemu/100/snapshot"])
async def test_a_path_without_a_method_is_answered_with_its_methods(tmp_path, path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts("api_search", path=path)
        assert sorted(row[0] for row in answer["rows"]) == ["GET", "POST"]
        assert "method=" in answer["next"]
        text = await quorate.refusal("api_search", path=path, parameter="snapname")
        assert "Say which with method=" in text


@pytest.mark.anyio
async def test_a_path_with_one_method_needs_no_method(tmp_path):
    async with rig(tmp_path) as quorate:
        described = await quorate.facts("api_search", path="/nodes/pve1/qemu/100/clone")
        assert described["endpoint"] == "POST /nodes/{node}/qemu/{vmid}/clone"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "One of words and path is needed"),
        ({"words": "clone", "path": "/nodes"}, "One of words and path is needed"),
        ({"words": "clone", "parameter": "newid"}, "parameter needs path"),
        ({"path": "/nodes/pve1/nothing"}, "has no /nodes/pve1/nothing"),
        ({"path": "/nodes/{node}/nothing"}, "has no /nodes/{node}/nothing"),
        ({"path": "/api2/json/nodes"}, "contains the API prefix"),
    ],
)
async def test_a_search_is_for_words_or_for_a_path(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("api_search", **arguments)


@pytest.mark.anyio
@pytest.mark.parametrize("version", VERSIONS)
async def test_every_endpoint_can_be_explained_in_few_words(tmp_path, version):
    async with rig(tmp_path, version=f"{version}.1") as quorate:
        for endpoint in list(facts(version).endpoints())[::7]:
            answer = await quorate.call("api_search", method=endpoint.method, path=endpoint.template)
            assert not answer.is_error, endpoint
            assert len(text_of(answer)) < 15_000, endpoint


@pytest.mark.anyio
async def test_an_endpoint_of_another_version_is_reported_as_missing(tmp_path):
    async with rig(tmp_path, version="8.4.1") as quorate:
        assert "PVE 8.4 has no /cluster/ha/rules" in await quorate.refusal(
            "api_call", method="GET", path="/cluster/ha/rules"
        )


@pytest.mark.anyio
async def test_a_missing_privilege_is_named_with_the_command_that_grants_it(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "alice.jsonl", token="alice@pve!cli") as alice,
    ):
        read = await alice.refusal("api_call", method="GET", path="/nodes/pve1/syslog")
        assert "Sys.Syslog on /nodes/pve1" in read
        assert "pveum acl modify /nodes/pve1" in read
        mark = len(quorate.sim.requests)
        written = await alice.refusal("api_call", method="POST", path="/nodes/pve1/apt/update")
        assert "Sys.Modify on /nodes/pve1" in written
        assert {method for method, _ in quorate.requests_since(mark)} == {"GET"}
