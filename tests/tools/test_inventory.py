"""Guests as an Ansible inventory, verified with independent parsers."""

import ast
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from quorate.config import Access
from quorate.ssh.settings import Login
from quorate.ssh.target import SshTarget
from quorate.tools.inventory import Inventory, as_ini, as_json, as_yaml
from tests.rigs.mcp_session import rig
from tests.rigs.simulated_guests import WINDOWS

anyio = pytest.mark.anyio


def read_ini(text):
    """Hosts and groups, as Ansible reads them: lines of a shell's words, values that may be literals of Python."""
    hosts: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    section = None
    for line in text.splitlines():
        if line.startswith("["):
            section = line[1:-1]
            groups[section] = []
        elif line:
            name, *pairs = shlex.split(line, comments=True)
            if section is None:
                hosts[name] = {key: literal(value) for key, value in (pair.split("=", 1) for pair in pairs)}
            else:
                assert not pairs
                groups[section].append(name)
    return hosts, groups


def literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_yaml(text):
    everything = yaml.safe_load(text)["all"]
    groups = {name: list(group["hosts"]) for name, group in everything["children"].items()}
    return everything["hosts"], groups


def read_json(data):
    groups = {name: group["hosts"] for name, group in data.items() if name not in ("_meta", "all", "ungrouped")}
    assert data["all"]["children"] == [*sorted(groups), "ungrouped"]
    return data["_meta"]["hostvars"], groups


READERS = {"ini": read_ini, "yaml": read_yaml, "json": read_json}


@anyio
@pytest.mark.parametrize("format", READERS)
async def test_running_guests_with_addresses_are_hosts_of_their_groups(tmp_path, format):
    async with rig(tmp_path, access=Access.READ) as quorate:
        answer = await quorate.facts("inventory_export", format=format)
        hosts, groups = READERS[format](answer["inventory"])
        running = {
            guest.name: guest for guest in quorate.sim.world.guests.values()
            if guest.running and not guest.paused and guest.vmid not in (100, 109)
        }  # fmt: skip
        assert set(hosts) == set(running)
        assert answer["hosts"] == len(hosts)
        for name, guest in running.items():
            assert hosts[name]["ansible_host"] == guest.addresses[0].ip
            assert (hosts[name]["proxmox_vmid"], hosts[name]["proxmox_node"]) == (guest.vmid, guest.node)
        assert set(groups["tag_prod"]) == {"docker01", "docker02", "nginx-proxy", "nextcloud", "postgres"}
        assert "docker01" in groups["pool_production"]
        assert "docker01" in groups["node_pve1"]
        assert "docker01" in groups["os_ubuntu"]
        assert "docker01" in groups["kind_vm"]
        assert "nginx-proxy" in groups["kind_ct"]
        assert "agent is not running" in answer["left_out"]["vm 100 router"]
        assert answer["left_out"]["ct 206 dev-sandbox"] == "It is stopped"


@anyio
async def test_one_guest_or_several_or_those_that_fit(tmp_path):
    async with rig(tmp_path) as quorate:

        async def hosts(**arguments):
            return set(
                (await quorate.facts("inventory_export", format="json", **arguments))["inventory"]["_meta"]["hostvars"]
            )

        assert await hosts(guest="docker01") == {"docker01"}
        assert await hosts(guest=[102, "nginx-proxy"]) == {"docker01", "nginx-proxy"}
        assert await hosts(tag="docker") == {"docker01", "docker02"}
        assert await hosts(tag="docker", node="pve2") == {"docker02"}
        assert await hosts(pool="production", type="ct") == {"nginx-proxy", "nextcloud", "postgres"}
        only = (await quorate.facts("inventory_export", format="json", guest=102, group_by=["tag"]))["inventory"]
        assert set(only) == {"_meta", "all", "tag_docker", "tag_prod", "ungrouped"}
        assert "There is no pool" in await quorate.refusal("inventory_export", pool="nope")


@anyio
async def test_user_key_and_interface_are_as_the_caller_says(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[102]
        guest.addresses.append(replace(guest.addresses[0], interface="wg0", mac="02:00:00:00:00:01", ip="10.9.0.2"))
        answer = await quorate.facts(
            "inventory_export", guest=102, user="deploy", key_file="/home/me/my keys/id", interface="wg0", format="ini"
        )
        hosts, _ = read_ini(answer["inventory"])
        assert hosts["docker01"] == {
            "ansible_host": "10.9.0.2", "ansible_user": "deploy",
            "ansible_ssh_private_key_file": "/home/me/my keys/id", "proxmox_vmid": 102, "proxmox_node": "pve1",
        }  # fmt: skip


@anyio
async def test_the_settings_tell_how_to_log_in(tmp_path):
    async with rig(tmp_path) as quorate:
        assert quorate.app.cluster is not None
        access = quorate.app.cluster.ssh
        jump = SshTarget("bastion.lan", 2222, "hop", Path("/keys/the bastion"))
        access.settings = replace(
            access.settings,
            guests=Login(user="admin", key=Path("/keys/guests")),
            single_guests={102: Login(host="web.example.org", port=2022, jump=jump)},
        )
        for form, reader in READERS.items():
            hosts, _ = reader((await quorate.facts("inventory_export", guest=[102, 201], format=form))["inventory"])
            host = hosts["docker01"]
            assert (host["ansible_host"], host["ansible_port"], host["ansible_user"]) == (
                "web.example.org",
                2022,
                "admin",
            )
            assert host["ansible_ssh_private_key_file"] == "/keys/guests"
            option, command = shlex.split(host["ansible_ssh_common_args"])
            assert option == "-o"
            assert shlex.split(command.removeprefix("ProxyCommand=")) == [
                "ssh", "-i", "/keys/the bastion", "-p", "2222", "-W", "%h:%p", "hop@bastion.lan",
            ]  # fmt: skip
            assert hosts["nginx-proxy"]["ansible_host"] == "192.168.10.3"
            assert hosts["nginx-proxy"]["ansible_user"] == "admin"
            assert "ansible_ssh_common_args" not in hosts["nginx-proxy"]


@anyio
async def test_windows_is_a_group_of_its_own_without_a_made_up_user(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[103].system = WINDOWS
        inventory = (await quorate.facts("inventory_export", guest=103, format="json"))["inventory"]
        assert inventory["os_windows"]["hosts"] == ["docker02"]
        assert "ansible_user" not in inventory["_meta"]["hostvars"]["docker02"]


@anyio
@pytest.mark.parametrize(
    "arguments",
    [
        {"user": "root; id"}, {"user": "{{ lookup('pipe', 'id') }}"}, {"user": "a b"}, {"user": ""},
        {"key_file": "{{ lookup('pipe', 'id') }}"}, {"key_file": "/x\n[all]"}, {"key_file": "{% raw %}"},
    ],
)  # fmt: skip
async def test_what_ansible_would_act_on_is_refused(tmp_path, arguments):
    async with rig(tmp_path) as quorate:
        refusal = await quorate.refusal("inventory_export", guest=102, **arguments)
        assert "cannot be written to an inventory" in refusal or "is not a user name" in refusal


@anyio
async def test_a_guest_without_an_address_is_left_out_with_the_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[102].addresses = []
        quorate.sim.world.guests[109].config["ipconfig0"] = "ip=192.168.10.77/24"
        answer = await quorate.facts("inventory_export", guest=[102, 108, 109, 9000], format="json")
        assert set(answer["inventory"]["_meta"]["hostvars"]) == {"legacy-db"}, "its configuration tells"
        assert answer["left_out"]["vm 102 docker01"] == "It has no address that is reachable from outside"
        assert "vm 9000 debian-13-cloud" in answer["left_out"]


HOSTILE = (
    "plain", "all", "ungrouped", "localhost", "tag_x", "a b", "a[1:9]", "host:22", "x ansible_connection=local",
    "#comment", "; comment", "[group]", "'", '"', "\\", "{{ x }}", "line\nbreak", "$(id)", "yes", "null", "1e3", "0x10",
    "007", "-dash", ".dot", "", "ümlaut", "日本", "!unsafe", "&anchor", "*alias", "a: b", "- item", "%", "@", "`", "~",
)  # fmt: skip


@pytest.mark.parametrize("format", READERS)
def test_no_name_becomes_anything_but_a_name(format):
    inventory = Inventory()
    additions = []
    for number, name in enumerate((*HOSTILE, *HOSTILE), start=100):
        variables: dict[str, str | int] = {
            "ansible_host": f"10.0.0.{number % 250}",
            "odd": name,
            "proxmox_vmid": number,
        }
        additions.append(inventory.add(name, number, variables, [("tag", name), ("kind", "vm"), ("tag", "x")]))
    write = {"ini": as_ini, "yaml": as_yaml, "json": lambda inventory: json.loads(json.dumps(as_json(inventory)))}[
        format
    ]
    hosts, groups = READERS[format](write(inventory))
    assert len(set(additions)) == len(additions)
    assert list(hosts) == sorted(additions)
    assert {host["proxmox_vmid"] for host in hosts.values()} == set(range(100, 100 + len(additions)))
    assert set(groups["kind_vm"]) == set(additions)
    assert not set(groups) & set(hosts), "Ansible knows hosts and groups by the same names"
    assert len(groups) == 2 + len(HOSTILE), "names that look alike in Ansible's letters stay apart"
    for number, host in zip(range(100, 200), additions, strict=False):
        assert hosts[host]["odd"] == HOSTILE[(number - 100) % len(HOSTILE)]
    for name in groups:
        assert name.isidentifier()
        assert name.isascii()


@anyio
async def test_a_guest_with_a_strange_name_cannot_add_a_line(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[102]
        guest.config["name"] = "evil\n[all:vars]\nansible_connection=local"
        guest.config["tags"] = "a-b;a_b"
        guest.touch()
        for form, reader in READERS.items():
            inventory = (await quorate.facts("inventory_export", guest=102, format=form))["inventory"]
            hosts, groups = reader(inventory)
            assert list(hosts) == ["evil-all-vars-ansible_connection-local"]
            assert {"tag_a_b", "tag_a_b_2"} <= set(groups)
