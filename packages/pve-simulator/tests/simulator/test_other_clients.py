"""What clients of other projects met on a real PVE: each was once different here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pve_simulator.api_client import Api, Reply
from pve_simulator.storage.storages import Volume
from simulator.guest_steps import CT, TEMPLATE, VM, config, create_container, create_vm, log_of

_RUNNING = {
    "balloon", "ballooninfo", "blockstat", "diskread", "diskwrite", "freemem", "nics", "proxmox-support",
    "running-machine", "running-qemu",
}  # fmt: skip


async def form(api: Api, method: str, path: str, body: str) -> Reply:
    """A form that is sent as written."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return await api.request(method, path, data=body.encode(), headers=headers)


async def current(api: Api, vmid: int) -> dict[str, Any]:
    status: dict[str, Any] = (await api.get(f"{VM}/{vmid}/status/current")).data
    return status


async def test_a_container_runs_long_before_its_start_task_ends(api: Api) -> None:
    settings = {"vmid": 500, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4", "features": "nesting=1", "start": 1}
    created = await api.post(CT, **settings)
    while (await api.task(created.data))["status"] == "running":
        await api.clock.advance(0.1)
    await api.clock.advance(0.3)
    (start,) = api.cluster.world.tasks.active(kind="vzstart")
    assert (await api.get(f"{CT}/500/status/current")).data["status"] == "running"
    assert (await api.post(f"{CT}/500/status/start")).reason == "CT 500 already running"
    await api.clock.advance(10)
    assert start.exitstatus == "OK"


@pytest.mark.parametrize(
    ("release", "systemd"), [("debian-13", 257), ("debian-12", 252), ("ubuntu-24.04", 255), ("alpine-3.22", None)]
)
async def test_a_container_without_nesting_gets_a_warning_about_its_systemd(
    api: Api, release: str, systemd: int | None
) -> None:
    world = api.cluster.world
    template = f"local:vztmpl/{release}-standard_1_amd64.tar.zst"
    world.storages["local"].add("pve1", Volume(template, "vztmpl", "tzst", 1 << 20, 1 << 20, 0))
    line = f"WARN: Systemd {systemd} detected. You may need to enable nesting."
    expected = "OK" if systemd is None else "WARNINGS: 1"

    async def run(reply: Reply) -> tuple[str, bool]:
        return await api.finish_task(reply), line in log_of(api, reply)

    create = {"vmid": 500, "ostemplate": template, "rootfs": "local-lvm:4"}
    assert await run(await api.post(CT, **create)) == (expected, systemd is not None)
    for path, params in (("clone", {"newid": 501}), ("status/start", {}), ("status/reboot", {})):
        assert await run(await api.post(f"{CT}/500/{path}", **params)) == (expected, systemd is not None)
    await api.finish_task(await api.post("/nodes/pve1/vzdump", vmid=500, storage="local", mode="stop"))
    (archive,) = (await api.get("/nodes/pve1/storage/local/content", content="backup", vmid=500)).data
    restored = await api.post(CT, vmid=502, ostemplate=archive["volid"], restore=1, storage="local-lvm")
    assert await run(restored) == ("OK", False)
    assert await create_container(api, 503, ostemplate=template, features="nesting=1") == "OK"


async def test_a_disabled_backup_job_still_says_when_it_would_run(api: Api) -> None:
    await api.post("/cluster/backup", id="nightly", schedule="02:00", vmid=102, storage="local", enabled=0)
    (job,) = [job for job in (await api.get("/cluster/backup")).data if job["id"] == "nightly"]
    assert job["enabled"] == 0
    assert job["next-run"] > api.clock.now()


async def test_empty_options_are_not_stored(api: Api) -> None:
    await api.post("/cluster/backup", id="nightly", schedule="02:00", vmid=102, storage="local", comment="", mailto="")
    assert {"comment", "mailto"}.isdisjoint((await api.get("/cluster/backup/nightly")).data)
    await api.put("/cluster/backup/nightly", comment="set")
    await api.put("/cluster/backup/nightly", comment="")
    assert "comment" not in (await api.get("/cluster/backup/nightly")).data


async def test_of_an_ha_rule_or_resource_only_strict_is_stored_when_off(api: Api) -> None:
    rule = {"type": "node-affinity", "resources": "vm:101", "nodes": "pve1", "comment": "", "disable": 0, "strict": 0}
    assert (await api.post("/cluster/ha/rules", rule="here", **rule)).status == 200
    stored = (await api.get("/cluster/ha/rules/here")).data
    assert {"comment", "disable"}.isdisjoint(stored)
    assert stored["strict"] == 0
    await api.post("/cluster/ha/resources", sid="vm:108", comment="")
    assert "comment" not in (await api.get("/cluster/ha/resources/vm:108")).data
    await api.put("/cluster/ha/rules/here", type="node-affinity", disable=1)
    await api.put("/cluster/ha/rules/here", type="node-affinity", disable=0)
    assert "disable" not in (await api.get("/cluster/ha/rules/here")).data


async def test_the_full_list_has_what_only_running_machines_report(api: Api) -> None:
    rows = {row["vmid"]: row for row in (await api.get(VM, full=1)).data}
    plain = {row["vmid"]: row for row in (await api.get(VM)).data}
    assert rows[102].keys() >= _RUNNING
    assert rows[102]["blockstat"].keys() == (await current(api, 102))["blockstat"].keys()
    assert _RUNNING.isdisjoint(rows[108].keys() | plain[102].keys())


async def test_without_a_balloon_nothing_reports_about_one(api: Api) -> None:
    await create_vm(api, balloon=0, memory=512, start=1)
    status = await current(api, 500)
    assert status["status"] == "running"
    assert {"balloon", "ballooninfo", "freemem"}.isdisjoint(status)


@pytest.mark.parametrize(
    ("display", "clipboard", "spice"), [("std", None, None), ("std,clipboard=vnc", "vnc", None), ("qxl", None, 1)]
)
async def test_a_configured_display_shows_its_clipboard(
    api: Api, display: str, clipboard: str | None, spice: int | None
) -> None:
    await create_vm(api, vga=display)
    status = await current(api, 500)
    assert "clipboard" in status
    assert (status["clipboard"], status.get("spice")) == (clipboard, spice)
    assert "clipboard" not in await current(api, 108)


async def test_the_size_of_an_iso_is_counted_in_whole_sectors(api: Api) -> None:
    image = Volume("local:iso/odd.iso", "iso", "iso", 72_900, 72_900, 0)
    api.cluster.world.storages["local"].add("pve1", image)
    await create_vm(api, ide2="local:iso/odd.iso,media=cdrom")
    assert (await config(api, f"{VM}/500"))["ide2"] == "local:iso/odd.iso,media=cdrom,size=73216"
    (disk,) = (await api.get(f"{VM}/500/migrate")).data["local_disks"]
    assert disk["size"] == 73_216


async def test_a_disk_without_reads_was_never_idle(api: Api) -> None:
    await create_vm(api, scsi0="local-lvm:4", scsi1="local-lvm:4", boot="order=scsi0", start=1)
    await api.clock.advance(60)
    blocks = (await current(api, 500))["blockstat"]
    assert "idle_time_ns" in blocks["scsi0"]
    assert "idle_time_ns" not in blocks["scsi1"]
    assert blocks["scsi1"]["rd_operations"] == 0


async def test_a_form_is_split_at_every_equals_sign(api: Api) -> None:
    assert (await form(api, "PUT", f"{VM}/108/config", "description=a=b")).status == 200
    assert (await config(api, f"{VM}/108"))["description"] == "a"
    refused = await form(api, "PUT", "/storage/local", "prune-backups=keep-last=2")
    assert refused.status == 400
    assert list(refused.errors) == ["prune-backups"]
    assert (await form(api, "PUT", "/storage/local", "prune-backups=keep-last%3D2")).status == 200


async def test_a_key_without_value_leaves_the_stored_value_alone(api: Api) -> None:
    await api.put(f"{VM}/108/config", description="kept")
    assert (await form(api, "PUT", f"{VM}/108/config", "description&cores=3")).status == 200
    stored = await config(api, f"{VM}/108")
    assert (stored["description"], stored["cores"]) == ("kept", 3)
    assert list((await form(api, "PUT", f"{VM}/108/config", "unheard-of&cores=3")).errors) == ["unheard-of"]


async def test_null_is_not_a_value_of_an_option(api: Api) -> None:
    refused = await api.request("PUT", f"{VM}/108/config", json={"balloon": None, "cores": 2})
    assert (refused.status, refused.reason) == (500, "unable to parse value of 'balloon' - got undefined value")


async def test_the_text_of_an_unknown_path_keeps_its_double_slashes(api: Api) -> None:
    unknown = await api.request("GET", "/nodes//pve1//nothing")
    assert (unknown.status, unknown.reason) == (501, "Method 'GET /nodes//pve1//nothing' not implemented")
    assert (await api.request("GET", "//nodes//pve1/version")).status == 200


async def test_a_clone_waits_until_the_container_is_a_template(api: Api) -> None:
    await api.put("/storage/local", content="iso,vztmpl,backup,snippets,rootdir")
    assert await create_container(api, rootfs="local:4") == "OK"
    await api.post(f"{CT}/500/template")
    asked = asyncio.ensure_future(api.post(f"{CT}/500/clone", newid=501))
    await api.clock.advance(2)
    assert (await asked).reason == "Linked clone feature for 'local:500/base-500-disk-0.raw' is not available"
