"""The health report finds every fault planted in the simulated world, and nothing else."""

import pytest

from pve_simulator.cluster.ha_manager import SILENT_SECONDS, TURN_SECONDS
from pve_simulator.routes.nodes.apt import Packages
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.storage.storages import Volume
from pve_simulator.world import HaResource
from quorate.operations.registry import operations
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

DAY = 86400


def make_healthy(world):
    """Take away all that a report could find fault with."""
    world.part(BackupJobs).add("nightly", {"all": 1, "schedule": "01:00", "storage": "pbs"})
    nas = world.storages["nas"]
    for vmid, guest in world.guests.items():
        guest.snapshots.clear()
        guest.config |= {key: f"{value},backup=1" for key, value in guest.config.items() if key.startswith("mp")}
        guest.config.pop("parent", None)
        name = f"nas:backup/vzdump-{guest.kind}-{vmid}-2026_01_15-01_00_00.vma.zst"
        nas.add("pve1", Volume(name, "backup", "vma.zst", 1, 1, int(world.clock.now()), vmid=vmid))
    world.part(Packages).updates = lambda _: []


async def findings(quorate, **arguments):
    facts = await quorate.facts("cluster_health", **arguments)
    return facts, [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]


async def only_finding(quorate, **arguments):
    facts, rows = await findings(quorate, **arguments)
    assert len(rows) == 1, rows
    return facts, rows[0]


async def test_a_healthy_cluster_is_called_healthy(tmp_path):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        facts, rows = await findings(quorate)
        assert rows == []
        assert facts["verdict"] == "healthy"
        assert "certificates" in facts["checked"]


async def test_a_lost_quorum_is_critical_and_comes_first(tmp_path):
    async with rig(tmp_path, faults=["no-quorum"]) as quorate:
        facts, rows = await findings(quorate)
        assert (rows[0]["severity"], rows[0]["area"]) == ("critical", "quorum")
        assert facts["verdict"].startswith("critical")
        order = [["critical", "warning", "unchecked", "info"].index(row["severity"]) for row in rows]
        assert order == sorted(order)


async def test_an_offline_node_is_one_finding_and_the_others_are_still_looked_at(tmp_path):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        quorate.sim.faults.add("node-offline:pve3")
        _, node = await only_finding(quorate)
        assert (node["area"], node["severity"]) == ("nodes", "critical")
        assert "pve3 is offline; 6 guests are on it" in node["finding"]
        assert node["next"] == "capacity_plan fails=pve3"
        await quorate.clock.advance(SILENT_SECONDS + TURN_SECONDS)  # HA takes an agent for dead only after a while
        _, rows = await findings(quorate)
        assert rows[0] == node
        assert [row["area"] for row in rows] == ["nodes", "ha"]
        assert "pve3 (old timestamp - dead?" in rows[1]["finding"]


@pytest.mark.parametrize(("share", "severity"), [(0.84, None), (0.9, "warning"), (0.97, "critical")])
async def test_a_full_storage_is_found_by_how_full_it_is(tmp_path, share, severity):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        space = quorate.sim.world.storages["local-lvm"].space("pve2")
        space.base_used = int(space.total * share) - space.volumes_used
        await quorate.clock.advance(10)
        _, rows = await findings(quorate)
        assert [row["severity"] for row in rows] == ([severity] if severity else [])
        if severity:
            assert f"Storage local-lvm on pve2 is {share:.0%} full" in rows[0]["finding"]
            assert rows[0]["next"] == "volume_list storage=local-lvm node=pve2"


async def test_a_shared_storage_is_reported_once_and_by_the_callers_own_limit(tmp_path):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        _, rows = await findings(quorate, storage_percent=40)
        assert [row["finding"].split()[1] for row in rows] == ["nas"]


async def test_failed_tasks_of_the_last_day_are_reported_once_for_each_kind(tmp_path):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        tasks, now = quorate.sim.world.tasks, quorate.clock.now()
        for hours, reason in ((3, "job errors"), (2, "no space left on device")):
            tasks.add_finished(
                "pve1", "vzdump", "102", "root@pam", started=now - hours * 3600, lasted=9.0, exitstatus=reason
            )
        tasks.add_finished("pve1", "qmstart", "100", "root@pam", started=now - 2 * DAY, lasted=1.0, exitstatus="old")
        tasks.add_finished("pve2", "vzdump", "103", "root@pam", started=now - 60, lasted=1.0, exitstatus="WARNINGS: 2")
        _, finding = await only_finding(quorate)
        assert finding["area"] == "tasks"
        assert "2 tasks vzdump failed on pve1 (of 102)" in finding["finding"]
        assert "no space left on device" in finding["finding"]
        task = await quorate.facts("task_get", task=finding["next"].removeprefix("task_get task="))
        assert task["exit"] == "no space left on device"


async def test_guests_without_backup_and_with_an_old_one_are_named(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        make_healthy(world)
        nas = world.storages["nas"].space("pve1")
        for name in [name for name in nas.volumes if "-100-2026" in name or "-101-2026" in name]:
            del nas.volumes[name]
        old = "nas:backup/vzdump-qemu-101-2026_01_01-01_00_00.vma.zst"
        nas.volumes[old] = Volume(old, "backup", "vma.zst", 1, 1, int(world.clock.now()), vmid=101)
        _, rows = await findings(quorate)
        assert [row["finding"] for row in rows] == [
            "1 guest has no backup: 100 router",
            "The newest backup of 1 guest is older than 7 days: 101 homeassistant (14d 7h)",
        ]
        assert rows[0]["next"] == "backup_create guest=100"
        _, rows = await findings(quorate, backup_days=30)
        assert len(rows) == 1


async def test_guests_that_no_job_covers_are_named_but_not_templates(tmp_path):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        jobs = quorate.sim.world.part(BackupJobs).all()
        jobs["nightly"] |= {"exclude": "100,9000"}
        _, finding = await only_finding(quorate)
        assert finding["finding"] == "No backup job covers 1 guest: 100 router (excluded by nightly)"


async def test_backups_that_are_hidden_from_us_are_not_called_missing(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob,
    ):
        make_healthy(quorate.sim.world)
        _, rows = await findings(bob)
        backups = [row for row in rows if row["area"] == "backups"]
        assert {row["severity"] for row in backups} == {"unchecked"}
        assert [row["finding"] for row in backups] == [
            (
                "Backups on local, nas, pbs are hidden: that needs Datastore.AllocateSpace on "
                "/storage/local, /storage/nas, /storage/pbs, and VM.Backup on /vms"
            )
        ]
        quorate.sim.world.access.grant("/", "PVEDatastoreUser", "bob@pve")
        quorate.sim.world.access.grant("/", "PVEDatastoreUser", "bob@pve!monitor")
        quorate.sim.world.access.invalidate_cache()
        await quorate.clock.advance(61)
        _, rows = await findings(bob)
        backups = [row for row in rows if row["area"] == "backups"]
        assert [row["severity"] for row in backups] == ["unchecked"]
        assert "hidden: that needs VM.Backup" in backups[0]["finding"]


async def test_a_missing_privilege_is_a_finding_with_the_command_that_grants_it(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob,
    ):
        make_healthy(quorate.sim.world)
        facts, rows = await findings(bob)
        updates = [row for row in rows if row["area"] == "updates"]
        assert [row["severity"] for row in updates] == ["unchecked"]
        assert "pve1, pve2, pve3" in updates[0]["finding"]
        assert "pveum acl modify /nodes --roles Quorate-nodes --users 'bob@pve'" in updates[0]["finding"]
        assert "--privs 'Datastore.Audit" in updates[0]["finding"], "what is inherited is included"
        assert "replaces" not in updates[0]["finding"]
        assert "not everything could be checked" in facts["verdict"]


async def test_snapshots_older_than_the_limit_are_reported(tmp_path):
    async with rig(tmp_path) as quorate:
        _, rows = await findings(quorate, snapshot_days=5)
        by_call = {row["next"]: row["finding"] for row in rows if row["area"] == "snapshots"}
        assert set(by_call) == {"snapshot_list guest=102", "snapshot_list guest=108"}
        assert "clean (30d), configured (29d)" in by_call["snapshot_list guest=108"]
        _, rows = await findings(quorate, snapshot_days=60)
        assert not [row for row in rows if row["area"] == "snapshots"]


async def test_updates_of_nodes_that_are_alike_are_one_finding(tmp_path):
    async with rig(tmp_path) as quorate:
        _, rows = await findings(quorate)
        updates = [row for row in rows if row["area"] == "updates"]
        assert len(updates) == 1
        waiting = quorate.sim.world.part(Packages).updates("pve1")
        assert f"{len(waiting)} updates wait on pve1, pve2, pve3" in updates[0]["finding"]


@pytest.mark.parametrize(("days", "severity", "words"), [(-1, "critical", "expired at"), (12, "warning", "in 12 days")])
async def test_a_certificate_that_ends_is_found_in_time(tmp_path, days, severity, words):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        ends = quorate.clock.now() + days * DAY + 600
        quorate.sim.world.part(Settings).of("pve2").custom_certificate = certificate_until(ends)
        _, finding = await only_finding(quorate)
        assert (finding["severity"], finding["area"]) == (severity, "certificates")
        assert "pveproxy-ssl.pem of pve2" in finding["finding"]
        assert words in finding["finding"]


def certificate_until(epoch):
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pve2.home.lan")])
    end = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(end - datetime.timedelta(days=90)).not_valid_after(end)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    return made.public_bytes(serialization.Encoding.PEM).decode()


async def test_an_ha_resource_in_error_is_critical(tmp_path):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        quorate.sim.world.ha["vm:100"] = HaResource("vm:100", crm_state="error", shown_state="error")
        _, finding = await only_finding(quorate)
        assert (finding["severity"], finding["area"]) == ("critical", "ha")
        assert "vm:100 is in state error" in finding["finding"]


async def test_what_one_node_does_not_answer_becomes_findings_and_no_error(tmp_path):
    async with rig(tmp_path) as quorate:
        make_healthy(quorate.sim.world)
        quorate.sim.faults.add("595:GET:/nodes/pve2/*")
        facts, rows = await findings(quorate)
        assert {row["severity"] for row in rows} == {"unchecked"}
        assert {row["area"] for row in rows} == {"tasks", "backups", "snapshots", "updates", "certificates"}
        assert all("pve2" in row["finding"] for row in rows)
        assert "no problems found, but" in facts["verdict"]


async def test_a_part_of_pve_that_breaks_leaves_the_rest_of_the_report(tmp_path):
    async with rig(tmp_path, faults=["500:ha broke:GET:/cluster/*", "500:no list:GET:/nodes/*/tasks"]) as quorate:
        text = await quorate.refusal("cluster_health")  # without the inventory there is nothing to report on
        assert "ha broke" in text
    async with rig(tmp_path, faults=["500:ha broke:GET:/cluster/ha/*", "500:x:GET:/cluster/status"]) as quorate:
        _, rows = await findings(quorate)
        assert {row["area"] for row in rows if row["severity"] == "unchecked"} == {"ha", "quorum"}


async def test_every_next_call_is_one_that_exists(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3", "no-quorum", "500:x:GET:/nodes/pve2/*"]) as quorate:
        _, rows = await findings(quorate, storage_percent=1, snapshot_days=0)
        assert len({row["area"] for row in rows}) >= 8
        for row in rows:
            tool, *arguments = row["next"].split(" ")
            schema, names = operations()[tool].schema(), {argument.partition("=")[0] for argument in arguments}
            assert set(schema.get("required", ())) <= names <= set(schema["properties"]), row["next"]


async def test_a_long_report_comes_in_pages(tmp_path):
    async with rig(tmp_path) as quorate:
        facts, rows = await findings(quorate, limit=1)
        assert len(rows) == 1
        assert facts["next_offset"] == 1


async def test_a_cluster_of_pve_8_is_looked_at_the_same_way(tmp_path):
    async with rig(tmp_path, version="8.4.1") as quorate:
        _, rows = await findings(quorate)
        assert not [row for row in rows if row["severity"] == "unchecked"]


async def test_reads_beyond_the_limit_are_reported_as_not_done(tmp_path):
    async with rig(tmp_path, nodes=2, guests=520) as quorate:
        _, rows = await findings(quorate)
        assert any("Snapshots of 20 guests were not checked" in row["finding"] for row in rows)
        assert len(quorate.sim.requests) < 600  # one for each of 500 guests: its snapshots
