"""washyu's rows about machines, the network and registered servers."""

from __future__ import annotations

import json
from typing import Any

from tests.rigs.compat_session import Done, Row
from tests.rigs.ssh_server import HOST
from tests.surfaces.compat.rows import homelabs
from tests.surfaces.compat.rows.homelabs import PASSWORD, HomelabRig, this_machine

ACCOUNT = "mcp_admin"


PI = {"hostname": HOST, "username": "tester", "password": PASSWORD, "port": lambda homelab: homelab.port("pi")}
NAS = {"hostname": HOST, "username": "tester", "key_path": lambda homelab: str(homelab.hosts["nas"].key_file),
       "port": lambda homelab: homelab.port("nas")}  # fmt: skip
OP = {"hostname": HOST, "username": "op", "password": PASSWORD, "port": lambda homelab: homelab.box.port}


def secret_stays(done: Done) -> None:
    assert PASSWORD not in json.dumps(done.facts) + (done.homelab.folder / "audit.jsonl").read_text()


# -- SSH ---------------------------------------------------------------------------------------------------------------


def machine_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert this_machine() in text
    assert "x86_64" in text or "aarch64" in text
    assert PASSWORD not in text


def command_has_run(done: Done) -> None:
    assert (done.homelab.folder / "mark").read_text() == "so it is\n"
    assert "and said so" in json.dumps(done.facts)
    secret_stays(done)


def account_is_there(done: Done) -> None:
    box = done.homelab.box
    assert ACCOUNT in box.accounts()
    assert "NOPASSWD" in box.text(f"etc/sudoers.d/{ACCOUNT}")
    assert "ssh-ed25519" in box.text(f"home/{ACCOUNT}/.ssh/authorized_keys")
    secret_stays(done)


async def set_up(homelab: HomelabRig, **more: Any) -> None:
    await homelab.quorate.facts("host_admin_setup", host="box", account=ACCOUNT, **more)


async def set_up_without_groups(homelab: HomelabRig) -> None:
    await set_up(homelab, groups=[])
    assert ACCOUNT not in homelab.box.members("docker")  # type: ignore[union-attr]


def account_is_tried(done: Done) -> None:
    text = json.dumps(done.facts)
    assert f'"logged_in_as": "{ACCOUNT}"' in text
    assert '"sudo": "without a password"' in text
    assert "docker" in text


def account_is_in_groups(done: Done) -> None:
    assert ACCOUNT in done.homelab.box.members("docker")
    assert ACCOUNT in done.homelab.box.members("kvm")
    secret_stays(done)


def invited(done: Done) -> Any:
    link = done.facts.get("link") or done.facts["url"]
    page, _, token = link.partition("#")
    assert page == f"{homelabs.PAGE}/shell"
    return done.homelab.quorate.app.shells.find(token)


def terminal_is_offered(done: Done) -> None:
    invitation = invited(done)
    assert "uptime" in invitation.argv[-1]
    assert (invitation.target.ssh.host, invitation.target.ssh.port) == (HOST, done.homelab.port("pi"))
    assert invitation.target.ssh.user == "tester"
    secret_stays(done)


SSH = [
    Row("ssh_discover", PI, machine_is_told, homelab=homelabs.machines),
    Row("setup_mcp_admin", {**OP, "force_update_key": True}, account_is_there, homelab=homelabs.accounts),
    Row(
        "verify_mcp_admin",
        {"hostname": HOST, "port": lambda homelab: homelab.box.port},
        account_is_tried,
        prepare=set_up,
        homelab=homelabs.accounts,
    ),
    Row(
        "ssh_execute_command",
        {**PI, "command": lambda homelab: f"echo so it is > {homelab.folder}/mark; echo and said so", "sudo": False},
        command_has_run,
        homelab=homelabs.machines,
    ),
    Row("start_interactive_shell", {**PI, "initial_command": "uptime"}, terminal_is_offered, homelab=homelabs.machines),
    Row("update_mcp_admin_groups", OP, account_is_in_groups, prepare=set_up_without_groups, homelab=homelabs.accounts),
]

# -- network -----------------------------------------------------------------------------------------------------------


async def device_is_kept(done: Done) -> None:
    (device,) = await done.homelab.devices()
    assert device.facts is not None
    assert device.facts.system is not None
    assert device.facts.system.hostname == this_machine()
    assert device.address in json.dumps(done.facts)


def map_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert '"nas"' in text
    assert all(f'"{name}"' in text for name in done.world.nodes)


def topology_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert '"devices": {"up": 1}' in text
    assert '"looked_into": 1' in text


def places_are_suggested(done: Done) -> None:
    text = json.dumps(done.facts)
    assert all(f"demo/{name}" in text for name in done.world.nodes)
    assert "memory free" in text
    assert "a database" in text.lower()


def history_is_told(done: Done) -> None:
    assert "seen for the first time" in json.dumps(done.facts)


async def device_number(homelab: HomelabRig) -> None:
    (device,) = await homelab.devices()
    assert device.id == 1


NETWORK = [
    Row("discover_and_map", NAS, device_is_kept, homelab=homelabs.machines),
    Row(
        "bulk_discover_and_map",
        {
            "targets": lambda homelab: [
                {name: value(homelab) if callable(value) else value for name, value in NAS.items()}
            ]
        },
        device_is_kept,
        homelab=homelabs.machines,
    ),
    Row("get_network_sitemap", {}, map_is_told, homelab=homelabs.registered),
    Row("analyze_network_topology", {}, topology_is_told, homelab=homelabs.registered),
    Row("suggest_deployments", {}, places_are_suggested, homelab=homelabs.registered),
    Row(
        "get_device_changes",
        {"device_id": 1, "limit": 5},
        history_is_told,
        prepare=device_number,
        homelab=homelabs.registered,
    ),
]

# -- servers -----------------------------------------------------------------------------------------------------------


async def server_is_kept(done: Done) -> None:
    (host,) = (await done.homelab.registered()).values()
    assert (host.address, host.port, host.user) == (HOST, done.homelab.port("nas"), "tester")
    assert (host.key, host.display_name, host.verdict) == (done.arguments["key_path"], "The NAS", "ok")


def server_is_listed(done: Done) -> None:
    text = json.dumps(done.facts)
    assert '"nas"' in text
    assert str(done.homelab.port("nas")) in text


async def server_was_changed(done: Done) -> None:
    host = (await done.homelab.registered())["nas"]
    assert (host.user, host.key, host.port) == ("root", "/keys/other", 2200)
    assert (host.display_name, host.active) == ("Cellar", False)


async def server_is_forgotten(done: Done) -> None:
    assert await done.homelab.registered() == {}


SERVERS = [
    Row(
        "register_server",
        {**NAS, "display_name": "The NAS", "verify_connection": True},
        server_is_kept,
        homelab=homelabs.machines,
    ),
    Row("list_registered_servers", {"active_only": True}, server_is_listed, homelab=homelabs.registered),
    Row(
        "update_server_credentials",
        {
            "hostname": "nas",
            "username": "root",
            "key_path": "/keys/other",
            "port": 2200,
            "display_name": "Cellar",
            "is_active": False,
        },
        server_was_changed,
        homelab=homelabs.registered,
    ),
    Row("remove_server", {"hostname": "nas"}, server_is_forgotten, homelab=homelabs.registered),
]

ROWS = [*SSH, *NETWORK, *SERVERS]
