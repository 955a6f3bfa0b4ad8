"""The administration account, on real systems with accounts of their own."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorate.config import Approval
from tests.rigs.homelab import house_with
from tests.rigs.mcp_session import Rig
from tests.rigs.own_system import OwnSystem, own_system

pytestmark = pytest.mark.anyio
PASSWORD = "correct horse"
HASH = "$6$quoratetest$Um.hGPzJ40I3bn5.y/N.0GdNPA2.cX4Rz3KN8NhPMgW1F8X3/FBZCUrv09sJV7m7m6RA67YmfleGQciPa76gl/"


@asynccontextmanager
async def standing(tmp_path, *, options: Any = None, **system: Any) -> AsyncIterator[tuple[Rig, OwnSystem]]:
    async with own_system(tmp_path / "box", **system) as box, house_with(box, tmp_path, **(options or {})) as built:
        yield built.quorate, box


@pytest.mark.parametrize("busybox", [False, True])
async def test_an_account_is_made_used_and_taken_away_again(tmp_path, busybox):
    async with standing(tmp_path, busybox=busybox) as (quorate, box):
        before = box.accounts()
        assert "no key" in await quorate.refusal("host_admin_verify", host="box")
        facts = await quorate.facts("host_admin_setup", host="box")
        assert facts["verified"]["logged_in_as"] == "quorate"
        assert facts["verified"]["sudo"] == "without a password"
        assert {"docker", "kvm"} <= set(facts["verified"]["groups"])
        assert box.accounts() == before | {"quorate"}
        rule = box.folder / "etc/sudoers.d/quorate"
        comment, rules = rule.read_text().split("\n", 1)
        assert comment.startswith("# Made by Quorate")
        rule.write_text(f"# Made by Quorate, as an older version put it.\n{rules}")
        again = await quorate.facts("host_admin_setup", host="box")
        assert "steps" not in again
        assert "account quorate" in str(again["unchanged"])
        assert (await quorate.facts("host_admin_verify", host="box"))["sudo"] == "without a password"

        (box.folder / "home/quorate/work").write_text("mine")
        removed = await quorate.facts("host_admin_remove", host="box")
        assert box.accounts() == before
        assert box.text("home/quorate/work") == "mine"
        assert "the home directory /home/quorate" in removed["left"]
        assert not list((box.folder / "etc/sudoers.d").iterdir())
        assert "quorate" not in str(box.members("docker"))
        assert box.text("home/quorate/.ssh/authorized_keys") == ""
        assert "Nothing of quorate" in str(await quorate.facts("host_admin_remove", host="box"))
        gone = await quorate.refusal("host_admin_verify", host="box")
        assert "host_admin_setup" in gone
        assert "ssh-copy-id" not in gone, "there is no account to copy a key to"


@pytest.mark.thorough
async def test_an_account_that_comes_back_finds_its_old_home(tmp_path):
    async with standing(tmp_path) as (quorate, box):
        await quorate.facts("host_admin_setup", host="box")
        owner = (box.folder / "home/quorate").stat().st_uid
        await quorate.facts("host_admin_remove", host="box")
        box.add_account("late", owner + 1)
        again = await quorate.facts("host_admin_setup", host="box")
        assert again["verified"]["logged_in_as"] == "quorate"


async def test_a_dry_run_has_looked_and_changed_nothing(tmp_path):
    async with standing(tmp_path) as (quorate, box):
        before = box.text("etc/passwd")
        plan = await quorate.facts("host_admin_setup", host="box", dry_run=True)
        assert [step.partition(":")[0] for step in _says(plan)] == [
            "Create the account quorate",
            "Authorize its key",
            "Let it use sudo without a password",
            "Add quorate to docker, kvm",
        ]
        assert box.text("etc/passwd") == before
        assert not (tmp_path / "admin-keys").exists()
        await quorate.facts("host_admin_setup", host="box", groups=[])
        plan = await quorate.facts("host_admin_setup", host="box", dry_run=True)
        assert _says(plan) == ["Add quorate to docker, kvm"]


@pytest.mark.thorough
async def test_the_private_key_is_ours_alone_and_never_shown(tmp_path):
    async with standing(tmp_path) as (quorate, _):
        text = str(await quorate.facts("host_admin_setup", host="box"))
        key = tmp_path / "admin-keys" / "quorate"
        assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(key.parent).st_mode) == 0o700
        secret = key.read_text().splitlines()[1]
        assert secret not in text + (tmp_path / "audit.jsonl").read_text()


@pytest.mark.thorough
async def test_keys_of_others_stay(tmp_path):
    async with standing(tmp_path) as (quorate, box):
        await quorate.facts("host_admin_setup", host="box")
        keys = box.folder / "home/quorate/.ssh/authorized_keys"
        keys.write_text(f"# mine\n{keys.read_text()}ssh-ed25519 AAAAforeign someone")
        await quorate.facts("host_admin_setup", host="box")
        await quorate.facts("host_admin_remove", host="box")
        assert keys.read_text() == "# mine\nssh-ed25519 AAAAforeign someone\n"


async def test_an_account_of_somebody_else_gets_no_rights(tmp_path):
    async with standing(tmp_path) as (quorate, box):
        box.add_account("alice", 1500)
        for tool in ("host_admin_setup", "host_admin_groups", "host_admin_remove"):
            assert "did not create" in await quorate.refusal(tool, host="box", account="alice")
        assert "is not a valid name for an administration account" in await quorate.refusal(
            "host_admin_setup", host="box", account="x; reboot"
        )


@pytest.mark.thorough
async def test_a_sudo_rule_is_written_only_if_visudo_can_check_it(tmp_path):
    async with standing(tmp_path, without=("visudo",)) as (quorate, box):
        refusal = await quorate.refusal("host_admin_setup", host="box")
        assert "no visudo" in refusal
        assert "sudo=false" in refusal
        assert "quorate" not in box.accounts()
        facts = await quorate.facts("host_admin_setup", host="box", sudo=False)
        assert facts["verified"]["sudo"] == "no"


@pytest.mark.thorough
async def test_a_foreign_file_in_the_place_of_the_rule_is_left_alone(tmp_path):
    async with standing(tmp_path) as (quorate, box):
        rule = box.folder / "etc/sudoers.d/quorate"
        rule.write_text("# somebody's\n")
        assert "is not from Quorate" in await quorate.refusal("host_admin_setup", host="box")
        assert rule.read_text() == "# somebody's\n"


@pytest.mark.thorough
async def test_the_registry_takes_the_account_and_gives_the_old_login_back(tmp_path):
    async with standing(tmp_path) as (quorate, _):
        await quorate.facts("host_admin_setup", host="box", register=True)
        kept = await quorate.facts("host_list", host="box")
        assert kept["user"] == "quorate"
        assert (await quorate.facts("host_verify", host="box"))["root"] == "yes"
        assert "next" not in await quorate.facts("host_admin_setup", host="box")
        assert (await quorate.facts("host_admin_groups", host="box"))["unchanged"]
        await quorate.facts("host_admin_remove", host="box")
        assert (await quorate.facts("host_list", host="box"))["user"] == "root"
        assert (await quorate.facts("host_verify", host="box"))["verified"] is True


@pytest.mark.thorough
async def test_a_login_that_needs_its_password_for_sudo_will_do(tmp_path):
    async with standing(tmp_path) as (quorate, box):
        box.add_account("op", 1600, password=HASH)
        (box.folder / "etc/sudoers.d/op").write_text("op ALL=(ALL) ALL\n")
        login = {"user": "op", "password": PASSWORD}
        wrong = await quorate.refusal("host_admin_setup", host="box", user="op", password="wrong horse")
        assert "did not let op in" in wrong
        facts = await quorate.facts("host_admin_setup", host="box", **login)
        assert facts["verified"]["sudo"] == "without a password"
        await quorate.facts("host_admin_remove", host="box", **login)
        assert "quorate" not in box.accounts()
        assert PASSWORD not in (tmp_path / "audit.jsonl").read_text()


@pytest.mark.thorough
async def test_groups_are_added_where_they_exist(tmp_path):
    async with standing(tmp_path) as (quorate, box):
        assert "Create it: host_admin_setup" in await quorate.refusal("host_admin_groups", host="box")
        await quorate.facts("host_admin_setup", host="box", groups=[])
        assert "There is no group nosuch" in await quorate.refusal("host_admin_groups", host="box", groups=["nosuch"])
        await quorate.facts("host_admin_groups", host="box", groups=["docker"])
        assert box.members("docker") == ["quorate"]
        assert "quorate" not in box.members("kvm")


async def test_taking_it_away_needs_a_persons_yes(tmp_path):
    async with standing(tmp_path, options={"approval": Approval.ASK}) as (quorate, box):
        await quorate.facts("host_admin_setup", host="box")
        assert "approval" in await quorate.refusal("host_admin_remove", host="box", wait=0)
        assert "quorate" in box.accounts()


def _says(plan: dict[str, Any]) -> list[str]:
    return [str(step["step"]) if isinstance(step, dict) else str(step) for step in plan.get("steps") or plan["plan"]]
