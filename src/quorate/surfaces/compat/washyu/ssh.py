"""Machines over SSH: look at them, run commands, the administration account, a terminal."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.washyu.shapes import (
    ACCOUNT,
    HOSTNAME,
    KEY_PATH,
    PASSWORD,
    PATIENCE,
    PORT,
    USERNAME,
    at,
    good,
    lending,
    named,
    reached,
    told,
)

THEN_A_SHELL = '%s\nexec "${SHELL:-/bin/sh}" -l'


async def discover(run: Run) -> dict[str, Any]:
    found = await run.facts(
        "host_discover", host=named(run), key=run["key_path"], password=run["password"], detail=True
    )
    label = found.pop("host")
    way = found.pop("way")
    hostname = (found.get("system") or {}).get("hostname") or label
    return good(hostname=hostname, connection_ip=run["hostname"], way=way, data=found)


async def execute(run: Run) -> dict[str, Any]:
    """As one output, errors after the rest; its exit code tells whether it went well."""
    done = await run.change(
        "host_exec",
        follow=PATIENCE,
        host=named(run),
        password=run["password"],
        command=run["command"],
        sudo=run["sudo"],
    )
    about = {"hostname": run["hostname"], "command": run["command"], "sudo": run["sudo"]}
    answer = told(done, **about)
    if answer["status"] == "dry_run":
        return answer
    answer["output"] = "".join(answer.pop(name, "") for name in ("stdout", "stderr"))
    return answer


async def set_up(run: Run) -> dict[str, Any]:
    done = await run.change(
        "host_admin_setup", follow=PATIENCE, host=named(run), password=run["password"], account=ACCOUNT
    )
    return told(done, hostname=run["hostname"])


async def verify(run: Run) -> dict[str, Any]:
    found = await run.facts("host_admin_verify", host=at(run["hostname"], port=run["port"]), account=ACCOUNT)
    return good(hostname=run["hostname"], **found)


async def update_groups(run: Run) -> dict[str, Any]:
    with lending(run.arguments):
        done = await run.change("host_admin_groups", host=named(run), account=ACCOUNT)
    return told(done, hostname=run["hostname"])


async def open_shell(run: Run) -> dict[str, Any]:
    """`initial_command` is run first; the shell comes after it."""
    first = run["initial_command"]
    command = ["/bin/sh", "-c", THEN_A_SHELL % first] if first else None
    async with reached(run) as host:
        done = await run.change("host_shell_open", host=host, command=command)
    answer = told(done, hostname=run["hostname"])
    if "link" in answer:
        answer |= {"url": answer.pop("link"), "session_id": answer.pop("terminal")}
    return answer


TOOLS = (
    Tool(
        "ssh_discover",
        "Hardware, system, disks, network, containers and services of a machine, over SSH.",
        (HOSTNAME, USERNAME, PASSWORD, KEY_PATH, PORT),
        Risk.LOOK_INSIDE,
        "host_discover",
        discover,
    ),
    Tool(
        "setup_mcp_admin",
        "Make the account mcp_admin on a machine, with a key of its own, sudo and groups.",
        (
            HOSTNAME,
            USERNAME,
            need("password", "string", "Of that user, who may use sudo; kept nowhere"),
            may("force_update_key", "boolean", True, "Accepted; its key is let in wherever it is missing"),
            PORT,
        ),
        Risk.CHANGE,
        "host_admin_setup account=mcp_admin",
        set_up,
    ),
    Tool(
        "verify_mcp_admin",
        "Log in as mcp_admin: sudo, groups, and what it can use.",
        (HOSTNAME, PORT),
        Risk.LOOK_INSIDE,
        "host_admin_verify account=mcp_admin",
        verify,
    ),
    Tool(
        "ssh_execute_command",
        "Run a command on a machine; answers with its output and exit code.",
        (
            HOSTNAME,
            USERNAME,
            PASSWORD,
            need("command", "string", "A line for the shell"),
            may("sudo", "boolean", False),
            PORT,
        ),
        Risk.CHANGE,
        "host_exec",
        execute,
    ),
    Tool(
        "start_interactive_shell",
        "Make a link to a terminal on a machine, for the person to open in a browser.",
        (
            HOSTNAME,
            may("username", "string", about="Default: the registered login, else mcp_admin"),
            PASSWORD,
            PORT,
            may("initial_command", "string", about="Run before the shell"),
        ),
        Risk.CHANGE,
        "host_shell_open",
        open_shell,
    ),
    Tool(
        "update_mcp_admin_groups",
        "Add mcp_admin to the groups of what is installed: docker, lxd, libvirt, kvm.",
        (HOSTNAME, USERNAME, need("password", "string", "Of that user; kept nowhere"), PORT),
        Risk.CHANGE,
        "host_admin_groups account=mcp_admin",
        update_groups,
    ),
)
