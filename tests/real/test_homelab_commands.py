"""Commands and administration accounts on real hosts: sudo with its password, jobs, Debian and BusyBox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.real.homelab import PASSWORD, HomelabLab, gone, serving

pytestmark = pytest.mark.anyio

ACCOUNTS = ("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow")


def written(folder: Path) -> str:
    """All that the server keeps: its state and its audit trail."""
    files = [path for pattern in ("state.sqlite*", "audit.jsonl") for path in folder.glob(pattern) if path.is_file()]
    assert len(files) > 1
    return "".join(path.read_bytes().decode("latin-1") for path in files)


async def test_sudo_gets_its_password_unseen(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path, "nas") as quorate:
        plain = await quorate.facts("host_exec", host="nas", command=["id", "-un"])
        assert plain["stdout"] == "keeper\n"
        root = await quorate.facts("host_exec", host="nas", command="id -un; ps axww; cat", sudo=True, stdin="the end")
        assert root["stdout"].startswith("root\n")
        assert root["stdout"].endswith("the end")
        assert "sudo" in root["stdout"]
        assert PASSWORD not in root["stdout"] + root.get("stderr", "")
        verified = await quorate.facts("host_verify", host="nas")
        assert (verified["verified"], verified["logged_in_as"], verified["root"]) == (True, "keeper", "yes")
        told = await quorate.facts("host_exec", host="nas", command=["echo", PASSWORD])
        assert PASSWORD not in str(told)
    assert PASSWORD not in await asyncio.to_thread(written, tmp_path)
    assert PASSWORD not in homelab.hosts["nas"].log


async def test_a_login_without_sudo_is_refused_with_the_reason(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path, "web") as quorate:
        verified = await quorate.facts("host_verify", host="web")
        assert (verified["verified"], verified["root"]) == (True, "no")
        assert "a password is required" in await quorate.refusal("host_exec", host="web", command=["id"], sudo=True)


@pytest.mark.parametrize(("name", "sudo"), [("nas", True), ("desk", False), ("pi", False), ("cellar", False)])
async def test_a_command_runs_in_the_background_until_it_is_stopped(
    homelab: HomelabLab, tmp_path: Path, name: str, sudo: bool
):
    names = ("web", "cellar") if name == "cellar" else (name,)
    host = homelab.hosts[name]
    async with serving(homelab, tmp_path, *names) as quorate:
        begun = await quorate.facts(
            "host_exec", host=name, command="echo begun; sleep 4711; echo never", sudo=sudo, wait=1
        )
        job = begun["job"]
        assert (await quorate.facts("host_job", action="poll", job=job))["stdout"] == "begun\n"
        assert host.processes("sleep 4711")
        await quorate.facts("host_job", action="stop", job=job)
        await gone(host, "sleep 4711")


@pytest.mark.parametrize("name", ["nas", "desk", "pi"])
async def test_an_administration_account_comes_works_and_goes(homelab: HomelabLab, tmp_path: Path, name: str):
    host = homelab.hosts[name]
    before = {path: (host.rootfs / path).read_text() for path in ACCOUNTS}
    host.run("sh", "-c", "grep -q ^kvm: /etc/group || groupadd -r kvm")
    async with serving(homelab, tmp_path, name) as quorate:
        preview = await quorate.facts("host_admin_setup", host=name, dry_run=True)
        assert "useradd" in str(preview)
        assert host.run("id", "quorate", check=False).returncode != 0

        made = await quorate.facts("host_admin_setup", host=name)
        assert made["verified"]["logged_in_as"] == "quorate"
        assert made["verified"]["sudo"] == "without a password"
        assert host.run("id", "-Gn", "quorate").stdout.split() == ["quorate", "kvm"]
        assert host.run("visudo", "-c").returncode == 0
        assert (await quorate.facts("host_admin_verify", host=name))["groups"] == ["quorate", "kvm"]

        again = await quorate.facts("host_admin_setup", host=name)
        assert not again.get("steps"), again
        host.run("sh", "-c", "echo docker:x:990: >> /etc/group; echo 'docker:!::' >> /etc/gshadow")
        await quorate.facts("host_admin_groups", host=name)
        assert host.run("id", "-Gn", "quorate").stdout.split() == ["quorate", "kvm", "docker"]

        (host.rootfs / "home/quorate/kept").write_text("mine")
        await quorate.facts("host_admin_remove", host=name)
        assert host.run("id", "quorate", check=False).returncode != 0
        assert not (host.rootfs / "etc/sudoers.d/quorate").exists()
        assert (host.rootfs / "home/quorate/kept").read_text() == "mine"
        assert "quorate" not in "".join((host.rootfs / path).read_text() for path in ACCOUNTS)
        refusal = await quorate.refusal("host_admin_verify", host=name)
        assert "quorate" in refusal
    for path, text in before.items():
        (host.rootfs / path).write_text(text)
    host.run("rm", "-r", "/home/quorate")


async def test_a_host_may_be_used_by_its_administration_account_and_goes_back(homelab: HomelabLab, tmp_path: Path):
    nas = homelab.hosts["nas"]
    async with serving(homelab, tmp_path, "nas") as quorate:
        await quorate.facts("host_admin_setup", host="nas", register=True)
        now = await quorate.facts("host_exec", host="nas", command=["id", "-un"])
        assert now["stdout"] == "quorate\n"
        root = await quorate.facts("host_exec", host="nas", command=["id", "-un"], sudo=True)
        assert root["stdout"] == "root\n"
        await quorate.facts("host_admin_remove", host="nas")
        back = await quorate.facts("host_exec", host="nas", command=["id", "-un"], sudo=True)
        assert back["stdout"] == "root\n"
        assert (await quorate.facts("host_list", host="nas"))["user"] == "keeper"
    nas.run("rm", "-r", "/home/quorate")


async def test_missing_programs_on_a_host_are_reported_before_anything_is_done(homelab: HomelabLab, tmp_path: Path):
    bare = homelab.hosts["bare"]
    before = bare.run("ls", "-lR", "/etc", "/home").stdout
    async with serving(homelab, tmp_path, "bare") as quorate:
        refusal = await quorate.refusal("host_admin_setup", host="bare")
        assert "has no program to create accounts" in refusal
        assert bare.run("ls", "-lR", "/etc", "/home").stdout == before
