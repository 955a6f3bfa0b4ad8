"""Backup jobs: schedules, selections, and guests that no job includes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pve_schema.calendar_events import calendar_errors, parse_calendar_event
from pve_simulator.api_client import Api


async def test_a_job_is_created_shown_changed_and_removed(api: Api) -> None:
    created = await api.post(
        "/cluster/backup",
        schedule="02:00",
        vmid="101,102",
        storage="nas",
        comment="nightly",
        **{"prune-backups": "keep-last=3"},
    )
    assert created.data is None
    job = (await api.get("/cluster/backup")).data[0]
    assert job["type"] == "vzdump"
    assert job["enabled"] == 1
    assert job["prune-backups"] == {"keep-last": "3"}
    assert datetime.fromtimestamp(job["next-run"], UTC).strftime("%d %H:%M") == "16 02:00"
    path = f"/cluster/backup/{job['id']}"
    assert (await api.put(path, all=1, exclude="100", enabled=0, delete="comment")).data is None
    changed = (await api.get(path)).data
    assert (changed["all"], changed["exclude"], changed["enabled"]) == (1, "100", 0)
    assert not {"vmid", "comment", "next-run"} & set(changed)
    assert (await api.delete(path)).data is None
    assert (await api.get(path)).errors == {"id": f"No such job '{job['id']}'"}
    again = await api.delete(path)
    assert (again.status, again.body["message"].splitlines()[1]) == (500, f"id: No such job '{job['id']}'")


async def test_a_job_for_a_pool_knows_no_exceptions(api: Api) -> None:
    job_options = {"id": "pooled", "schedule": "02:00", "storage": "nas", "pool": "production", "exclude": "103"}
    assert (await api.post("/cluster/backup", **job_options)).data is None
    tree = (await api.get("/cluster/backup/pooled/included_volumes")).data
    assert 103 in {guest["id"] for guest in tree["children"]}
    assert (await api.put("/cluster/backup/pooled", exclude="102")).data is None
    job = (await api.get("/cluster/backup/pooled")).data
    assert job["pool"] == "production"
    assert "exclude" not in job


async def test_the_old_way_of_saying_when_still_works(api: Api) -> None:
    await api.post("/cluster/backup", id="weekend", starttime="04:30", dow="sat,sun", all=1, storage="nas")
    job = (await api.get("/cluster/backup/weekend")).data
    assert job["schedule"] == "sat,sun 04:30"
    again = await api.post("/cluster/backup", id="weekend", schedule="05:00", all=1, storage="nas")
    assert again.reason == "Job 'weekend' already exists"


async def test_included_volumes_show_which_disks_are_backed_up_and_why(api: Api) -> None:
    await api.post("/cluster/backup", id="nightly", schedule="daily", vmid="202,9000,777", storage="pbs")
    tree = (await api.get("/cluster/backup/nightly/included_volumes")).data
    guests = {guest["id"]: guest for guest in tree["children"]}
    disks = {disk["id"]: disk for disk in guests[202]["children"]}
    assert (disks["202:rootfs"]["included"], disks["202:rootfs"]["reason"]) == (1, "rootfs")
    assert (disks["202:mp0"]["included"], disks["202:mp0"]["reason"]) == (0, "disabled")
    assert [disk["id"] for disk in guests[9000]["children"]] == ["9000:scsi0"]
    assert guests[777]["type"] == "unknown"


async def test_guests_without_a_job_are_listed(api: Api) -> None:
    path = "/cluster/backup-info/not-backed-up"
    everyone = (await api.get(path)).data
    assert {"vmid": 200, "name": "pihole", "type": "lxc"} in everyone
    await api.post("/cluster/backup", schedule="daily", pool="production", storage="pbs")
    left = {row["vmid"] for row in (await api.get(path)).data}
    assert not left & {101, 102, 103, 201, 202, 203}
    await api.post("/cluster/backup", schedule="daily", all=1, node="pve1", storage="pbs")
    nodes = {api.cluster.world.guests[row["vmid"]].node for row in (await api.get(path)).data}
    assert nodes == {"pve2", "pve3"}
    await api.post("/cluster/backup", schedule="daily", all=1, storage="pbs")
    assert (await api.get(path)).data == []
    assert (await api.get("/cluster/backup-info")).status == 403


async def test_jobs_need_a_privilege_on_the_system(api: Api) -> None:
    bob = api.as_token("bob@pve!monitor")
    assert (await bob.get("/cluster/backup")).data == []
    reply = await bob.post("/cluster/backup", schedule="daily", all=1, storage="nas")
    assert reply.reason == "Permission check failed (/, Sys.Modify)"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("02:00", "2026-01-16 02:00:00"),
        ("*/15", "2026-01-15 08:15:00"),
        ("22:30", "2026-01-15 22:30:00"),
        ("sat 18:15", "2026-01-17 18:15:00"),
        ("mon..fri 8..17,22:0/15", "2026-01-15 08:15:00"),
        ("monthly", "2026-02-01 00:00:00"),
        ("*-1/7 15:00", "2026-01-15 15:00:00"),
        ("2027-3-2", "2027-03-02 00:00:00"),
        ("sun", "2026-01-18 00:00:00"),
        ("hourly", "2026-01-15 09:00:00"),
        ("8:00:30", "2026-01-15 08:00:30"),
    ],
)
def test_the_next_time_of_a_schedule(schedule: str, expected: str) -> None:
    now = datetime(2026, 1, 15, 8, 0, 0, tzinfo=UTC).timestamp()
    upcoming = parse_calendar_event(schedule).next_after(now)
    assert upcoming is not None
    assert datetime.fromtimestamp(upcoming, UTC).strftime("%Y-%m-%d %H:%M:%S") == expected


@pytest.mark.parametrize(
    "text", ["", "whenever", "25:00", "10:99", "fri..mon 10:00", "1:2:3:4", "*/0", "a b c", "13-1"]
)
def test_what_is_no_schedule(text: str) -> None:
    assert calendar_errors(text)
