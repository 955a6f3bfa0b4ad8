"""Commands inside VMs, and VMs as hosts of an Ansible inventory."""

from __future__ import annotations

from typing import Any

from quorate.pve.errors import Conflict
from quorate.surfaces.compat.bsahane.shapes import GUEST, VM, act, chosen, read
from quorate.surfaces.compat.declaring import may
from quorate.surfaces.compat.running import Run

MOST_BYTES = 1024 * 1024


async def execute(run: Run) -> dict[str, Any]:
    """A program with its arguments; a text without any goes to the guest's shell."""
    guest = await chosen(run, VM)
    command = run["command"] if run["args"] is None else [run["command"], *run["args"]]
    done = await run.change(
        "guest_exec", guest=guest.vmid, command=command, stdin=run["input_data"], max_output=MOST_BYTES
    )
    return dict(done.facts)


async def register(run: Run) -> dict[str, Any]:
    """The host's variables as JSON, and its line of an INI inventory."""
    guest = await chosen(run, VM)
    asked = {
        "guest": guest.vmid,
        "user": run["ssh_user"],
        "key_file": run["ssh_private_key_path"],
        "interface": run["prefer_interface"],
    }
    found = await run.facts("inventory_export", format="json", **asked)
    if not found["hosts"]:
        raise Conflict(f"{guest.vmid} {guest.name} cannot be a host", why="; ".join(found["left_out"].values()))
    ((hostname, variables),) = found["inventory"]["_meta"]["hostvars"].items()
    ini = (await run.facts("inventory_export", format="ini", **asked))["inventory"]
    return {
        "hostname": hostname,
        "ip": variables["ansible_host"],
        "json": {hostname: variables},
        "ini": ini.partition("\n\n")[0],
    }


TOOLS = (
    read(
        "proxmox-register-vm-as-host",
        "A VM as a host of an Ansible inventory: address, user and key, as JSON and INI.",
        "inventory_export",
        register,
        *GUEST,
        may("ssh_user", "string", "root"),
        may("ssh_private_key_path", "string"),
        may("prefer_interface", "string", about="Take its address first"),
    ),
    act(
        "proxmox-guest-exec",
        "Run a command inside a VM; answers with its outputs and exit code.",
        "guest_exec",
        execute,
        *GUEST,
        may("command", "string", "", "A program, or without args a line for the shell"),
        may("args", "array<string>", about="Passed as they are, without a shell"),
        may("input_data", "string", about="For its standard input"),
        needs=("command",),
    ),
)
