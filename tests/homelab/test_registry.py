"""The registry of hosts: what is kept, what is never kept, and what is found without being registered."""

from __future__ import annotations

import pytest

from tests.rigs.cli import quorate
from tests.rigs.homelab import house

pytestmark = pytest.mark.anyio


async def test_a_host_is_registered_verified_changed_and_forgotten(tmp_path):
    async with house(tmp_path, register=False) as built:
        quorate, nas = built.quorate, built.hosts["nas"]
        facts = await quorate.facts(
            "host_register",
            host="nas",
            address="127.0.0.1",
            port=nas.port,
            user="tester",
            key=str(nas.key_file),
            labels=["role=nas"],
        )
        assert facts["verified"] is True
        assert (await quorate.facts("host_list", host="nas"))["verdict"] == "ok"
        changed = await quorate.facts("host_update", host="nas", display_name="The big one")
        assert changed["changed"] == {"display_name": ["", "The big one"]}
        assert "nas" in [row["name"] for row in await quorate.rows("host_list", clusters=False)]
        await quorate.facts("host_remove", host="nas")
        assert await quorate.rows("host_list", clusters=False) == []


async def test_nodes_and_guests_are_hosts_without_being_registered(tmp_path):
    async with house(tmp_path) as built:
        rows = await built.quorate.rows("host_list")
        kinds = {row["kind"] for row in rows}
        assert kinds == {"host", "node", "vm", "ct"}
        world = built.quorate.sim.world
        assert {row["name"] for row in rows if row["kind"] == "node"} == set(world.nodes)


async def test_addresses_of_both_families_and_names_are_taken_and_nonsense_is_not(tmp_path):
    async with house(tmp_path, {}, register=False) as built:
        for number, address in enumerate(("2001:db8::7", "::1", "fe80::1%eth0", "nas.example.com", "10.0.0.7")):
            await built.quorate.facts("host_register", host=f"h{number}", address=address, verify=False)
        listed = {row["at"] for row in await built.quorate.rows("host_list", clusters=False)}
        assert listed == {"2001:db8::7", "::1", "fe80::1%eth0", "nas.example.com", "10.0.0.7"}
        for address in ("nas:99999", "[nas;id]:22", "-oProxyCommand=x", "a b", "", "nas;id"):
            assert "is not an address" in await built.quorate.refusal("host_register", host="x", address=address)
        for name in ("", "a b", "-x", "x/y", "x" * 65):
            assert "is not a valid host name" in await built.quorate.refusal(
                "host_register", host=name, address="10.0.0.8"
            )


async def test_two_names_for_one_machine_are_warned_about(tmp_path):
    async with house(tmp_path) as built:
        arguments = {"address": "localhost", "port": built.hosts["nas"].port, "verify": False}
        planned = await built.quorate.facts("host_register", host="again", dry_run=True, **arguments)
        assert "host nas is at the same address" in planned["warnings"][0]


async def test_jump_hosts_have_to_be_there_and_go_in_no_circle(tmp_path):
    async with house(tmp_path, {"nas": {}, "pi": {}}) as built:
        quorate = built.quorate
        assert "Did you mean 'nas'" in await quorate.refusal("host_update", host="pi", jump="nass")
        assert "through itself" in await quorate.refusal("host_update", host="pi", jump="pi")
        await quorate.facts("host_update", host="pi", jump="nas")
        assert "nas -> pi -> nas" in await quorate.refusal("host_update", host="nas", jump="pi")
        assert "is the jump host of pi" in await quorate.refusal("host_remove", host="nas")
        assert (await quorate.facts("host_verify", host="pi"))["verified"] is True
        await quorate.facts("host_update", host="pi", jump="")
        await quorate.facts("host_remove", host="nas")


async def test_verification_names_what_failed(tmp_path):
    async with house(tmp_path, {"nas": {"password": "right-password"}}) as built:
        quorate, nas = built.quorate, built.hosts["nas"]
        (tmp_path / "wrong").write_text("wrong-password")
        (tmp_path / "wrong").chmod(0o600)

        async def verdict(**changes):
            await quorate.facts("host_update", host="nas", **changes)
            facts = await quorate.facts("host_verify", host="nas")
            assert facts["verified"] is False
            assert (await quorate.facts("host_list", host="nas"))["verdict"] != "ok"
            return facts["failed_at"], facts["why"]

        at, why = await verdict(password="file:wrong", key="")
        assert (at, "It refused the password" in why) == ("login", True)
        assert "wrong-password" not in why
        at, why = await verdict(password="", key=str(nas.folder / "missing"))
        assert (at, "cannot be read" in why) == ("settings", True)
        at, why = await verdict(address="name.invalid", key=str(nas.key_file))
        assert (at, "cannot be resolved on this machine" in why) == ("connection", True)
        at, why = await verdict(address="127.0.0.1", port=1)
        assert (at, "nothing listens" in why) == ("connection", True)
        nas.known_hosts.write_text("")
        at, why = await verdict(port=nas.port)
        assert (at, f"quorate trust 127.0.0.1:{nas.port}" in why) == ("host key", True)


async def test_a_secret_that_is_gone_is_a_matter_of_settings_not_of_the_login(tmp_path):
    async with house(tmp_path, {"nas": {}}) as built:
        secret = tmp_path / "sudo"
        secret.write_text("a-password")
        secret.chmod(0o600)
        await built.quorate.facts("host_update", host="nas", sudo_password="file:sudo")
        secret.unlink()
        facts = await built.quorate.facts("host_verify", host="nas")
        assert (facts["failed_at"], str(secret) in facts["why"]) == ("settings", True)


async def test_a_new_way_in_has_not_been_tried_and_a_new_label_changes_nothing_about_it(tmp_path):
    async with house(tmp_path) as built:
        quorate = built.quorate

        async def state():
            return [row["state"] for row in await quorate.rows("host_list", clusters=False)]

        await quorate.facts("host_verify", host="nas")
        assert await state() == ["ok"]
        await quorate.facts("host_update", host="nas", labels=["prod"])
        assert await state() == ["ok"]
        changed = await quorate.facts("host_update", host="nas", user="somebody")
        assert "host_verify host=nas" in changed["next"]
        assert await state() == ["not tried"]


async def test_a_password_by_reference_logs_in_and_its_reference_is_shown(tmp_path):
    async with house(tmp_path, {"nas": {"password": "right-password"}}) as built:
        (tmp_path / "right").write_text("right-password\n")
        (tmp_path / "right").chmod(0o600)
        changed = await built.quorate.facts("host_update", host="nas", key="", password="file:right")
        assert "right-password" not in str(changed)
        assert (await built.quorate.facts("host_verify", host="nas"))["verified"] is True
        assert (await built.quorate.facts("host_list", host="nas"))["password_from"] == "file:right"


async def test_a_login_without_sudo_differs_from_no_login(tmp_path):
    scripts = {
        "sudo": "echo 'sudo: a password is required' >&2; exit 1",
        "id": 'case "$*" in -u) echo 1000;; -un) echo tester;; *) exec /usr/bin/id "$@";; esac',
    }
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    async with house(tmp_path, {"nas": {"environment": environment}}) as built:
        facts = await built.quorate.facts("host_verify", host="nas")
        assert (facts["verified"], facts["logged_in_as"], facts["root"]) == (True, "tester", "no")
        assert "sudo_password" in facts["why_not_root"]


def test_hosts_need_no_cluster():
    done = quorate("call", "host_register", "host=nas", "address=10.0.0.9", "verify=false", "--access=operate")
    assert done.returncode == 0, done.stderr
    assert "nas" in quorate("call", "host_list").stdout
    refused = quorate("call", "guest_list")
    assert refused.returncode == 2
    assert "quorate init" in refused.stderr


async def test_an_address_may_have_its_port(tmp_path):
    async with house(tmp_path, {}) as built:
        await built.quorate.facts("host_register", host="cam", address="192.168.1.9:2222", verify=False)
        shown = await built.quorate.facts("host_list", host="cam")
        assert (shown["address"], shown["port"]) == ("192.168.1.9", 2222)
        arguments = {"host": "two", "address": "192.168.1.9:2222", "port": 2200, "verify": False}
        assert "has two ports, 2222 and 2200" in await built.quorate.refusal("host_register", **arguments)
