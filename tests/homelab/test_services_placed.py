"""A service in a guest that is made for it: create, wait, install, check health, in one plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from pve_simulator.guest_os import execution
from pve_simulator.guest_os.execution import Io
from quorate.config import Access
from quorate.config.policy import Policy, Rule
from tests.rigs.homelab import house

pytestmark = pytest.mark.anyio
execution.load_commands()  # so that a program which a test replaces is not registered again afterwards

TEMPLATE = """
title: The page
about: A page for tests
version: "1.0"
needs: {memory: 1G, disk: 3G}
parameters:
  password: {type: secret, generate: 24, about: Password}
compose: |
  services:
    page: {image: "example/page:${VERSION}"}
health: {command: [docker, healthy], seconds: 9}
"""
PLACE = {"type": "ct", "template": "debian-13"}


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/page.yaml").write_text(TEMPLATE)
    return tmp_path / "templates"


def docker(io: Io, args: list[str]) -> int:
    """In the simulated guests: what the real one would do to containers, done to a file."""
    files = io.machine.files
    if args[0] == "ps" and files.find("/run/page") is not None:
        io.say("c1\tquorate-page-page-1\trunning\tUp 1 second\texample/page:1.0\tpage")
    if args[:2] == ["compose", "-p"] and args[5] == "up":
        assert b"PASSWORD='" in files.read("/srv/quorate/page/.env")
        files.write("/run/page", b"")
    return int(args == ["healthy"] and files.find("/run/page") is None)


async def test_the_guest_is_made_entered_and_gets_the_service(tmp_path, catalogue, monkeypatch):
    monkeypatch.setitem(execution._commands, "docker", docker)
    settings = {"catalogue": catalogue, "services_folder": "/srv/quorate"}
    async with house(tmp_path, {}, homelab=settings) as built:
        quorate = built.quorate
        shown = await quorate.facts("service_install", service="page", place=PLACE, dry_run=True)
        assert [step["step"].split()[0] for step in shown["steps"]] == ["Create", "Install"]
        assert quorate.sim.world.guests.get(shown["vmid"]) is None
        done = await quorate.facts("service_install", service="page", place=PLACE)
        guest = quorate.sim.world.guests[done["vmid"]]
        assert (guest.config["hostname"], guest.config["memory"], guest.status) == ("page", 1280, "running")
        [row] = await quorate.rows("service_list", words="page tests")
        assert row["installed_on"] == f"demo/{done['vmid']}"
        facts = await quorate.facts("service_status", service="page", host=f"demo/{done['vmid']}")
        assert (facts["state"], facts["health"]) == ("running", "ok")


async def test_a_placed_service_that_outlasts_the_call_is_installed_in_the_background(tmp_path, catalogue, monkeypatch):
    monkeypatch.setitem(execution._commands, "docker", docker)
    settings = {"catalogue": catalogue, "services_folder": "/srv/quorate"}
    async with house(tmp_path, {}, homelab=settings) as built:
        quorate = built.quorate
        begun = await quorate.facts("service_install", service="page", place=PLACE, wait=0)
        where = f"demo/{begun['vmid']}"
        assert [step["state"] for step in begun["steps"]] == ["running", "not tried"]
        assert f"service_status host={where} service=page" in begun["next"]
        assert "follows automatically" in begun["next"]
        with anyio.fail_after(60):
            while (await quorate.rows("service_list", words="page tests"))[0].get("installed_on", "") != where:
                await anyio.lowlevel.checkpoint()
        facts = await quorate.facts("service_status", service="page", host=where)
        assert (facts["kept"], facts["state"], facts["health"]) == ("installed", "running", "ok")


async def test_if_the_service_cannot_be_installed_the_guest_stays_and_the_answer_says_how_to_continue(
    tmp_path, catalogue
):
    async with house(tmp_path, {}, homelab={"catalogue": catalogue}) as built:
        answer = await built.quorate.call("service_install", service="page", place=PLACE)
        assert answer.is_error
        steps = answer.structured_content["steps"]
        assert [step["state"] for step in steps] == ["done", "failed"]
        vmid = answer.structured_content["vmid"]
        assert "Docker could not be installed" in steps[1]["why"]
        assert f"host=demo/{vmid} docker=true" in steps[1]["why"]
        assert "or delete the guest" in steps[1]["why"]
        assert vmid in built.quorate.sim.world.guests


async def test_if_the_guest_cannot_be_made_nothing_is_installed(tmp_path, catalogue):
    async with house(tmp_path, {}, homelab={"catalogue": catalogue}) as built:
        quorate = built.quorate
        assert "place has no 'corse'" in await quorate.refusal(
            "service_install", service="page", place={**PLACE, "corse": 2}
        )
        assert "place has no 'dry_run'" in await quorate.refusal(
            "service_install", service="page", place={**PLACE, "dry_run": True}
        )
        wrong = {**PLACE, "template": "no-such-system"}
        assert "no-such-system" in await quorate.refusal("service_install", service="page", place=wrong)
        quorate.sim.faults.add("500:no space left on device:POST:/nodes/*/lxc")
        answer = await quorate.call("service_install", service="page", place=PLACE)
        assert [step["state"] for step in answer.structured_content["steps"]] == ["failed", "not tried"]
        assert (await quorate.rows("service_list", words="page tests"))[0].get("installed_on", "") == ""


async def test_who_may_not_change_the_cluster_may_not_put_a_guest_there(tmp_path, catalogue):
    async with house(tmp_path, {}, register=False, homelab={"catalogue": catalogue}, access=Access.READ) as built:
        assert "needs operate" in await built.quorate.refusal("service_install", service="page", place=PLACE)


async def test_the_rules_of_the_cluster_hold_for_the_new_guest_and_its_password_is_not_recorded(tmp_path, catalogue):
    async with house(tmp_path, {}, homelab={"catalogue": catalogue}) as built:
        quorate = built.quorate
        place = {**PLACE, "node": "pve2", "password": "hunter2-hunter2"}
        shown = await quorate.facts("service_install", service="page", place=place, dry_run=True)
        assert shown["node"] == "pve2"
        quorate.app.adopt(
            replace(quorate.app.settings, policy=Policy((Rule("mine", False, "change", nodes=("pve2",)),)))
        )
        assert "'mine'" in await quorate.refusal("service_install", service="page", place=place)
        assert "hunter2-hunter2" not in f"{shown}{quorate.audit()}"
