"""What a backup leaves out is said wherever someone could think that it holds everything."""

from __future__ import annotations

import pytest

from pve_simulator.storage.backup_jobs import BackupJobs
from quorate.pve.backup_contents import excluded_volumes
from tests.rigs.mcp_session import rig

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
