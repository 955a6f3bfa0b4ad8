"""Backup jobs: create, change, run, delete; and guests that no job covers."""

import pytest

from pve_simulator.storage.backup_jobs import BackupJobs
from quorate.config import Access
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio


def jobs(quorate):
    return quorate.sim.world.part(BackupJobs).all()


def add_job(quorate, job="nightly", **options):
    settings = {"schedule": "02:00", "storage": "nas", "mode": "snapshot", "compress": "zstd", **options}
    quorate.sim.world.part(BackupJobs).add(job, settings)


def backed_up(quorate, storage="nas"):
    volumes = quorate.sim.world.storages[storage].volumes("pve1")
    return {volume.vmid for volume in volumes if volume.content == "backup"}


async def test_a_job_is_made_with_sensible_settings(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "backup_job_set", schedule="sat 03:30", guest=["docker01", 202], storage="nas", keep="last=3,weekly=4"
        )
        job = jobs(quorate)[facts["job"]]
        assert job["vmid"] == "102,202"
        assert job["prune-backups"] == "keep-last=3,keep-weekly=4"
        assert (job["mode"], job["compress"], job["notes-template"]) == ("snapshot", "zstd", "{{guestname}}")
        assert facts["next_run"].endswith("03:30:00Z")
        assert "deleted after each run" in facts["warnings"][0]


async def test_a_job_is_changed_in_part_and_the_rest_stays(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, vmid="102")
        later = {"schedule": "04:00", "comment": "later", "enabled": False}
        assert (await quorate.facts("backup_job_set", job="nightly", **later))["next_run"] == "never: it is disabled"
        assert jobs(quorate)["nightly"] | {"schedule": "04:00"} == jobs(quorate)["nightly"]
        assert jobs(quorate)["nightly"]["vmid"] == "102"
        assert jobs(quorate)["nightly"]["enabled"] == 0
        await quorate.facts("backup_job_set", job="nightly", all=True, exclude="router")
        assert jobs(quorate)["nightly"]["all"] == 1
        assert jobs(quorate)["nightly"]["exclude"] == "100"
        assert "vmid" not in jobs(quorate)["nightly"]
        again = await quorate.facts("backup_job_set", job="nightly", schedule="04:00")
        assert again["result"] == "nothing to do"


async def test_the_guests_of_the_next_run_and_what_their_backups_leave_out_are_shown(quorate):
    quorate.sim.world.guests[102].config["scsi1"] = "tank:vm-102-disk-9,size=200G,backup=0"
    facts = await quorate.facts("backup_job_set", schedule="02:00", guest=[102, 202], storage="nas", dry_run=True)
    assert facts["covers"] == ["vm 102 docker01", "ct 202 nextcloud"]
    assert facts["not_included"]["vm 102 docker01"] == ["scsi1 tank:vm-102-disk-9 200G (backup=0)"]
    assert facts["not_included"]["ct 202 nextcloud"] == ["mp0 /data 500G (backup=0)"]
    assert "Parts of 2 guests are in no backup" in facts["warnings"][0]


async def test_a_change_shows_the_guests_of_the_changed_selection(quorate):
    add_job(quorate, vmid="102,103")
    facts = await quorate.facts("backup_job_set", job="nightly", schedule="04:00", dry_run=True)
    assert facts["covers"] == ["vm 102 docker01", "vm 103 docker02"]
    facts = await quorate.facts("backup_job_set", job="nightly", all=True, node="pve3", exclude=[204], dry_run=True)
    assert "lxc" not in str(facts["covers"])
    assert "ct 205 jellyfin" in facts["covers"]
    assert "ct 204 grafana" not in facts["covers"]
    await quorate.facts("pool_set", pool="empty")
    facts = await quorate.facts("backup_job_set", job="nightly", pool="empty", dry_run=True)
    assert facts["covers"] == "no guest"
    assert "covers no guest" in facts["warnings"][0]


async def test_a_tag_is_answered_with_a_pool_the_guests_or_a_timer(quorate):
    text = await quorate.refusal("backup_job_set", schedule="02:00", storage="nas", tag="docker")
    assert "PVE has no backup jobs by tag" in text
    assert "pool_set pool=docker add_guests=[102, 103]" in text
    assert "these are in another: 102 (production), 103 (production)" in text
    assert "guest_bulk action=backup tag=docker" in text
    assert not jobs(quorate)


async def test_the_notes_of_a_job_are_changed_alone(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, vmid="102")
        storage = jobs(quorate)["nightly"]["storage"]
        facts = await quorate.facts("backup_job_set", job="nightly", notes="{{vmid}} by night")
        assert facts["plan"] == "Change backup job nightly: notes-template"
        assert jobs(quorate)["nightly"]["notes-template"] == "{{vmid}} by night"
        assert jobs(quorate)["nightly"]["storage"] == storage


async def test_an_empty_setting_is_taken_out_of_a_job(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, all=1, node="pve1", comment="only here")
        await quorate.facts("backup_job_set", job="nightly", node="", comment="")
        assert not {"node", "comment"} & set(jobs(quorate)["nightly"])


async def test_a_job_with_a_chosen_name_is_created_for_a_pool(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("backup_job_set", job="prod", schedule="daily", pool="production", storage="pbs")
        assert jobs(quorate)["prod"]["pool"] == "production"


async def test_jobs_are_listed_with_what_they_do(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, all=1, exclude="100", **{"prune-backups": "keep-last=3"})
        add_job(quorate, "off", vmid="102,103", enabled=0)
        rows = {row["job"]: row for row in await quorate.rows("backup_job_list")}
        assert rows["nightly"]["guests"] == "all except 100"
        assert rows["nightly"]["keep"] == "last=3"
        assert rows["nightly"]["next_run"] == "2026-01-16T02:00:00Z"
        assert (rows["off"]["enabled"], rows["off"]["guests"]) == (False, "102,103")
        assert not rows["off"].get("next_run")


async def test_a_job_is_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, all=1)
        await quorate.facts("backup_job_delete", job="nightly")
        assert jobs(quorate) == {}
        assert "backup_job_set" in await quorate.refusal("backup_job_delete", job="nightly")


async def test_deleting_a_job_needs_access_admin(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        add_job(quorate, all=1)
        assert "--access admin" in await quorate.refusal("backup_job_delete", job="nightly")
        assert "nightly" in jobs(quorate)


async def test_a_job_is_run_now_on_every_node_that_has_guests_of_it_and_prunes_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, vmid="108,207", enabled=0, **{"prune-backups": "keep-last=1", "notes-template": "{{vmid}}"})
        facts = await quorate.facts("backup_job_run", job="nightly")
        assert facts["result"] == "done"
        assert {108, 207} <= backed_up(quorate)
        await quorate.facts("backup_job_run", job="nightly")
        made = [volume for volume in quorate.sim.world.storages["nas"].volumes("pve1") if volume.vmid == 108]
        assert len([volume for volume in made if volume.content == "backup"]) == 2
        assert {volume.notes for volume in made if volume.content == "backup"} == {"108"}


async def test_a_run_leaves_out_nodes_that_are_offline_and_says_so(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        add_job(quorate, vmid="108,206")
        facts = await quorate.facts("backup_job_run", job="nightly")
        assert "pve3 is offline" in facts["warnings"][0]
        assert 108 in backed_up(quorate)
        assert 206 not in backed_up(quorate)


@pytest.mark.parametrize("cut", ["POST:/cluster/backup", "PUT:/cluster/backup/*", "DELETE:/cluster/backup/*"])
async def test_a_write_whose_answer_is_lost_is_settled_by_looking(tmp_path, cut):
    async with rig(tmp_path, faults=[f"drop:after:{cut}"]) as quorate:
        if cut.startswith("POST"):
            facts = await quorate.facts("backup_job_set", schedule="daily", all=True, storage="nas", job="new")
            assert "new" in jobs(quorate)
        elif cut.startswith("PUT"):
            add_job(quorate, all=1)
            facts = await quorate.facts("backup_job_set", job="nightly", keep="daily=7,last=2")
            assert jobs(quorate)["nightly"]["prune-backups"] == "keep-daily=7,keep-last=2"
        else:
            add_job(quorate, all=1)
            facts = await quorate.facts("backup_job_delete", job="nightly")
            assert jobs(quorate) == {}
        assert "effect was found" in facts["note"]


async def test_contradictions_and_gaps_are_refused_before_anything_is_sent(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, vmid="102")
        add_job(quorate, "pooled", pool="production")
        whole = {"schedule": "daily", "storage": "nas"}
        for arguments, words in (
            ({**whole, "guest": 102, "all": True}, "guest and all cannot be combined"),
            ({**whole, "guest": 102, "exclude": 103}, "exclude cannot be combined with guest"),
            (whole, "needs guests"),
            ({"all": True, "storage": "nas"}, "needs a schedule"),
            ({"all": True, "schedule": "daily"}, "needs a storage"),
            ({**whole, "all": True, "storage": "tank"}, "does not hold backups"),
            ({**whole, "all": True, "storage": "nass"}, "Did you mean 'nas'"),
            ({**whole, "all": True, "keep": "last"}, "is not a retention"),
            ({"job": "nightly"}, "No changes were specified"),
            ({"job": "nightly", "exclude": 103}, "exclude needs all=true"),
            ({**whole, "pool": "production", "exclude": 103}, "PVE ignores exclude for the jobs of a pool"),
            ({"job": "pooled", "exclude": 103}, "PVE ignores exclude for the jobs of a pool"),
        ):
            assert words in await quorate.refusal("backup_job_set", **arguments), words
        add_job(quorate, "empty", pool="nobody")
        assert "covers no guest" in await quorate.refusal("backup_job_run", job="empty")
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_a_schedule_that_pve_cannot_read_is_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("backup_job_set", schedule="now and then", all=True, storage="nas")
        assert "PVE cannot read the schedule 'now and then'. Write 02:00 for every day" in text
        text = await quorate.refusal("backup_job_set", schedule="daily 02:00", all=True, storage="nas", dry_run=True)
        assert "PVE cannot read the schedule" in text
        assert jobs(quorate) == {}


# -- coverage ----------------------------------------------------------------------------------------------------------


async def test_guests_that_no_enabled_job_covers_are_shown_with_their_newest_backup(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, pool="production")
        add_job(quorate, "off", all=1, enabled=0)
        facts = await quorate.facts("backup_coverage")
        rows = {row[0]: dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]}
        assert 102 not in rows
        assert rows[100]["trouble"] == "no job, no backup"
        assert rows[109]["trouble"] == "no job, old backup"
        assert 15 * 86400 <= rows[109]["newest"] < 16 * 86400
        assert rows[103]["trouble"] == "no backup"
        templates = [guest for guest in quorate.sim.world.guests.values() if guest.template]
        assert facts["templates"] == len(templates)
        assert facts["without_job"] == len(quorate.sim.world.guests) - len(templates) - 6
        everything = await quorate.rows("backup_coverage", all=True)
        safe = next(row for row in everything if row["vmid"] == 102)
        assert (safe["jobs"], safe["backups"], safe["where"], safe["trouble"]) == ("nightly", 2, "pbs", "")


async def test_the_product_and_pve_agree_on_what_is_not_backed_up(tmp_path):
    async with rig(tmp_path) as quorate:
        add_job(quorate, all=1, exclude="100,101", node="pve1")
        add_job(quorate, "named", vmid="203,204")
        add_job(quorate, "pooled", pool="production", exclude="103")  # which PVE lets stand, and ignores
        assert quorate.app.cluster is not None
        answer = await quorate.app.cluster.get("/cluster/backup-info/not-backed-up")
        rows = await quorate.rows("backup_coverage", limit=200)
        assert {row["vmid"] for row in rows if "no job" in row["trouble"]} == {row["vmid"] for row in answer}


async def test_hidden_backups_are_not_called_missing(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob,
    ):
        for tool in ("backup_list", "backup_coverage"):
            assert "hidden" not in await quorate.facts(tool)
            assert (await bob.facts(tool))["hidden"] == [
                (
                    "Backups on local, nas, pbs are hidden: that needs Datastore.AllocateSpace on "
                    "/storage/local, /storage/nas, /storage/pbs, and VM.Backup on /vms"
                )
            ]
        facts = await bob.facts("backup_coverage")
        assert facts["without_backup"] == 0
        assert facts["no_backup_seen"] == len(facts["rows"])
        assert {row[-1].removesuffix(", not all data") for row in facts["rows"]} == {"no job, no backup seen"}


async def test_backups_of_guests_that_may_not_be_backed_up_are_hidden_too(tmp_path):
    async with (
        rig(tmp_path) as quorate,
        second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob,
    ):
        access = quorate.sim.world.access
        for holder in ("bob@pve", "bob@pve!monitor"):
            access.grant("/storage", "PVEDatastoreUser", holder)
            access.grant("/vms/100", "PVEVMAdmin", holder)
            access.grant("/vms/102", "PVEVMAdmin", holder)
        rows = {row["vmid"]: row for row in await bob.rows("backup_coverage", all=True)}
        assert rows[100]["trouble"] == "no job, no backup"
        assert rows[101]["trouble"] == "no job, no backup seen"
        assert rows[102]["backups"] == 2
        assert (await bob.facts("backup_list", guest=103))["hidden"] == [
            "Backups of 1 guest are hidden: that needs VM.Backup on /vms"
        ]
        assert "hidden" not in await bob.facts("backup_list", guest=100)
