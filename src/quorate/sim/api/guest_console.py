"""Screens and keys of guests: tickets for consoles, key presses, the QEMU monitor."""

from __future__ import annotations

import re
from typing import Any

from quorate.sim.consoles import Consoles, node_of, open_console, spice_file
from quorate.sim.guests import Guest, Kind
from quorate.sim.node_certificates import Certificates
from quorate.sim.refusals import bad_parameters, failure, not_implemented
from quorate.sim.routing import Call, route

_QEMU = "/nodes/{node}/qemu/{vmid}"
_LXC = "/nodes/{node}/lxc/{vmid}"
_KEY = re.compile(
    r"[a-z0-9]|f([1-9]|1[0-2])|kp_\w+|ret|spc|esc|tab|backspace|delete|insert|home|end|pgup|pgdn|up|down|left|right|menu"
    r"|shift(_r)?|alt(_r)?|ctrl(_r)?|meta_[lr]|minus|equal|comma|dot|slash|semicolon|apostrophe|backslash"
    r"|bracket_(left|right)|grave_accent|caps_lock|num_lock|scroll_lock|print|sysrq|pause|less|0x[0-9a-f]+"
)
_HARMLESS = re.compile(r"(?:info|help|\?)(?:\s|$)")


def _kind(call: Call) -> Kind:
    return "qemu" if "/qemu/" in call.endpoint.template else "lxc"


def _path(call: Call) -> str:
    return f"/vms/{call.vmid}"


def _guest(call: Call) -> Guest:
    node_of(call)
    return call.guest(_kind(call))


@route(f"POST {_QEMU}/vncproxy", f"POST {_LXC}/vncproxy", needs_quorum=False)
def vnc(call: Call) -> dict[str, Any]:
    guest = _guest(call)
    # With a serial display, and for containers, it is a terminal that comes as a picture; only real screens are served.
    has_screen = guest.kind == "qemu" and not str(guest.config.get("vga", "")).removeprefix("type=").startswith(
        "serial"
    )
    console = open_console(
        call,
        "vncproxy",
        str(call.vmid),
        _path(call),
        screen_of=guest if has_screen else None,
        generate_password=bool(call.params.get("generate-password")),
    )
    console["cert"] = call.world.part(Certificates).authority_pem()
    return console


@route(f"POST {_QEMU}/termproxy", needs_quorum=False)
def serial_terminal(call: Call) -> dict[str, Any]:
    guest = _guest(call)
    wanted = call.params.get("serial")
    serials = [key for key in ("serial0", "serial1", "serial2", "serial3") if key in guest.config]
    if not serials or (wanted is not None and wanted not in serials):
        raise failure("unable to find a serial interface")
    return open_console(call, "vncproxy", str(call.vmid), _path(call))


@route(f"POST {_LXC}/termproxy", needs_quorum=False)
def terminal(call: Call) -> dict[str, Any]:
    _guest(call)
    return open_console(call, "vncproxy", str(call.vmid), _path(call))


@route(f"POST {_QEMU}/spiceproxy", f"POST {_LXC}/spiceproxy", needs_quorum=False)
def spice(call: Call) -> dict[str, Any]:
    guest = _guest(call)
    if guest.kind == "qemu" and not guest.running:
        raise failure(f"VM {guest.vmid} not running")
    if guest.kind == "qemu" and not str(guest.config.get("vga", "")).startswith(("qxl", "type=qxl")):
        raise failure("no spice port")
    return spice_file(call, f"{guest.word} {guest.vmid} - {guest.name}", call.world.part(Consoles).port())


@route(f"GET {_QEMU}/vncwebsocket", f"GET {_LXC}/vncwebsocket")
def websocket(call: Call) -> dict[str, Any]:
    node_of(call)
    call.world.part(Consoles).check(call.params["vncticket"], _path(call), call.params["port"])
    return {"port": str(call.params["port"])}


@route(f"PUT {_QEMU}/sendkey", needs_quorum=False)
def press_key(call: Call) -> None:
    call.root_only("skiplock")
    guest = call.guest("qemu")
    if guest.lock is not None and not call.params.get("skiplock"):
        raise failure(f"VM is locked ({guest.lock})")
    if not guest.running:
        raise failure(f"VM {guest.vmid} not running")
    for key in call.params["key"].split("-"):
        if not _KEY.fullmatch(key):
            raise failure(f"invalid parameter: {key}")


@route(f"POST {_QEMU}/monitor", needs_quorum=False)
def monitor(call: Call) -> str:
    """QEMU's own command line; looking is open to auditors, anything else is not."""
    command = call.params["command"].strip()
    if not _HARMLESS.match(command):
        call.require("/", "Sys.Modify")
    guest = call.guest("qemu")
    if not guest.running:
        return f"ERROR: VM {guest.vmid} not running\n"
    answer = _monitor_answer(guest, command).replace("\n", "\r\n")
    return f"{answer}\r\n" if answer else ""


def _monitor_answer(guest: Guest, command: str) -> str:
    words = command.split()
    match words:
        case ["info", "status"]:
            return f"VM status: {'paused' if guest.paused else 'running'}"
        case ["info", "name"]:
            return guest.name
        case ["info", "version"]:
            return "10.1.2 (pve-qemu-kvm_10.1.2-4)"
        case ["info", "cpus"]:
            return "\n".join(
                f"{'*' if n == 0 else ' '} CPU #{n}: thread_id={guest.pid + n + 1}" for n in range(guest.cores or 1)
            )
        case ["info", "block"]:
            return "\n".join(f"drive-{key} (#block{n}): {volume}" for n, (key, volume) in enumerate(guest.drives()))
        case ["info", "balloon"]:
            return f"balloon: actual={guest.memory // 1024**2} max_mem={guest.memory // 1024**2}"
        case ["help" | "?", *_]:
            return "info [subcommand] -- show various information about the system state\nquit -- quit the emulator"
        case ["info", what, *_]:
            return f"unknown command: 'info {what}'"
        case ["stop"]:
            guest.paused = True
            guest.touch()
            return ""
        case ["cont" | "c"]:
            guest.paused = False
            guest.touch()
            return ""
        case ["quit" | "q"]:
            guest.stop_running()
            return ""
        case _:
            return f"unknown command: '{words[0] if words else ''}'"


@route(f"POST {_QEMU}/dbus-vmstate", needs_quorum=False)
def dbus_vmstate(call: Call) -> None:
    guest = call.guest("qemu")
    if not guest.running:
        raise failure(f"VM {guest.vmid} not running")


@route(f"POST {_QEMU}/mtunnel", f"POST {_LXC}/mtunnel")
def migration_tunnel(call: Call) -> None:
    """The receiving end of a migration between clusters: it needs a free number, and is not served here."""
    guest = call.world.guests.get(call.vmid)
    if guest is not None:
        text = f"{guest.word} {guest.vmid} already exists on node '{guest.node}'\n"
        word = "VM" if _kind(call) == "qemu" else "CT"
        raise bad_parameters({"vmid": f"unable to create empty {word} config - {text}"})
    raise not_implemented(call.endpoint.method, call.endpoint.template.format(**call.values))
