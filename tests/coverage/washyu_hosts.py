"""washyu's rows about machines, the network and registered servers."""

from __future__ import annotations

import json
from typing import Any

from tests.coverage import homes
from tests.coverage.homes import PASSWORD, Home, this_machine
from tests.coverage.rows import Done, Joined, Turned, native, row
from tests.ssh_server import HOST

ACCOUNT = "mcp_admin"
BY_REFERENCE = "a registered host, or user@address:port"


def at(hostname: str, username: str | None = None, port: int | None = None) -> str:
    return f"{username}@{hostname}:{port}" if username else f"{hostname}:{port}"


LOGIN = Joined(("hostname", "username", "port"), at)
WITH_PASSWORD = {"password": "password", "key": "key_path"}
PI = {"hostname": HOST, "username": "tester", "password": PASSWORD, "port": lambda home: home.port("pi")}
NAS = {"hostname": HOST, "username": "tester", "key_path": lambda home: str(home.hosts["nas"].key_file),
       "port": lambda home: home.port("nas")}  # fmt: skip
OP = {"hostname": HOST, "username": "op", "password": PASSWORD, "port": lambda home: home.box.port}
BY_NAME = {"credential_id": "hosts are known by their names"}


def secret_stays(done: Done) -> None:
    assert PASSWORD not in json.dumps(done.facts) + (done.home.folder / "audit.jsonl").read_text()


# -- SSH ---------------------------------------------------------------------------------------------------------------


def machine_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert this_machine() in text
    assert "x86_64" in text or "aarch64" in text
    assert PASSWORD not in text


def command_has_run(done: Done) -> None:
    assert (done.home.folder / "mark").read_text() == "so it is\n"
    assert "and said so" in json.dumps(done.facts)
    secret_stays(done)


def account_is_there(done: Done) -> None:
    box = done.home.box
    assert ACCOUNT in box.accounts()
    assert "NOPASSWD" in box.text(f"etc/sudoers.d/{ACCOUNT}")
    assert "ssh-ed25519" in box.text(f"home/{ACCOUNT}/.ssh/authorized_keys")
    secret_stays(done)


async def set_up(home: Home, **more: Any) -> None:
    await home.quorate.facts("host_admin_setup", host="box", account=ACCOUNT, **more)


async def set_up_without_groups(home: Home) -> None:
    await set_up(home, groups=[])
    assert ACCOUNT not in home.box.members("docker")  # type: ignore[union-attr]


def account_is_tried(done: Done) -> None:
    text = json.dumps(done.facts)
    assert f'"logged_in_as": "{ACCOUNT}"' in text
    assert '"sudo": "without a password"' in text
    assert "docker" in text


def account_is_in_groups(done: Done) -> None:
    assert ACCOUNT in done.home.box.members("docker")
    assert ACCOUNT in done.home.box.members("kvm")
    secret_stays(done)


async def groups_by_registered_login(done: Done) -> None:
    """The native tool takes the login that is registered."""
    await done.call("host_admin_groups", host="box", account=ACCOUNT)


def invited(done: Done) -> Any:
    link = done.facts.get("link") or done.facts["url"]
    page, _, token = link.partition("#")
    assert page == f"{homes.PAGE}/shell"
    return done.home.quorate.app.shells.find(token)


def terminal_is_offered(done: Done) -> None:
    invitation = invited(done)
    assert "uptime" in invitation.argv[-1]
    assert (invitation.place.target.host, invitation.place.target.port) == (HOST, done.home.port("pi"))
    assert invitation.place.target.user == "tester"
    secret_stays(done)


SSH = [
    row(
        "ssh_discover",
        PI,
        native("host_discover", {"host": LOGIN, **WITH_PASSWORD}),
        machine_is_told,
        home=homes.machines,
    ),
    row(
        "setup_mcp_admin",
        {**OP, "force_update_key": True},
        native("host_admin_setup", {"host": LOGIN, "password": "password"}, account=ACCOUNT),
        account_is_there,
        without={"force_update_key": "its key is let in wherever it is missing, and those of others stay"},
        home=homes.accounts,
    ),
    row(
        "verify_mcp_admin",
        {"hostname": HOST, "port": lambda home: home.box.port},
        native(
            "host_admin_verify", {"host": Joined(("hostname", "port"), lambda h, p: at(h, None, p))}, account=ACCOUNT
        ),
        account_is_tried,
        prepare=set_up,
        home=homes.accounts,
    ),
    row(
        "ssh_execute_command",
        {**PI, "command": lambda home: f"echo so it is > {home.folder}/mark; echo and said so", "sudo": False},
        native("host_exec", {"host": LOGIN, "password": "password", "command": "command", "sudo": "sudo"}),
        command_has_run,
        home=homes.machines,
    ),
    row(
        "start_interactive_shell",
        {**PI, "initial_command": "uptime"},
        native(
            "host_shell_open", {"host": LOGIN, "command": Turned("initial_command", lambda line: ["sh", "-c", line])}
        ),
        terminal_is_offered,
        without={"password": BY_REFERENCE},
        home=homes.machines,
    ),
    row(
        "update_mcp_admin_groups",
        OP,
        groups_by_registered_login,
        account_is_in_groups,
        without=dict.fromkeys(("hostname", "username", "password", "port"), BY_REFERENCE),
        prepare=set_up_without_groups,
        home=homes.accounts,
    ),
]

# -- network -----------------------------------------------------------------------------------------------------------


async def discover(done: Done, *targets: Any) -> None:
    """Who is to be looked into with a login of their own is registered first."""
    for number, one in enumerate(targets):
        given = {"address": one["hostname"], "port": one["port"], "user": one["username"], "key": one["key_path"]}
        await done.call("host_register", host=f"new{number}", **given)
    await done.call("network_discover", hosts=[f"new{number}" for number, _ in enumerate(targets)])


async def discover_one(done: Done) -> None:
    await discover(done, done.given)


async def discover_several(done: Done) -> None:
    await discover(done, *done.given["targets"])


async def device_is_kept(done: Done) -> None:
    (device,) = await done.home.devices()
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


async def suggest_every_kind(done: Done) -> None:
    for kind in ("service", "docker", "database", "backup", "monitoring", "vm"):
        await done.call("network_suggest", kind=kind)
    done.answers.append({"suggestions": done.answers[:]})


def places_are_suggested(done: Done) -> None:
    text = json.dumps(done.facts)
    assert all(f"demo/{name}" in text for name in done.world.nodes)
    assert "memory are free" in text
    assert "a database" in text.lower()


def history_is_told(done: Done) -> None:
    assert "seen for the first time" in json.dumps(done.facts)


async def device_number(home: Home) -> None:
    (device,) = await home.devices()
    assert device.id == 1


NETWORK = [
    row(
        "discover_and_map",
        NAS,
        discover_one,
        device_is_kept,
        uses=("hostname", "username", "key_path", "port"),
        without={"password": BY_REFERENCE},
        home=homes.machines,
    ),
    row(
        "bulk_discover_and_map",
        {"targets": lambda home: [{name: value(home) if callable(value) else value for name, value in NAS.items()}]},
        discover_several,
        device_is_kept,
        uses=("targets",),
        home=homes.machines,
    ),
    row("get_network_sitemap", {}, native("network_map"), map_is_told, home=homes.registered),
    row("analyze_network_topology", {}, native("network_analyze"), topology_is_told, home=homes.registered),
    row("suggest_deployments", {}, suggest_every_kind, places_are_suggested, home=homes.registered),
    row(
        "get_device_changes",
        {"device_id": 1, "limit": 5},
        native("network_changes", {"device": "device_id", "limit": "limit"}),
        history_is_told,
        prepare=device_number,
        home=homes.registered,
    ),
]

# -- servers -----------------------------------------------------------------------------------------------------------


async def server_is_kept(done: Done) -> None:
    (host,) = (await done.home.registered()).values()
    assert (host.address, host.port, host.user) == (HOST, done.home.port("nas"), "tester")
    assert (host.key, host.display_name, host.verdict) == (done.given["key_path"], "The NAS", "ok")


def server_is_listed(done: Done) -> None:
    text = json.dumps(done.facts)
    assert '"nas"' in text
    assert str(done.home.port("nas")) in text


async def server_was_changed(done: Done) -> None:
    host = (await done.home.registered())["nas"]
    assert (host.user, host.key, host.port) == ("root", "/keys/other", 2200)
    assert (host.display_name, host.active) == ("Cellar", False)


async def server_is_forgotten(done: Done) -> None:
    assert await done.home.registered() == {}


SERVERS = [
    row(
        "register_server",
        {**NAS, "display_name": "The NAS", "verify_connection": True},
        native(
            "host_register",
            {
                "address": "hostname", "user": "username", "key": "key_path", "port": "port",
                "display_name": "display_name", "verify": "verify_connection",
            },
            host="nas",
        ),
        server_is_kept,
        home=homes.machines,
    ),
    row(
        "list_registered_servers",
        {"active_only": True},
        native("host_list", {"inactive": Turned("active_only", lambda only: not only)}, clusters=False),
        server_is_listed,
        home=homes.registered,
    ),
    row(
        "update_server_credentials",
        {
            "hostname": "nas", "username": "root", "key_path": "/keys/other", "port": 2200, "display_name": "Cellar",
            "is_active": False,
        },
        native(
            "host_update",
            {
                "host": "hostname", "user": "username", "key": "key_path", "port": "port",
                "display_name": "display_name", "active": "is_active",
            },
        ),
        server_was_changed,
        without=BY_NAME,
        home=homes.registered,
    ),
    row(
        "remove_server",
        {"hostname": "nas"},
        native("host_remove", {"host": "hostname"}),
        server_is_forgotten,
        without=BY_NAME,
        home=homes.registered,
    ),
]  # fmt: skip

ROWS = [*SSH, *NETWORK, *SERVERS]
