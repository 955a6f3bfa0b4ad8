"""A real QEMU machine with the real guest agent on its virtio port; emulated in software, so it runs anywhere."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.waiting import until

_PORT = "org.qemu.guest_agent.0"


class Machine:
    """`agent_socket` is where PVE, or the simulator in its place, finds the agent."""

    def __init__(self, vmid: int, name: str, folder: Path, images: Path) -> None:
        self.vmid = vmid
        self.name = name
        self._folder = folder / f"vm-{vmid}"
        self._images = images
        self._qemu: subprocess.Popen[bytes] | None = None

    @property
    def agent_socket(self) -> Path:
        return self._folder / "agent"

    def set_up(self) -> None:
        self._folder.mkdir()
        self.start()

    def start(self) -> None:
        """Boot it from its image, without whatever it had changed, and wait for its agent."""
        for name in ("agent", "monitor", "backdoor"):
            (self._folder / name).unlink(missing_ok=True)
        with (self._folder / "qemu.log").open("ab") as log:
            self._qemu = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"TMPDIR": str(self._folder)}
            )
        until(self._agent_listens, f"the agent of the VM; {self._folder}", 180.0)

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
        until(lambda: not self._agent_listens(), "the agent to stop")
        try:
            yield
        finally:
            self.outside("systemctl start qemu-guest-agent")
            until(self._agent_listens, "the agent to start")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The machine stands still: its agent is there and does not answer."""
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

    def _command(self) -> list[str]:
        images, folder = self._images, self._folder
        words = "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 systemd.show_status=false"
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
            "drive": f"file={images / 'vm.ext4'},if=virtio,format=raw,snapshot=on",
            "nic": "user,restrict=on,model=virtio-net-pci",
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
        """Whether somebody inside has opened the agent's port."""
        assert self._qemu is not None
        assert self._qemu.poll() is None, (self._folder / "qemu.log").read_text()
        try:
            devices = self._monitor("query-chardev")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return any(each["label"] == "agent" and each["frontend-open"] for each in devices)

    def _monitor(self, command: str) -> Any:
        """QEMU's own answer to a command without arguments."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30)
            line.connect(str(self._folder / "monitor"))
            with line.makefile("rw") as text:
                for each in ("qmp_capabilities", command):
                    text.write(json.dumps({"execute": each, "id": each}) + "\n")
                text.flush()
                for answer in map(json.loads, text):
                    if answer.get("id") == command:
                        return answer["return"]
        raise AssertionError(f"QEMU's monitor did not answer {command}")
