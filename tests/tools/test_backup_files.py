"""One file back out of a backup: what is in it, where the file goes, and what is refused."""

from __future__ import annotations

import hashlib
import tomllib
from typing import Any

import pytest

from pve_simulator.pbs.archives import Entry
from quorate.config import Access, Approval
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.simulated_guests import files

pytestmark = pytest.mark.anyio

VM, CONTAINER = 102, 203
CONFIG = "listen_addresses = 'localhost'\n"
INSIDE_DISK = "/drive-scsi0.img.fidx/part/1"


async def back_up(quorate: Rig, guest: int, path: str, content: str) -> str:
    """Write a file, back the guest up, lose the file; returns the backup."""
    files(quorate, guest).make_directories(path.rpartition("/")[0])
    files(quorate, guest).add(path, content)
    done = await quorate.facts("backup_create", guest=guest, storage="pbs")
    files(quorate, guest).add(path, "broken\n")
    return str(done["backups"][str(guest)].partition(" (")[0])


@pytest.mark.parametrize(
    ("guest", "top"), [(CONTAINER, ""), (VM, INSIDE_DISK)], ids=["container by pct", "vm by the agent"]
)
async def test_a_file_comes_back_into_the_guest_under_a_new_name(tmp_path, guest, top):
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, guest, "/etc/app/main.conf", CONFIG)
        rows = await quorate.rows("backup_files", backup=backup, path=f"{top}/etc/app")
        assert [(row["name"], row["type"], row["size"]) for row in rows] == [("main.conf", "file", len(CONFIG))]
        done = await quorate.facts("backup_file_restore", backup=backup, path=f"{top}/etc/app/main.conf")
        assert done["to"] == "/etc/app/main.conf.restored-2026-01-15"
        assert done["sha256"] == hashlib.sha256(CONFIG.encode()).hexdigest()
        restored = files(quorate, guest).get(done["to"])
        assert (restored.read(), restored.mode) == (CONFIG.encode(), 0o600)
        assert files(quorate, guest).read("/etc/app/main.conf") == b"broken\n"


async def test_the_top_of_a_backup_shows_disks_of_a_vm_and_folders_of_a_container(tmp_path):
    async with rig(tmp_path) as quorate:
        vm, container = [f"pbs:backup/{which}/2026-01-14T01:00:05Z" for which in ("vm/102", "ct/203")]
        assert [(row["name"], row["type"]) for row in await quorate.rows("backup_files", backup=vm)] == [
            ("drive-scsi0.img.fidx", "disk")
        ]
        names = {row["name"]: row["type"] for row in await quorate.rows("backup_files", backup=container)}
        assert names["etc"] == "folder"
        assert names["bin"] == "link"
        facts = await quorate.facts("backup_files", backup=container, path="/etc/hostname")
        assert [row[:2] for row in facts["rows"]] == [["hostname", "file"]]
        assert "begins with a disk" in await quorate.refusal("backup_files", backup=vm, path="/etc")
        missing = await quorate.refusal("backup_files", backup=container, path="/etc/hostnam")
        assert "There is hostname" in missing


async def test_no_file_in_a_backup_is_newer_than_the_backup(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("backup_files", backup="newest:postgres", path="/etc")
        assert facts["rows"]
        assert all(row[3] <= facts["made"] for row in facts["rows"] if len(row) > 3 and row[3])


async def test_the_original_is_replaced_only_by_a_call_that_needs_admin_and_a_person(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, CONTAINER, "/etc/app.conf", CONFIG)
        call: dict[str, Any] = {"backup": backup, "path": "/etc/app.conf", "to": "/etc/app.conf"}
        assert "already exists" in await quorate.refusal("backup_file_restore", **call)
        assert "Give to" in await quorate.refusal(
            "backup_file_restore", backup=backup, path="/etc/app.conf", overwrite=True
        )
        planned = await quorate.facts("backup_file_restore", **call, dry_run=True)
        assert planned["steps"][0]["step"].endswith("to /etc/app.conf on ct 203 postgres, unless something is there")
        planned = await quorate.facts("backup_file_restore", **call, overwrite=True, dry_run=True)
        assert planned["lost"] == ["ct 203 postgres: /etc/app.conf, if it exists: what it contains now"]
        await quorate.facts("backup_file_restore", **call, overwrite=True)
        assert files(quorate, CONTAINER).read("/etc/app.conf") == CONFIG.encode()
        assert quorate.audit()[-1]["risk"] == "destroy"
    async with rig(tmp_path, access=Access.OPERATE, approval=Approval.ASK) as quorate:
        assert "needs admin" in await quorate.refusal("backup_file_restore", **call, overwrite=True, dry_run=True)


async def test_a_folder_comes_back_as_one_archive(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, CONTAINER, "/etc/app/main.conf", CONFIG)
        done = await quorate.facts("backup_file_restore", backup=backup, path="/etc/app")
        assert done["to"] == "/etc/app.restored-2026-01-15.tar.zst"
        assert CONFIG.encode() in files(quorate, CONTAINER).read(done["to"])


async def test_a_file_is_saved_on_this_machine_once_and_never_over_another(tmp_path):
    async with rig(tmp_path) as quorate:
        backup = await back_up(quorate, CONTAINER, "/etc/app.conf", CONFIG)
        target = tmp_path / "app.conf"
        call = {"backup": backup, "path": "/etc/app.conf", "file": str(target)}
        planned = await quorate.facts("backup_file_restore", **call, dry_run=True)
        assert planned["file"] == str(target)
        assert not target.exists()
        await quorate.facts("backup_file_restore", **call)
        assert target.read_text() == CONFIG
        assert target.stat().st_mode & 0o777 == 0o600
        assert "already exists" in await quorate.refusal("backup_file_restore", **call)
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        assert "already exists" in await quorate.refusal(
            "backup_file_restore", **{**call, "file": str(tmp_path / "link")}
        )


async def test_what_cannot_be_restored_alone_says_why_and_what_to_do(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, CONTAINER, "/etc/app.conf", CONFIG)

        async def refusal(path: str, **more: Any) -> str:
            return await quorate.refusal("backup_file_restore", **{"backup": backup, "path": path, **more})

        assert "is not in" in await refusal("/etc/nothing")
        assert "is a link" in await refusal("/bin")
        assert "whole archive" in await refusal("/")
        assert "not a path" in await refusal("/etc/../etc/passwd")
        assert "looks only into backups on a Proxmox Backup Server" in await refusal(
            "/etc/app.conf", backup="nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
        )
        files(quorate, CONTAINER).add("/var/big", b"x" * (17 << 20))
        large = await quorate.facts("backup_create", guest=CONTAINER, storage="pbs")
        refused = await refusal("/var/big", backup=large["backups"][str(CONTAINER)].partition(" (")[0])
        assert "at most 16" in refused
        assert "backup_restore" in refused
        quorate.sim.world.nodes["pve1"].has_restore_image = False
        vm = "pbs:backup/vm/102/2026-01-14T01:00:05Z"
        refused = await quorate.refusal("backup_files", backup=vm, path=f"{INSIDE_DISK}/etc", node="pve1")
        assert "apt install proxmox-backup-restore-image" in refused


async def test_a_download_that_brings_nothing_is_a_failure(tmp_path):
    """PVE answers 200 with an empty body when something goes wrong on the way."""
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, CONTAINER, "/etc/app.conf", CONFIG)
        volume = quorate.sim.world.storages["pbs"].volume("pve2", backup)
        assert volume is not None
        volume.damaged = True
        refused = await quorate.refusal("backup_file_restore", backup=backup, path="/etc/app.conf")
        assert f"PVE sent 0 of the {len(CONFIG)} bytes" in refused
        assert files(quorate, CONTAINER).find("/etc/app.conf.restored-2026-01-15") is None


async def test_a_hard_link_that_comes_without_its_content_is_a_failure(tmp_path):
    """The listing has no size of a hard link, so nothing would look like an empty file."""
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, CONTAINER, "/etc/app.conf", CONFIG)
        volume = quorate.sim.world.storages["pbs"].volume("pve2", backup)
        assert volume is not None
        assert volume.archive is not None
        assert volume.archive.files is not None
        volume.archive.files.children["etc"].children["app.link"] = Entry("hardlink")
        rows = {row["name"]: row["type"] for row in await quorate.rows("backup_files", backup=backup, path="/etc")}
        assert rows["app.link"] == "hard link"
        refused = await quorate.refusal("backup_file_restore", backup=backup, path="/etc/app.link")
        assert "It is a hard link: its content is under the other name of the same file" in refused
        assert files(quorate, CONTAINER).find("/etc/app.link.restored-2026-01-15") is None


async def test_a_folder_of_which_only_a_part_comes_is_a_failure(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, CONTAINER, "/etc/app/main.conf", CONFIG)
        volume = quorate.sim.world.storages["pbs"].volume("pve2", backup)
        assert volume is not None
        volume.damaged = True
        refused = await quorate.refusal("backup_file_restore", backup=backup, path="/etc/app")
        assert "PVE sent nothing of /etc/app" in refused
        assert "blob crc check failed" in refused


@pytest.mark.parametrize("where", ["part/2", "zpool/rpool", "lvm/vg0/root", "raw"])
async def test_the_new_name_of_a_file_is_below_the_file_system_that_it_was_in(tmp_path, where):
    async with rig(tmp_path, ssh=True) as quorate:
        backup = await back_up(quorate, VM, "/etc/app/main.conf", CONFIG)
        volume = quorate.sim.world.storages["pbs"].volume("pve1", backup)
        assert volume is not None
        volume.file_system = where
        disk = "/drive-scsi0.img.fidx"
        rows = await quorate.rows("backup_files", backup=backup, path=f"{disk}/{where}/etc/app")
        assert [row["name"] for row in rows] == ["main.conf"]
        done = await quorate.facts("backup_file_restore", backup=backup, path=f"{disk}/{where}/etc/app/main.conf")
        assert done["to"] == "/etc/app/main.conf.restored-2026-01-15"
        assert "is a disk" in await quorate.refusal("backup_file_restore", backup=backup, path=f"{disk}/{where}")


async def test_a_rule_about_a_guest_protects_the_files_in_its_backups(tmp_path):
    rules = '[[rules]]\nname = "sealed"\ndeny = "look_inside"\nvmids = [203]\n'
    async with rig(
        tmp_path, ssh=True, more={"policy": read_policy(tomllib.loads(rules), Source(Rank.TOML))}
    ) as quorate:
        backup = "pbs:backup/ct/203/2026-01-14T01:00:05Z"
        assert "There is no volume" in await quorate.refusal("backup_files", backup=backup)
        into_another = {"backup": backup, "path": "/etc/hostname", "guest": VM}
        assert "refused by the rule 'sealed'" in await quorate.refusal("backup_file_restore", **into_another)
        assert files(quorate, VM).find("/etc/hostname.restored-2026-01-14") is None
