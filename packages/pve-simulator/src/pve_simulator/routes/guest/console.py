"""Console tickets, key presses and the QEMU monitor."""

from __future__ import annotations

import re
from typing import Any

from pve_simulator.guests.consoles import Consoles, node_of, open_console, spice_file
from pve_simulator.guests.guest import Guest
from pve_simulator.http.refusals import bad_parameters, failure, unimplemented_method
from pve_simulator.http.routing import GUEST, QEMU, Call, route
from pve_simulator.routes.nodes.certificates import Certificates

_KEY = re.compile(
    r"[a-z0-9]|f([1-9]|1[0-2])|kp_\w+|ret|spc|esc|tab|backspace|delete|insert|home|end|pgup|pgdn|up|down|left|right|menu"
    r"|shift(_r)?|alt(_r)?|ctrl(_r)?|meta_[lr]|minus|equal|comma|dot|slash|semicolon|apostrophe|backslash"
    r"|bracket_(left|right)|grave_accent|caps_lock|num_lock|scroll_lock|print|sysrq|pause|less|0x[0-9a-f]+"
)
# Commands of QEMU's monitor: those for root alone, and those that change something.
_FOR_ROOT = """
backup block_stream change chardev-add chardev-change chardev-remove client_migrate_info device_add device_del
drive_add drive_backup drive_del drive_mirror dump-guest-memory dumpdtb gdbserver hostfwd_add hostfwd_remove
logfile mce memsave migrate migrate_incoming migrate_recover nbd_server_add nbd_server_remove nbd_server_start
nbd_server_stop netdev_add netdev_del nmi o object_add object_del pcie_aer_inject_error pmemsave qom-set
savevm-end savevm-start screendump snapshot_blkdev watchdog_action wavcapture xen-event-inject xen-event-list
"""
_ROOT_COMMANDS = frozenset(_FOR_ROOT.split())
_CHANGING = """
announce_self backup_cancel balloon block_job_cancel block_job_complete block_job_pause block_job_resume
block_job_set_speed block_resize block_set_io_throttle boot_set c calc_dirty_rate cancel_vcpu_dirty_limit
chardev-send-break closefd commit cont cpu delvm eject exit_preconfig expire_password getfd gpa2hpa gpa2hva
gva2gpa i loadvm log migrate_cancel migrate_continue migrate_pause migrate_set_capability migrate_set_parameter
migrate_start_postcopy mouse_button mouse_move mouse_set one-insn-per-tb p print q qemu-io qom-get qom-list quit
replay_break replay_delete_break replay_seek ringbuf_read ringbuf_write s savevm sendkey set_link set_password
set_vcpu_dirty_limit snapshot_blkdev_internal snapshot_delete_blkdev_internal stop stopcapture sum sync-profile
system_powerdown system_reset system_wakeup trace-event x x_colo_lost_heartbeat xp
"""
_CHANGING_COMMANDS = frozenset(_CHANGING.split())


def _path(call: Call) -> str:
    return f"/vms/{call.vmid}"


def _guest(call: Call) -> Guest:
    node_of(call)
    return call.guest()


@route(f"POST {GUEST}/vncproxy", needs_quorum=False)
def vnc(call: Call) -> dict[str, Any]:
    guest = _guest(call)
    # With a serial display, and for containers, VNC shows a terminal; only real screens are served here.
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


@route(f"POST {GUEST}/termproxy", needs_quorum=False)
def terminal(call: Call) -> dict[str, Any]:
    """A missing serial port shows only inside the terminal."""
    guest, serial = _guest(call), str(call.params.get("serial", ""))
    screen_of = guest if guest.kind == "qemu" and serial else None
    return open_console(call, "vncproxy", str(call.vmid), _path(call), screen_of=screen_of, serial=serial)


@route(f"POST {GUEST}/spiceproxy", needs_quorum=False)
def spice(call: Call) -> dict[str, Any]:
    guest = _guest(call)
    if guest.kind == "qemu" and not guest.running:
        raise failure(f"VM {guest.vmid} not running")
    if guest.kind == "qemu" and not str(guest.config.get("vga", "")).startswith(("qxl", "type=qxl")):
        raise failure("no spice port")
    return spice_file(call, f"{guest.word} {guest.vmid} - {guest.name}", call.world.part(Consoles).port())


@route(f"GET {GUEST}/vncwebsocket", "GET /nodes/{node}/vncwebsocket")
def websocket(call: Call) -> dict[str, Any]:
    node_of(call)
    path = _path(call) if "vmid" in call.values else f"/nodes/{call.node}"
    call.world.part(Consoles).check(call.params["vncticket"], path, call.params["port"])
    return {"port": str(call.params["port"])}


@route(f"PUT {QEMU}/sendkey", needs_quorum=False)
def press_key(call: Call) -> None:
    call.root_only("skiplock")
    guest = call.guest()
    if guest.lock is not None and not call.params.get("skiplock"):
        raise failure(f"VM is locked ({guest.lock})")
    if not guest.running:
        raise failure(f"VM {guest.vmid} not running")
    for key in call.params["key"].split("-"):
        if not _KEY.fullmatch(key):
            raise failure(f"invalid parameter: {key}")
        guest.enters += key in ("ret", "kp_enter")


@route(f"POST {QEMU}/monitor", needs_quorum=False)
def monitor(call: Call) -> str:
    """Run a QEMU monitor command; auditors may only use read-only ones."""
    command = call.params["command"].strip()
    _check_command(call, command)
    guest = call.guest()
    if not guest.running:
        return f"ERROR: VM {guest.vmid} not running\n"
    answer = _monitor_answer(guest, command).replace("\n", "\r\n")
    return f"{answer}\r\n" if answer else ""


def _check_command(call: Call, command: str) -> None:
    if not command:
        raise failure("no command specified" if not call.params["command"] else f"unexpected command '{command}'")
    name = command.split()[0]
    if name in _CHANGING_COMMANDS:
        call.require("/", "Sys.Modify")
    elif name in _ROOT_COMMANDS and not call.is_root:
        raise failure(f"root-only command '{name}'")
    elif name not in _ROOT_COMMANDS | {"help", "?", "info"} and not call.is_root:
        unknown = f"command '{name}' non-existent or not assigned a required permission yet"
        raise failure(f"{unknown}, limiting to root user")


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
        case [known, *_] if known in _CHANGING_COMMANDS:
            return ""
        case _:
            return f"unknown command: '{words[0]}'"


@route(f"POST {QEMU}/dbus-vmstate", needs_quorum=False)
def dbus_vmstate(call: Call) -> None:
    guest = call.guest()
    if not guest.running:
        raise failure(f"VM {guest.vmid} not running")


@route(f"POST {GUEST}/mtunnel")
def migration_tunnel(call: Call) -> None:
    """The receiving end of a migration between clusters: needs a free vmid; not implemented here."""
    guest = call.world.guests.get(call.vmid)
    if guest is not None:
        text = f"{guest.word} {guest.vmid} already exists on node '{guest.node}'\n"
        word = "VM" if call.kind == "qemu" else "CT"
        raise bad_parameters({"vmid": f"unable to create empty {word} config - {text}"})
    raise unimplemented_method(call.endpoint.method, call.endpoint.template.format(**call.values))
