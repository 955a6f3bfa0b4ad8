"""What a backup leaves out, and why one failed, is said wherever someone could think that all is well."""

from __future__ import annotations

import pytest

from pve_simulator.storage.backup_jobs import BackupJobs
from quorate.pve.backups import describe_failed_backups, excluded_volumes, failed_backups
from tests.rigs.mcp_session import rig
from tests.watch.conftest import watching

pytestmark = pytest.mark.anyio

DATA = "mp0 /data 500G (backup=0)"


async def test_a_mount_point_without_backup_is_named_by_every_tool(tmp_path):
    async with rig(tmp_path) as quorate:
        jobs = quorate.sim.world.part(BackupJobs)
        jobs.add(
            "nightly",
            {"all": 1, "exclude": "100", "schedule": "01:00", "storage": "pbs", "exclude-path": ["/var/cache"]},
        )
        made = await quorate.facts("backup_create", guest=202, storage="nas", dry_run=True)
        assert made["not_included"] == {"ct 202 nextcloud": [DATA]}
        done = await quorate.facts("backup_create", guest=202, storage="nas")
        assert done["not_included"] == made["not_included"]
        assert (await quorate.facts("guest_get", guest=202))["not_included"] == [DATA]
        assert "not_included" not in await quorate.facts("guest_get", guest=102)
        rows = {row["vmid"]: row for row in await quorate.rows("backup_coverage", all=True)}
        assert rows[202]["not_included"] == f"{DATA}; /var/cache (exclude-path of job nightly)"
        assert rows[202]["trouble"] == "not all data"
        assert "no job (excluded by nightly)" in rows[100]["trouble"]
        health = [row["finding"] for row in await quorate.rows("cluster_health") if row["area"] == "backups"]
        assert any(f"202 nextcloud without {DATA}" in finding for finding in health)


async def test_the_health_report_and_the_coverage_count_the_same(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.part(BackupJobs).add("some", {"pool": "production", "schedule": "01:00", "storage": "pbs"})
        facts = await quorate.facts("backup_coverage")
        health = " ".join(row["finding"] for row in await quorate.rows("cluster_health"))
        assert f"No backup job covers {facts['without_job']} guests" in health
        assert f"{facts['without_backup']} guests have no backup" in health
        assert f"Backups of {facts['not_all_data']} guest" in health


async def test_settings_are_read_of_guests_that_pves_lists_leave_open(tmp_path):
    """A directory of the node that a VM shares is in none of the lists; nor is a guest without a job."""
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        world.part(BackupJobs).add("nightly", {"all": 1, "exclude": "202", "schedule": "01:00", "storage": "pbs"})
        await quorate.write("POST", "/cluster/mapping/dir", {"id": "media", "map": "node=pve1,path=/mnt"})
        world.guests[102].config["virtiofs0"] = "dirid=media"
        rows = {row["vmid"]: row for row in await quorate.rows("backup_coverage", all=True)}
        assert rows[102]["not_included"] == "virtiofs0 media (a directory of the node, never in a backup)"
        assert rows[202]["not_included"] == DATA
        assert "excluded by nightly" in rows[202]["trouble"]


async def test_the_drill_says_what_a_backup_that_works_does_not_hold(tmp_path):
    async with rig(tmp_path, in_memory=True) as quorate:
        made = await quorate.facts("backup_create", guest=202, storage="nas")
        (backup,) = (text.partition(" (")[0] for text in made["backups"].values())
        assert (await quorate.facts("backup_show", backup=backup))["not_included"] == [DATA]
        plan = await quorate.facts("run_restore_drill", backups=[backup], dry_run=True)
        assert plan["not_included"] == {backup: [DATA]}
        started = await quorate.facts("run_restore_drill", backups=[backup])
        await quorate.app.runs.work()
        run = await quorate.facts("run_get", run=started["run"])
        (row,) = run["report"]["backups"].values()
        assert (row["verdict"], row["not_included"]) == ("passed, without all data", [DATA])
        assert row["why"] == f"it does not hold {DATA}"
        assert run["reason"] == "1 of 1 backups proved, 1 without all data"
        (covered,) = [row for row in await quorate.rows("backup_coverage", all=True) if row["vmid"] == 202]
        assert "ago" in covered["proved"]
        assert "not all data" in covered["trouble"]


async def test_a_failed_backup_says_why_everywhere(tmp_path):
    async with watching(tmp_path) as watched:
        quorate, cause = watched.quorate, "No space left on device"
        nas = quorate.sim.world.storages["nas"].space("pve1")
        nas.base_used = nas.total - nas.volumes_used
        refusal = await quorate.refusal("backup_create", guest=[102, 203], storage="nas")
        assert cause in refusal
        rows = await quorate.rows("task_list", type="vzdump", status="failed")
        task = rows[0]["task"]
        for tool in ("task_get", "task_wait"):
            facts = await quorate.facts(tool, task=task)
            assert facts["exit"] == "job errors"
            assert cause in facts["cause"]
        health = [row["finding"] for row in await quorate.rows("cluster_health") if row["area"] == "tasks"]
        assert any(cause in finding for finding in health), health
        await watched.cycle()
        failed = [row["finding"] for row in await watched.rows() if row["finding"].startswith("The backup of guest")]
        assert len(failed) == 2
        assert all(cause in finding for finding in failed), failed


RECORDED = """\
INFO: starting new backup job: vzdump 212 --mode stop --node pve1 --compress 0 --storage q2small
INFO: Starting Backup of VM 212 (lxc)
INFO: creating vzdump archive '/mnt/q2small/dump/vzdump-lxc-212-2026_11_18-04_17_05.tar'
INFO: Total bytes written: 41943040 (40MiB, ?/s)
INFO: tar: -: Cannot write: No space left on device
INFO: tar: Error is not recoverable: exiting now
INFO: restarting vm
ERROR: Backup of VM 212 failed - command 'set -o pipefail && tar cpf - ./ >/mnt/x.dat' failed: exit code 2
INFO: Starting Backup of VM 213 (lxc)
INFO: Error: permission check failed
ERROR: Backup of VM 213 failed - command '/usr/bin/proxmox-backup-client backup' failed: exit code 255
ERROR: Backup of VM 999 failed - unable to find VM '999'
INFO: Backup job finished with errors
ERROR: could not notify via target `mail-to-root`: no recipients provided for the mail, cannot send it.
TASK ERROR: job errors"""


def test_the_log_says_why_the_backup_of_each_guest_failed():
    assert failed_backups(RECORDED.splitlines()) == {
        212: "tar: -: Cannot write: No space left on device",
        213: "Error: permission check failed",
        999: "unable to find VM '999'",
    }
    assert describe_failed_backups(RECORDED.splitlines()[:8]) == "tar: -: Cannot write: No space left on device"
    assert describe_failed_backups(["TASK ERROR: got timeout"]) == ""


async def test_what_backups_leave_out_costs_a_request_for_each_job_and_not_for_each_guest(tmp_path):
    async with rig(tmp_path, guests=500) as quorate:
        quorate.sim.world.part(BackupJobs).add("nightly", {"all": 1, "schedule": "01:00", "storage": "nas"})
        mark = len(quorate.sim.requests)
        facts = await quorate.facts("backup_coverage")
        reads = quorate.requests_since(mark)
        assert facts["guests"] >= 500
        assert [path for _, path in reads if path.endswith("/config")] == []
        assert len(reads) < 20


@pytest.mark.parametrize(
    ("config", "is_vm", "excluded"),
    [
        ({"scsi0": "tank:vm-1-disk-0,size=8G", "scsi1": "tank:vm-1-disk-1,backup=0,size=9G"}, True,
         ["scsi1 tank:vm-1-disk-1 9G (backup=0)"]),
        ({"ide2": "local:iso/a.iso,media=cdrom", "virtiofs0": "media,cache=auto"}, True,
         ["virtiofs0 media (a directory of the node, never in a backup)"]),
        ({"rootfs": "tank:1,size=8G", "mp0": "/tank/media,mp=/media", "mp1": "tank:2,mp=/srv,backup=1"}, False,
         ["mp0 /media (/tank/media of the node, never in a backup)"]),
    ],
)  # fmt: skip
def test_what_pve_leaves_out_follows_its_rules(config, is_vm, excluded):
    assert excluded_volumes(config, is_vm=is_vm) == excluded
