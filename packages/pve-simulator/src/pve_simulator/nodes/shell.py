"""The shell of a node: the guests' small system with PVE's own tools such as pct and qm, and SSH to it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import signal
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.guest_os.agents import AgentError
from pve_simulator.guest_os.execution import Io
from pve_simulator.guest_os.files import FileError, FileSystem
from pve_simulator.guest_os.machine import Machine, Machines
from pve_simulator.guests import status
from pve_simulator.guests.guest import MIB, Guest, Kind, OperatingSystem
from pve_simulator.http.refusals import Refusal
from pve_simulator.routes.guest.agent import AgentConnection, render_execution
from pve_simulator.routes.nodes.apt import Packages
from pve_simulator.world import Node, World

if TYPE_CHECKING:  # the library is heavy and only needed for SSH
    import asyncssh

# PVE's tools exit with the errno of the last system call: ENOENT after a missing configuration.
_MISSING = 2
_FAILED = 255
_AGENT_TIMEOUT = 30.0


class NodeShells:
    """One machine per node, so that files persist."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, Machine] = {}

    def of(self, node: Node) -> Machine:
        machine = self._known.get(node.name)
        if machine is None:
            machine = self._known[node.name] = _machine_of_node(self._world, node)
        machine.guest.started_at = node.booted_at
        return machine.since_boot()


def _machine_of_node(world: World, node: Node) -> Machine:
    config: dict[str, str | int] = {"hostname": node.name, "memory": node.memory // MIB, "cores": node.cpus}
    config["rootfs"] = f"/dev/mapper/pve-root,size={node.disk // 1024**3}G"
    host = Guest(0, "lxc", node.name, config, running=True, started_at=node.booted_at, system=OperatingSystem())
    machine = Machine(world, host)
    machine.files.add("/etc/pve/.members", f'{{\n"nodename": "{node.name}",\n"version": 4\n}}\n')
    machine.files.add(f"/boot/vmlinuz-{node.kernel}", "a kernel\n")
    packages = world.part(Packages)
    machine.updates = [f"{package['Package']} ({package['Version']})" for package in packages.updates(node.name)]

    def upgrade() -> None:
        packages.upgrade(node.name)
        node.installed_kernel = node.new_kernel
        if node.new_kernel:
            machine.files.add(f"/boot/vmlinuz-{node.new_kernel}", "a newer kernel\n")

    machine.on_upgrade = upgrade
    tools = _Tools(world, node)
    machine.own_commands = {"pct": tools.pct, "qm": tools.qm, "pveversion": tools.pveversion}
    machine.own_commands["ha-manager"] = tools.ha_manager
    return machine


class _Failure(Exception):
    """Ends a tool with a text and an exit code."""

    def __init__(self, text: str, code: int = _FAILED) -> None:
        super().__init__(text)
        self.code = code


class _WorkerFailure(_Failure):
    """An error in the task behind `pct push` and `pct pull`: printed, but the exit code is 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 0)


_Action = Callable[[Io, Guest, list[str]], Coroutine[Any, Any, int]]


class _Tools:
    """PVE's command line tools on one node."""

    def __init__(self, world: World, node: Node) -> None:
        self._world = world
        self._node = node

    def pveversion(self, io: Io, args: list[str]) -> int:
        version = self._world.version
        io.say(f"pve-manager/{version}/{status.repoid(version)} (running kernel: {self._node.kernel})")
        if args:
            io.say(f"proxmox-ve: {self._world.release}.0 (running kernel: {self._node.kernel})")
        return 0

    def ha_manager(self, io: Io, args: list[str]) -> int:
        """Only the maintenance of nodes, for which the API has no call."""
        match args:
            case ["crm-command", "node-maintenance", "enable" | "disable" as action, node]:
                if node not in self._world.nodes:
                    io.complain(f"400 Parameter verification failed.\nnode: {node}: no such cluster node")
                    return _FAILED
                self._world.part(HaManager).request_maintenance(node, enable=action == "enable")
                return 0
            case _:
                name = " ".join(args[:1])
                io.complain(f"ERROR: unknown command 'ha-manager {name}'" if name else "ERROR: no command specified")
                return _FAILED

    async def pct(self, io: Io, args: list[str]) -> int:
        actions: dict[str, _Action] = {
            "config": self._config,
            "status": self._status,
            "exec": self._exec,
            "push": self._push,
            "pull": self._pull,
        }
        return await self._run(io, "pct", "lxc", args, actions)

    async def qm(self, io: Io, args: list[str]) -> int:
        actions: dict[str, _Action] = {"config": self._config, "status": self._status}
        if args[:2] == ["guest", "exec"]:
            args = ["guest exec", *args[2:]]
            actions["guest exec"] = self._guest_exec
        return await self._run(io, "qm", "qemu", args, actions)

    async def _run(self, io: Io, tool: str, kind: Kind, args: list[str], actions: dict[str, _Action]) -> int:
        name = args[0] if args else ""
        try:
            if name == "list":
                return self._list(io, kind)
            if name not in actions:
                raise _Failure(f"ERROR: unknown command '{tool} {name}'" if name else "ERROR: no command specified")
            guest = self._guest(tool, kind, name, args[1:])
            return await actions[name](io, guest, args[2:])
        except _Failure as failure:
            io.complain(str(failure))
            return failure.code

    def _guest(self, tool: str, kind: Kind, name: str, args: list[str]) -> Guest:
        if not args or not args[0].isdecimal() or not 100 <= int(args[0]) <= 999_999_999:
            problem = (
                "property is missing and it is not optional"
                if not args
                else "invalid format - value does not look like a valid VM ID"
            )
            raise _Failure(f"400 Parameter verification failed.\nvmid: {problem}\n{tool} {name} <vmid> [OPTIONS]")
        try:
            return self._world.guest(self._node.name, kind, int(args[0]))
        except Refusal as refusal:
            raise _Failure(refusal.reason, _MISSING) from refusal

    def _list(self, io: Io, kind: Kind) -> int:
        guests = sorted(self._world.guests_on(self._node.name, kind), key=lambda guest: guest.vmid)
        if kind == "lxc":
            io.say(f"{'VMID':<10} {'Status':<10} {'Lock':<12} {'Name':<20}")
            for guest in guests:
                io.say(f"{guest.vmid:<10} {guest.status:<10} {guest.lock or '':<12} {guest.name:<20}")
            return 0
        heads = f"{'VMID':>10} {'NAME':<20} {'STATUS':<10} {'MEM(MB)':<10} {'BOOTDISK(GB)':>12} {'PID':<10}"
        io.say(heads)
        for guest in guests:
            disk = f"{guest.disk_size / 1024**3:.2f}"
            numbers = f"{guest.memory // MIB:<10} {disk:>12} {guest.pid:<10}"
            io.say(f"{guest.vmid:>10} {guest.name:<20} {guest.status:<10} {numbers}")
        return 0

    async def _status(self, io: Io, guest: Guest, args: list[str]) -> int:
        if not any(each.startswith("--verbose") for each in args):
            io.say(f"status: {guest.status}")
            return 0
        for key, value in sorted(status.current(self._world, guest).items()):
            if not isinstance(value, dict):
                io.say(f"{key}: {value}")
        return 0

    async def _config(self, io: Io, guest: Guest, args: list[str]) -> int:
        shown = guest.config if "--current" in args else guest.effective_config()
        for key, value in sorted(shown.items()):
            io.say(f"{key}: {_on_one_line(str(value)) if key == 'description' else value}")
        return 0

    async def _exec(self, io: Io, guest: Guest, args: list[str]) -> int:
        if not guest.running:
            raise _Failure(f"container '{guest.vmid}' not running!")
        argv = _after_options(args, ("--keep-env", "-keep-env"))
        if not argv:
            raise _Failure("400 Parameter verification failed.\nextra-args: property is missing and it is not optional")
        process = await self._world.part(Machines).of(guest).execute(argv, io.stdin, io.out, io.err)
        if process is None:
            io.complain(
                f"lxc-attach: {guest.vmid}: ../src/lxc/attach.c: lxc_attach_run_command: 1841 "
                f'No such file or directory - Failed to exec "{argv[0]}"'
            )
            return 127
        return process.exitcode if process.exitcode is not None else 128 + (process.signal or 0)

    async def _push(self, io: Io, guest: Guest, args: list[str]) -> int:
        paths, options = _paths_and_options(args)
        if not guest.running:
            raise _Failure("can only push files to a running CT")
        inside = self._world.part(Machines).of(guest).files
        try:
            data = io.machine.files.read(io.path(paths[0]))
        except FileError as error:
            raise _WorkerFailure(f"failed to open {paths[0]} for reading") from error
        target = FileSystem.absolute(paths[1], "/")
        mode = _mode(options)
        try:
            inside.write(target, data)
        except FileError as error:
            raise _WorkerFailure(f"failed to create file: {paths[1]}: {error.text}") from error
        entry = inside.get(target)
        entry.mode = entry.mode if mode is None else mode
        entry.owner = options.get("user", entry.owner)
        return 0

    async def _pull(self, io: Io, guest: Guest, args: list[str]) -> int:
        paths, options = _paths_and_options(args)
        if not guest.running:
            raise _Failure("can only pull files from a running VM at /usr/share/perl5/PVE/CLI/pct.pm line 577.")
        mode = _mode(options)
        target = io.path(paths[1])
        try:
            io.machine.files.write(target, b"")  # the target is created before the source is opened
        except FileError as error:
            raise _WorkerFailure(f"failed to create file: {paths[1]}: {error.text}") from error
        entry = io.machine.files.get(target)
        entry.mode = entry.mode if mode is None else mode
        try:
            data = self._world.part(Machines).of(guest).files.read(FileSystem.absolute(paths[0], "/"))
        except FileError as error:
            raise _WorkerFailure(f"failed to open {paths[0]}: {error.text}") from error
        io.machine.files.write(target, data)
        return 0

    async def _guest_exec(self, io: Io, guest: Guest, args: list[str]) -> int:
        options, argv = _options_before(args, ("timeout", "synchronous", "pass-stdin"))
        path, *rest = argv or [""]
        arguments: dict[str, Any] = {"path": path, "arg": rest, "capture_output": True}
        if options.get("pass-stdin") == "1":
            arguments["input_data"] = base64.b64encode(io.stdin).decode()
        try:
            agent = await AgentConnection.open(self._world, guest)
            pid = (await agent.ask("exec", **arguments))["pid"]
            if options.get("synchronous") == "0":
                _say_json(io, {"pid": pid})
                return 0
            result = await self._end_of(agent, pid, float(options.get("timeout", _AGENT_TIMEOUT)))
        except AgentError as error:
            raise _Failure(f"Agent error: {error}") from error
        except Refusal as refusal:
            raise _Failure(refusal.reason) from refusal
        _say_json(io, result if result["exited"] else {**result, "pid": pid})
        return 0

    async def _end_of(self, agent: AgentConnection, pid: int, seconds: float) -> dict[str, Any]:
        """Poll until the end or the timeout, as the tool does."""
        until = self._world.clock.now() + seconds
        while True:
            result = render_execution(await agent.ask("exec-status", pid=pid))
            if result["exited"] or self._world.clock.now() >= until:
                return result
            await self._world.clock.sleep(0.5)


def _say_json(io: Io, value: dict[str, Any]) -> None:
    io.say(json.dumps(value, indent=3, separators=(",", " : "), sort_keys=True))


def _after_options(args: list[str], with_value: tuple[str, ...]) -> list[str]:
    """The command to run: everything after the tool's own options and an optional `--`."""
    rest = list(args)
    while rest and rest[0] in with_value:
        rest = rest[2:]
    return rest[1:] if rest[:1] == ["--"] else rest


def _options_before(args: list[str], names: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    rest = list(args)
    while rest and rest[0].lstrip("-").partition("=")[0] in names and rest[0].startswith("-"):
        name, separator, value = rest[0].lstrip("-").partition("=")
        options[name] = value if separator else (rest[1] if len(rest) > 1 else "")
        rest = rest[1 if separator else 2 :]
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _paths_and_options(args: list[str]) -> tuple[list[str], dict[str, str]]:
    paths: list[str] = []
    options: dict[str, str] = {}
    rest = list(args)
    while rest:
        each = rest.pop(0)
        if each.startswith("-"):
            name, separator, value = each.lstrip("-").partition("=")
            options[name] = value if separator else (rest.pop(0) if rest else "")
        else:
            paths.append(each)
    if len(paths) != 2:
        raise _Failure("400 not enough arguments" if len(paths) < 2 else "400 too many arguments")
    return paths, options


def _mode(options: dict[str, str]) -> int | None:
    """The mode of `--perms`: octal, with or without a leading zero."""
    text = options.get("perms")
    if text is None:
        return None
    try:
        return int(text, 8)
    except ValueError as error:
        raise _WorkerFailure(f"invalid mode: '{text if text.startswith('0') else f'0{text}'}'") from error


def _on_one_line(text: str) -> str:
    """Notes as the configuration file has them."""
    return "".join(f"%{ord(char):02X}" if char in "%:" or ord(char) < 32 else char for char in text)


_HOST = "127.0.0.1"
_KEY_TYPE = "ssh-ed25519"
_CIPHER = "aes128-gcm@openssh.com"  # of those that all clients know, the quickest here
# Only these programs read input; a client that neither sends nor closes it is taken to send none.
_READERS = re.compile(r"\b(?:cat|tee|head|tail|grep|wc|base64|sh|bash|sha256sum|stdin)\b")
_SILENCE_SECONDS = 0.5
_MISSING_LIBRARY = "SSH to the simulated nodes needs the package asyncssh"


class SshServers:
    """The SSH servers of a cluster. The files for the client are in `directory`."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._servers: list[asyncssh.SSHAcceptor] = []
        self.key_file = directory / "id_ed25519"
        self.known_hosts = directory / "known_hosts"
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        """Generate keys and listen, on a free port for every node."""
        try:
            import asyncssh
        except ImportError as error:
            raise RuntimeError(_MISSING_LIBRARY) from error
        host_key = asyncssh.generate_private_key(_KEY_TYPE)
        client_key = asyncssh.generate_private_key(_KEY_TYPE, comment="pve-simulator")
        self.key_file.touch(mode=0o600)
        client_key.write_private_key(str(self.key_file))
        allowed = asyncssh.import_authorized_keys(client_key.export_public_key().decode())
        for node in self._world.nodes.values():
            server = await asyncssh.listen(
                _HOST,
                0,
                server_factory=_offline_guard(node),
                server_host_keys=[host_key],
                authorized_client_keys=allowed,
                process_factory=self._session_of(node),
                encoding=None,
                encryption_algs=[_CIPHER],
            )
            self._servers.append(server)
            self.ports[node.name] = server.get_port()
        public = host_key.export_public_key().decode().strip()
        lines = [f"[{_HOST}]:{port} {public}\n" for port in self.ports.values()]
        self.known_hosts.write_text("".join(lines))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def _session_of(self, node: Node) -> object:
        async def session(process: asyncssh.SSHServerProcess[bytes]) -> None:
            stdin = await _input_of(process)
            machine = self._world.part(NodeShells).of(node)
            out, err = _StreamedOutput(process.stdout.write), _StreamedOutput(process.stderr.write)
            done = await machine.execute(["/bin/sh", "-c", process.command or ""], stdin, out, err)
            assert done is not None
            out.flush()
            err.flush()
            if done.exitcode is not None:
                process.exit(done.exitcode)
            else:
                process.exit_with_signal(signal.Signals(done.signal or signal.SIGKILL).name.removeprefix("SIG"))

        return session


class _StreamedOutput(bytearray):
    """Output that is streamed to the client. A client that disconnects does not end the command."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send
        self._sent = 0
        self._due = False

    def extend(self, data: Iterable[SupportsIndex]) -> None:
        super().extend(data)
        if not self._due:  # send everything of one turn together
            self._due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._due = False
        with contextlib.suppress(BrokenPipeError):
            self._send(bytes(self[self._sent :]))
        self._sent = len(self)


def _offline_guard(node: Node) -> object:
    """Close connections to a node that is off."""
    import asyncssh

    class OfflineGuard(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            if not node.online:
                conn.abort()

    return OfflineGuard


async def _input_of(process: asyncssh.SSHServerProcess[bytes]) -> bytes:
    """The client's input; empty if it sends none or the command does not read any."""
    if process.command is not None and not _READERS.search(process.command):
        return b""
    with contextlib.suppress(TimeoutError):
        first = await asyncio.wait_for(process.stdin.read(65536), _SILENCE_SECONDS)
        return first + await process.stdin.read() if first else b""
    return b""
