"""Hosts imported from an SSH configuration, an Ansible inventory, a scan and a cluster, with what is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.rigs.homelab import house
from tests.rigs.ssh_server import HOST

pytestmark = pytest.mark.anyio

INI = """
[web]
web[01:02] ansible_host=10.9.0.1 ansible_user=deploy
[db]
db1 ansible_host=10.9.0.9 ansible_port=2222 ansible_password=hunter2
[site:children]
web
db
[site:vars]
ansible_ssh_private_key_file=/nowhere/key
"""
YAML = """
all:
  children:
    nas:
      hosts:
        tank: {ansible_host: 10.9.0.20, ansible_user: admin}
      vars: {ansible_port: 2200}
"""


def steps(answer: dict[str, Any]) -> list[str]:
    return [step["step"] for step in answer["steps"]]


async def test_an_ssh_configuration_is_read_as_ssh_reads_it(tmp_path):
    async with house(tmp_path, register=False) as built:
        nas = built.hosts["nas"]
        text = (
            f"Host nas\n  HostName {HOST}\n  Port {nas.port}\n  IdentityFile {nas.key_file}\n"
            "Host inner\n  HostName 10.9.0.5\n  ProxyJump nas\nHost *.skip !x\n  User nobody\nHost *\n  User tester\n"
        )
        shown = await built.quorate.facts("host_import", source="ssh_config", text=text, dry_run=True)
        assert steps(shown) == [f"Register host nas at {HOST}:{nas.port}", "Register host inner at 10.9.0.5"]
        assert "quorate trust 10.9.0.5" in shown["missing"]["inner"]
        assert "nas" not in shown["missing"]
        done = await built.quorate.facts("host_import", source="ssh_config", text=text, only=["nas"])
        assert done["hosts"]["rows"] == [["host nas", "done", f"{HOST}:{nas.port}", "works"]]
        answer = await built.quorate.facts("host_exec", host="nas", command=["echo", "in"])
        assert answer["stdout"] == "in\n"
        again = await built.quorate.facts("host_import", source="ssh_config", text=text, only=["nas"])
        assert again["unchanged"] == ["nas is already registered"]


async def test_an_ansible_inventory_gives_hosts_groups_and_never_a_password(tmp_path):
    async with house(tmp_path) as built:
        shown = await built.quorate.facts("host_import", source="ansible", text=INI, dry_run=True)
        assert steps(shown) == [
            "Register host db1 at 10.9.0.9:2222", "Register host web01 at 10.9.0.1", "Register host web02 at 10.9.0.1",
        ]  # fmt: skip
        calls = " ".join(step["call"] for step in shown["steps"])
        assert '"labels":["db","site"]' in calls
        assert '"user":"deploy"' in calls
        assert "hunter2" not in str(shown)
        assert "password is not imported" in shown["missing"]["db1"]
        assert "no key /nowhere/key" in shown["missing"]["all 3"]
        shown = await built.quorate.facts("host_import", source="ansible", text=YAML, dry_run=True)
        assert steps(shown) == ["Register host tank at 10.9.0.20:2200"]


async def test_an_inventory_is_read_as_ansible_reads_it(tmp_path):
    text = (
        "[web]  # the front\nweb[1:5:2].lan\nshop.lan:5309 ansible_user=x ansible_ssh_common_args='-J bastion'\n"
        "[site:children] ; all of it\nweb\n"
    )
    async with house(tmp_path, register=False) as built:
        shown = await built.quorate.facts("host_import", source="ansible", text=text, dry_run=True)
        assert steps(shown) == [
            "Register host shop.lan at shop.lan:5309", *(f"Register host web{n}.lan at web{n}.lan" for n in (1, 3, 5)),
        ]  # fmt: skip
        assert all('"labels":["site","web"]' in step["call"] for step in shown["steps"])
        assert "ansible_ssh_common_args is left out" in shown["missing"]["shop.lan"]


async def test_what_ansible_has_encrypted_is_neither_a_host_nor_quoted(tmp_path):
    secret = "      $ANSIBLE_VAULT;1.1;AES256\n      61626364\n"
    text = (
        "all:\n  hosts:\n    tank: {ansible_host: 10.9.0.20}\n"
        f"  vars:\n    ansible_become_password:  !vault |\n{secret}"
    )
    async with house(tmp_path, register=False) as built:
        shown = await built.quorate.facts("host_import", source="ansible", text=text, dry_run=True)
        assert steps(shown) == ["Register host tank at 10.9.0.20"]
        assert "sudo_password is not imported" in shown["missing"]["tank"]
        for broken in (text.replace("{ansible_host", "{{ansible_host"), '{"web": ["61626364"]}'):
            refusal = await built.quorate.refusal("host_import", source="ansible", text=broken, dry_run=True)
            assert "not a valid YAML inventory" in refusal
            assert "61626364" not in refusal


async def test_other_names_and_other_ways_of_an_ssh_configuration_are_said(tmp_path):
    text = (
        "Host door door.lan\n  HostName 10.9.0.1\nHost inner\n  HostName 10.9.0.5\n  ProxyJump ssh://me@door.lan:22\n"
        "Host tunnel\n  HostName 10.9.0.6\n  ProxyCommand cloudflared access ssh --hostname %h\n"
    )
    async with house(tmp_path, register=False) as built:
        shown = await built.quorate.facts("host_import", source="ssh_config", text=text, dry_run=True)
        assert steps(shown) == [
            "Register host door at 10.9.0.1", "Register host inner at 10.9.0.5", "Register host tunnel at 10.9.0.6",
        ]  # fmt: skip
        assert shown["warnings"] == ["door.lan is left out: it is another name of door"]
        assert '"jump":"door"' in shown["steps"][1]["call"]
        assert "ProxyCommand is left out" in shown["missing"]["tunnel"]


async def test_the_guests_of_a_cluster_are_offered_with_what_they_lack(tmp_path):
    async with house(tmp_path) as built:
        shown = await built.quorate.facts("host_import", source="cluster", dry_run=True)
        assert any("docker01" in step for step in steps(shown)), shown
        assert any("quorate trust" in text for text in shown["missing"].values())
        assert shown["steps"][0]["call"].startswith('save host {"name":"')
        assert ".;" not in str(shown)
        reasons = [reason for text in shown["missing"].values() for reason in text.split("; ")]
        assert len(reasons) == len(set(reasons))  # what all of them lack is listed once
        assert "vm 109 legacy-db: no guest agent is configured, so the address is unknown" in shown["warnings"]
        assert "GET /" not in str(shown["warnings"])


async def test_an_import_without_any_host_is_refused(tmp_path):
    async with house(tmp_path) as built:
        assert "Nothing to import" in await built.quorate.refusal("host_import", source="ssh_config", text="")
        assert "source=scan requires targets" in await built.quorate.refusal("host_import", source="scan")


async def test_the_servers_own_files_are_read_and_everything_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    async with house(tmp_path, register=False) as built:
        refusal = await built.quorate.refusal("host_import", source="ssh_config")
        assert "~/.ssh/config cannot be read on this server. No such file or directory. " in refusal
        assert "Create ~/.ssh/config, or pass its content as text=" in refusal
        (tmp_path / "person/.ssh").mkdir(parents=True)
        (tmp_path / "person/.ssh/config").write_text(
            "Host inner\n  HostName 10.9.0.5\n  ProxyJump bastion\n  IdentityFile ~/.ssh/lost\n"
            "Host bastion\n  HostName 10.9.0.1\n"
        )
        shown = await built.quorate.facts("host_import", source="ssh_config", only=["inner"], dry_run=True)
        lacking = shown["missing"]["inner"]
        for part in (
            "its host key is not trusted: `quorate trust 10.9.0.5`",
            "there is no key ~/.ssh/lost on this server",
            "its jump host bastion is not registered",
        ):
            assert part in lacking
        whole = await built.quorate.facts("host_import", source="ssh_config", dry_run=True)
        assert "jump host" not in whole["missing"]["inner"]  # it comes along, and first
        assert "it has no key or password" in whole["missing"]["bastion"]
        assert steps(whole)[0] == "Register host bastion at 10.9.0.1"
        (tmp_path / "person/.ssh/id_ed25519").touch()
        whole = await built.quorate.facts("host_import", source="ssh_config", dry_run=True)
        assert "no key or password" not in whole["missing"]["bastion"]  # as ssh, Quorate tries that one


async def test_guests_without_an_address_are_named_with_the_reason(tmp_path):
    async with house(tmp_path) as built:
        world = built.quorate.sim.world
        world.guests[102].system = replace(world.guests[102].system, agent_installed=False)
        shown = await built.quorate.facts("host_import", source="cluster", dry_run=True)
        assert any("docker01" in warning and "agent" in warning for warning in shown["warnings"]), shown["warnings"]
        assert not any("docker01" in step for step in steps(shown))
