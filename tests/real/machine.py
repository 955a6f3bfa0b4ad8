"""A real QEMU machine with the real guest agent on its virtio port; emulated in software, so it runs anywhere."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.polling import wait_until

_PORT = "org.qemu.guest_agent.0"


class Machine:
    """`agent_socket` is where PVE, or the simulator in its place, finds the agent."""

    _words = "console=ttyS0 quiet panic=-1"

    def __init__(self, vmid: int, name: str, folder: Path, images: Path) -> None:
        self.vmid = vmid
        self.name = name
        self._folder = folder / f"vm-{vmid}"
        self._images = images
        self._qemu: subprocess.Popen[bytes] | None = None
        self.boot_seconds = 0.0
        """How long it took to start."""

    @property
    def agent_socket(self) -> Path:
        return self._folder / "agent"

    def set_up(self) -> None:
        self._folder.mkdir()
        self.start()

    def start(self) -> None:
        """Boot it from its image, without whatever it had changed, and wait for its agent."""
        begun = time.monotonic()
        self.power_on()
        wait_until(self._agent_listens, f"the agent of the VM; {self._folder}", 180.0)
        self.boot_seconds = time.monotonic() - begun

    def power_on(self) -> None:
        for name in ("agent", "monitor", "backdoor"):
            (self._folder / name).unlink(missing_ok=True)
        with (self._folder / "qemu.log").open("ab") as log:
            self._qemu = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"TMPDIR": str(self._folder)}
            )

    def stop(self) -> None:
        """Pull the plug."""
        assert self._qemu is not None
        self._qemu.kill()
        self._qemu.wait()
        self._qemu = None

    @contextmanager
    def agent_stopped(self) -> Iterator[None]:
        """The machine runs, its agent does not."""
        self.outside("systemctl stop qemu-guest-agent")
        wait_until(lambda: not self._agent_listens(), "the agent to stop")
        try:
            yield
        finally:
            self.outside("systemctl start qemu-guest-agent")
            wait_until(self._agent_listens, "the agent to start")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The machine is frozen: its agent is there and does not answer."""
        self._monitor("stop")
        try:
            yield
        finally:
            self._monitor("cont")

    def outside(self, command: str) -> None:
        """Have a shell command run in the machine without its agent. Nobody waits for its end."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self._folder / "backdoor"))
            line.sendall(f"{command}\n".encode())
            line.settimeout(30)
            echo = b""
            while b"\n" not in echo:  # the terminal shows what it has taken
                echo += line.recv(4096)

    def close(self) -> None:
        if self._qemu is not None:
            self.stop()

    @property
    def _drive(self) -> str:
        return f"file={self._images / 'vm.ext4'},snapshot=on"

    def _command(self) -> list[str]:
        images, folder = self._images, self._folder
        words = f"{self._words} mitigations=off net.ifnames=0 systemd.show_status=false"
        options = {
            "accel": "tcg,thread=multi",
            "machine": "pc",
            "cpu": "max",
            "smp": "2",
            "m": "512",
            "display": "none",
            "kernel": str(images / "vmlinuz"),
            "initrd": str(images / "initrd"),
            "append": words,
            "drive": f"{self._drive},if=virtio,format=raw",
            "nic": "user,restrict=on,model=virtio-net-pci,id=net0",
            "qmp": f"unix:{folder / 'monitor'},server=on,wait=off",
        }
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"]
        for name, value in options.items():
            command += [f"-{name}", value]
        command += ["-serial", f"file:{folder / 'console.log'}"]
        command += ["-serial", f"unix:{folder / 'backdoor'},server=on,wait=off"]
        command += ["-chardev", f"socket,id=agent,path={self.agent_socket},server=on,wait=off"]
        command += ["-device", "virtio-serial", "-device", f"virtserialport,chardev=agent,name={_PORT}"]
        return command

    def _agent_listens(self) -> bool:
        """Whether a program inside has opened the agent's port."""
        assert self._qemu is not None
        assert self._qemu.poll() is None, "".join(
            (self._folder / log).read_text() for log in ("qemu.log", "console.log")
        )
        try:
            devices = self._monitor("query-chardev")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return any(each["label"] == "agent" and each["frontend-open"] for each in devices)

    def _monitor(self, command: str, **arguments: Any) -> Any:
        """QEMU's own answer to a command."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30)
            line.connect(str(self._folder / "monitor"))
            with line.makefile("rw") as text:
                for each, parameters in (("qmp_capabilities", {}), (command, arguments)):
                    text.write(json.dumps({"execute": each, "arguments": parameters, "id": each}) + "\n")
                text.flush()
                for answer in map(json.loads, text):
                    if answer.get("id") == command:
                        return answer["return"]
        raise AssertionError(f"QEMU's monitor did not answer {command}")
