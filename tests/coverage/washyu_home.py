"""washyu's rows about the machines around Proxmox VE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quorate.homelab.scripts.index import packaged as scripts
from quorate.homelab.services.catalogue import packaged as services
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
ON_DEVICE = {"device_id": "a device is a host by its own name"}
FROM_REGISTRY = dict.fromkeys(("username", "password", "port"), BY_REFERENCE)


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

# -- workloads ---------------------------------------------------------------------------------------------------------

ON_ONE = {"device_id": 1, "platform": "docker", "vm_name": "web"}
SAME = {"name": "vm_name", "engine": "platform"}
CONFIG = {
    "image": "redis:7",
    "ports": ["6380:6379"],
    "environment": {"MODE": "calm"},
    "command": "redis-server --save ''",
}


def container_is_made(done: Done) -> None:
    engine = done.home.engines["one"]
    assert done.home.running("one") == {"web": "nginx:1.27", "cache": "redis:7"}
    body = engine.bodies[-1]
    assert (body["Env"], body["Cmd"]) == (["MODE=calm"], ["redis-server", "--save", ""])
    assert body["HostConfig"]["PortBindings"] == {"6379/tcp": [{"HostIp": "", "HostPort": "6380"}]}


def container_is_stopped(done: Done) -> None:
    assert done.home.engines["one"].containers["web"]["State"]["Status"] == "exited"


def container_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert "nginx:1.27" in text
    assert '"running"' in text
    assert '"web"' in text


def log_is_told(done: Done) -> None:
    assert "no such file" in json.dumps(done.facts)


def container_is_gone(done: Done) -> None:
    assert done.home.engines["one"].containers == {}


async def deploy(done: Done) -> None:
    config = dict(done.given["vm_config"])
    command = ["redis-server", "--save", ""]
    arguments = {"image": config["image"], "ports": config["ports"], "env": config["environment"], "command": command}
    await done.call(
        "workload_deploy", host="one", name=done.given["vm_name"], engine=done.given["platform"], **arguments
    )


WORKLOADS = [
    row(
        "deploy_vm",
        {"device_id": 1, "platform": "docker", "vm_name": "cache", "vm_config": CONFIG},
        deploy,
        container_is_made,
        uses=("platform", "vm_name", "vm_config"),
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row(
        "control_vm",
        {**ON_ONE, "action": "stop"},
        native("workload_power", {**SAME, "action": "action"}, host="one"),
        container_is_stopped,
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row("get_vm_status", ON_ONE, native("workload_get", SAME, host="one"), container_is_told, without=ON_DEVICE,
        home=homes.docked),
    row(
        "list_vms",
        {"device_id": 1, "platforms": ["docker"]},
        native("workload_list", {"engine": Turned("platforms", lambda names: names[0])}, host="one"),
        container_is_told,
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row(
        "get_vm_logs",
        {**ON_ONE, "lines": 10},
        native("workload_logs", {**SAME, "lines": "lines"}, host="one"),
        log_is_told,
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row(
        "remove_vm",
        {**ON_ONE, "force": True},
        native("workload_remove", SAME, host="one"),
        container_is_gone,
        without={**ON_DEVICE, "force": "it is stopped first in any case"},
        home=homes.docked,
    ),
]  # fmt: skip

# -- services ----------------------------------------------------------------------------------------------------------

PAGE = {"service_name": "page", "hostname": "box"}
RECORDS = {"service_name": "records", "hostname": "box"}
MARK = {"service_name": "mark", "hostname": "box"}
OF_HOST = {"service": "service_name", "host": "hostname"}


def services_are_listed(done: Done) -> None:
    text = json.dumps(done.facts)
    assert all(f'"{name}"' in text for name in (*services(), "page", "records"))


def service_is_explained(done: Done) -> None:
    text = json.dumps(done.facts)
    assert "53/udp" in text
    assert "etc-pihole" in text


def host_fits(done: Done) -> None:
    assert '"fits": "yes"' in json.dumps(done.facts)


def service_runs(done: Done) -> None:
    compose = done.home.compose
    assert compose.version == "1.0"
    assert f"WEB_PORT='{done.home.page}'" in (compose.services / "page" / ".env").read_text()


async def install_page(home: Home) -> None:
    settings = {"web_port": home.page}
    await home.quorate.facts("service_install", service="page", host="box", settings=settings)


def service_is_well(done: Done) -> None:
    text = json.dumps(done.facts)
    assert '"state": "running"' in text
    assert '"health": "ok"' in text


def plan_is_told(done: Done) -> None:
    assert "terraform_data.record" in json.dumps(done.facts)
    assert not resources(done.home)


def resources(home: Home) -> list[Any]:
    """What the state of Terraform has."""
    states = (home.folder / "work").rglob("terraform.tfstate")
    return [one for state in states for one in json.loads(state.read_text())["resources"]]


async def make_records(home: Home) -> None:
    await home.quorate.facts("service_install", service="records", host="box")
    assert resources(home)


def nothing_has_drifted(done: Done) -> None:
    assert '"drifted": false' in json.dumps(done.facts)


def records_are_gone(done: Done) -> None:
    assert not resources(done.home)


def mark(home: Home, name: str = "mark") -> str | None:
    assert home.box is not None
    file = home.box.folder / "home" / name
    return file.read_text() if file.exists() else None


def play_was_tried(done: Done) -> None:
    assert "The mark is there" in json.dumps(done.facts)
    assert mark(done.home) is None


def play_has_run(done: Done) -> None:
    assert (mark(done.home), mark(done.home, "other")) == ("blue", None)


SERVICES = [
    row("list_available_services", {}, native("service_list"), services_are_listed, home=homes.composed),
    row(
        "get_service_info",
        {"service_name": "pihole"},
        native("service_info", {"service": "service_name"}),
        service_is_explained,
        home=homes.composed,
    ),
    row("check_service_requirements", PAGE, native("service_check", OF_HOST), host_fits, without=FROM_REGISTRY,
        home=homes.composed),
    row(
        "install_service",
        {**PAGE, "config_override": lambda home: {"web_port": home.page}},
        native("service_install", {**OF_HOST, "settings": "config_override"}),
        service_runs,
        without=FROM_REGISTRY,
        home=homes.composed,
    ),
    row("get_service_status", PAGE, native("service_status", OF_HOST), service_is_well, without=FROM_REGISTRY,
        prepare=install_page, home=homes.composed),
    row(
        "plan_terraform_service",
        {**RECORDS, "config_override": {"colour": "blue"}},
        native("terraform_plan", {**OF_HOST, "settings": "config_override"}),
        plan_is_told,
        without=FROM_REGISTRY,
        home=homes.with_terraform,
    ),
    row("destroy_terraform_service", RECORDS, native("terraform_destroy", OF_HOST), records_are_gone,
        without=FROM_REGISTRY, prepare=make_records, home=homes.with_terraform),
    row("refresh_terraform_service", RECORDS, native("terraform_refresh", OF_HOST), nothing_has_drifted,
        without=FROM_REGISTRY, prepare=make_records, home=homes.with_terraform),
    row("check_ansible_service", MARK, native("ansible_check", OF_HOST), play_was_tried, without=FROM_REGISTRY,
        home=homes.with_ansible),
    row(
        "run_ansible_playbook",
        {**MARK, "tags": ["mark"], "extra_vars": {"word": "blue"}, "check_mode": False},
        native("ansible_run", {**OF_HOST, "tags": "tags", "extra_vars": "extra_vars"}),
        play_has_run,
        without={**FROM_REGISTRY, "check_mode": "ansible_check tries it"},
        home=homes.with_ansible,
    ),
]  # fmt: skip

# -- scripts -----------------------------------------------------------------------------------------------------------


def script_is_found(done: Done) -> None:
    assert "jellyfin" in json.dumps(done.facts)
    assert str(_jellyfin().ram) in json.dumps(done.facts)


def script_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert str(_jellyfin().disk) in text
    assert "ct/jellyfin.sh" in text


def _jellyfin() -> Any:
    return scripts().named("jellyfin", "ct")


SCRIPTS = [
    row(
        "search_proxmox_scripts",
        {"query": "jellyfin", "category": "ct", "include_metadata": True},
        native("script_search", {"words": "query", "category": "category"}),
        script_is_found,
        without={"include_metadata": "they are there in any case"},
        home=homes.online,
    ),
    row(
        "get_proxmox_script_info",
        {"script_name": "jellyfin", "category": "ct"},
        native("script_info", {"script": "script_name", "category": "category"}),
        script_is_told,
        home=homes.online,
    ),
]

# -- infrastructure ----------------------------------------------------------------------------------------------------

CACHE = {"name": "cache", "type": "docker", "target_device_id": 1, "config": {"image": "redis:7"}}
DOCUMENT = {"name": "lab", "workloads": {"cache": {"host": "one", "image": "redis:7"}}}
NO_PLAN = {"deployment_plan": "a document of ours says the same with names of hosts"}
DRY = {"validate_only": "dry_run, and infra_plan"}


def plan_is_done(done: Done) -> None:
    assert done.home.running("one") == {"web": "nginx:1.27", "cache": "redis:7"}


def plan_holds(done: Done) -> None:
    assert '"valid": true' in json.dumps(done.facts)
    assert done.home.running("one") == {"web": "nginx:1.27"}


async def apply(home: Home) -> None:
    await home.quorate.facts("infra_apply", document=DOCUMENT)


async def scale(done: Done) -> None:
    (wanted,) = done.given["scaling_plan"]["scale_up"]
    await done.call("infra_scale", name=wanted["service_name"], replicas=wanted["target_replicas"])


def copies_run(done: Done) -> None:
    assert sorted(done.home.running("one")) == ["cache", "cache-2", "cache-3", "web"]


async def update(done: Done) -> None:
    changes = {"workloads": {"web": {"image": "nginx:1.28"}}}
    await done.call("device_update", device=done.given["device_id"], changes=changes, backup=False)


def image_is_newer(done: Done) -> None:
    assert done.home.running("one") == {"web": "nginx:1.28"}


async def device_is_retired(done: Done) -> None:
    assert (done.home.running("one"), done.home.running("two")) == ({}, {"web": "nginx:1.27"})
    assert list(await done.home.registered()) == ["two"]
    assert {one.id: one.state for one in await done.home.devices()} == {1: "retired", 2: "up"}


def archives(home: Home) -> list[Path]:
    return list((home.folder / "work" / "backups").glob("*"))


def archive_is_there(done: Done) -> None:
    (archive,) = archives(done.home)
    assert archive.name.startswith("before-")
    assert archive.stat().st_mode & 0o077 == 0
    assert archive.stem in json.dumps(done.facts)


async def back_up_and_change(home: Home) -> None:
    await home.quorate.facts("infra_backup", devices=["one"], scope=["workloads"], name="before")
    await home.quorate.facts("workload_remove", host="one", name="web")
    assert home.running("one") == {}


def backup_id(home: Home) -> str:
    (archive,) = archives(home)
    return archive.stem


def container_is_back(done: Done) -> None:
    assert done.home.running("one") == {"web": "nginx:1.27"}


INFRASTRUCTURE = [
    row(
        "deploy_infrastructure",
        {"deployment_plan": {"services": [CACHE]}, "validate_only": False},
        native("infra_apply", document=DOCUMENT),
        plan_is_done,
        without={**NO_PLAN, **DRY},
        home=homes.docked,
    ),
    row(
        "update_device_config",
        {
            "device_id": 1, "config_changes": {"services": {"web": {"type": "docker", "image": "nginx:1.28"}}},
            "backup_before_change": False, "validate_only": False,
        },
        update,
        image_is_newer,
        uses=("device_id", "config_changes", "backup_before_change"),
        without=DRY,
        home=homes.docked,
    ),
    row(
        "decommission_device",
        {"device_id": 1, "migration_plan": {"target_devices": [2]}, "force_removal": False, "validate_only": False},
        native(
            "device_decommission",
            {"device": "device_id", "move_to": Turned("migration_plan", lambda _: "two"), "force": "force_removal"},
            data=True,
        ),
        device_is_retired,
        without=DRY,
        home=homes.docked,
    ),
    row(
        "scale_services",
        {"scaling_plan": {"scale_up": [{"device_id": 1, "service_name": "cache", "target_replicas": 3}]},
         "validate_only": False},
        scale,
        copies_run,
        uses=("scaling_plan",),
        without=DRY,
        prepare=apply,
        home=homes.docked,
    ),
    row(
        "validate_infrastructure_changes",
        {"change_plan": {"services": [CACHE]}, "validation_level": "simulation"},
        native("infra_validate", {"level": "validation_level"}, document=DOCUMENT),
        plan_holds,
        without={"change_plan": NO_PLAN["deployment_plan"]},
        home=homes.docked,
    ),
    row(
        "create_infrastructure_backup",
        {"backup_scope": "device_specific", "device_ids": [1], "include_data": False, "backup_name": "before"},
        native(
            "infra_backup",
            {"devices": Turned("device_ids", lambda _: ["one"]), "name": "backup_name", "data": "include_data"},
        ),
        archive_is_there,
        without={"backup_scope": "the devices say it"},
        home=homes.docked,
    ),
    row(
        "rollback_infrastructure_changes",
        {"backup_id": backup_id, "rollback_scope": "device_specific", "device_ids": [1], "validate_only": False},
        native("infra_rollback", {"backup": "backup_id", "devices": Turned("device_ids", lambda _: ["one"])}),
        container_is_back,
        without={"rollback_scope": "the devices say it", **DRY},
        prepare=back_up_and_change,
        home=homes.docked,
    ),
]  # fmt: skip

ROWS = [*SSH, *NETWORK, *SERVERS, *WORKLOADS, *SERVICES, *SCRIPTS, *INFRASTRUCTURE]
