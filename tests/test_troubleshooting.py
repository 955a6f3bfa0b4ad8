"""Every message in docs/troubleshooting.md is what a user really sees, made to appear as a user would."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from pve_simulator.simulator import SimulatedCluster
from tests.paths import ROOT
from tests.rigs.certificates import Authority
from tests.rigs.cli import quorate
from tests.rigs.processes import completed, running
from tests.rigs.simulator import pointed_at, pveum, running_sim

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SHOWN = dict(re.findall(r"^### (.+)\n\n```\n(.+)\n```", PAGE, re.M))
OPERATE, ADMIN = ("--access", "operate"), ("--access", "admin")


@dataclass
class Scene:
    """A user's machine and a cluster."""

    sim: SimulatedCluster
    home: Path
    environ: Mapping[str, str]

    def run(self, *arguments: str, **changes: str) -> str:
        """All that a command shows; it must fail."""
        environ = {name: value for name, value in {**self.environ, **changes}.items() if value}
        done = quorate(*arguments, environ=environ, cwd=self.home)
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    def alone(self, *arguments: str, **changes: str) -> str:
        """The same in a process of its own, for commands that end while a request is on its way."""
        done = completed(*arguments, environ={**self.environ, **changes}, cwd=self.home)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def call(self, *arguments: str, **changes: str) -> str:
        return self.run("call", *arguments, **changes)


@pytest.fixture(scope="module")
def sim() -> Iterator[SimulatedCluster]:
    with running_sim() as cluster:
        yield cluster


@pytest.fixture
def scene(sim: SimulatedCluster, tmp_path: Path) -> Scene:
    return Scene(sim, tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **pointed_at(sim)})


def nothing_configured(scene: Scene) -> str:
    return scene.call("guest_list", **dict.fromkeys(pointed_at(scene.sim), ""))


def refused_port(scene: Scene) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return scene.call("guest_list", PROXMOX_URL=f"https://127.0.0.1:{port}")


def lacks_privilege(scene: Scene) -> str:
    user = ["pveum user add weak@pve", "pveum role add Look --privs VM.Audit"]
    acl = ["pveum acl modify /vms --users weak@pve --roles Look", "pveum user token add weak@pve mcp --privsep 0"]
    secret = pveum(scene.sim, [*user, *acl])
    return scene.call("guest_power", "guest=win11", "action=start", *OPERATE,
                      PROXMOX_TOKEN_ID="weak@pve!mcp", PROXMOX_TOKEN_SECRET=secret)  # fmt: skip


def frozen(scene: Scene) -> str:
    assert quorate("freeze", "--reason", "moving", environ=scene.environ, cwd=scene.home).returncode == 0
    return scene.call("guest_power", "guest=win11", "action=start", *OPERATE)


def no_quorum(scene: Scene) -> str:
    with running_sim(faults=["no-quorum"]) as sim:
        return scene.call("guest_configure", "guest=win11", "notes=x", *OPERATE, **pointed_at(sim))


def dead_node(scene: Scene) -> str:
    with running_sim(faults=["node-offline:pve3"]) as sim:
        return scene.call("api_call", "method=GET", "path=/nodes/pve3/storage", *ADMIN, **pointed_at(sim))


def waits_for_approval(scene: Scene) -> str:
    """The call waits for the operator until someone presses Ctrl-C."""
    with running("call", "guest_delete", "guest=test-vm", *ADMIN, environ=scene.environ, cwd=scene.home) as waiting:
        shown = waiting.stderr.readline()
        os.kill(waiting.pid, signal.SIGINT)
        waiting.wait()
    return shown


def without_tls(scene: Scene) -> str:
    assert quorate("tokens", "create", "me", environ=scene.environ, cwd=scene.home).returncode == 0
    return scene.alone("serve", "--http", "0.0.0.0:0")


@contextmanager
def serving(scene: Scene, *options: str) -> Iterator[str]:
    """The URL of a server on loopback."""
    arguments = ("serve", "--http", "127.0.0.1:0", *options)
    with running(*arguments, environ=scene.environ, cwd=scene.home) as server:
        yield server.stderr.readline().split()[-1]


def other_name(scene: Scene) -> str:
    folder = scene.home / "tls"
    folder.mkdir()
    cert, key = Authority(folder).issue()
    with serving(scene, "--tls-cert", str(cert), "--tls-key", str(key)) as url:
        return httpx2.get(url, headers={"Host": "nas.lan"}, verify=False).text


def wrong_token(scene: Scene) -> str:
    assert quorate("tokens", "create", "me", environ=scene.environ, cwd=scene.home).returncode == 0
    with serving(scene) as url:
        origin = url.removesuffix("/mcp")
        form = {"token": f"qrt_{'0' * 12}_{'0' * 64}"}
        return httpx2.post(f"{origin}/console/login", data=form, headers={"Origin": origin}).text


def unknown_host_key(scene: Scene) -> str:
    with running_sim(ssh=True) as sim:
        login = {
            "PROXMOX_VM_102_SSH_HOST": f"127.0.0.1:{sim.ssh_ports['pve1']}",
            "PROXMOX_VM_SSH_KEY": sim.ssh_key_file,
        }
        return scene.alone("call", "guest_exec", "guest=102", "command=id", *OPERATE, **pointed_at(sim), **login)


def paused_run(scene: Scene) -> str:
    def run(*arguments: str) -> str:
        return quorate(*arguments, environ=scene.environ, cwd=scene.home).stdout

    assert "result: started" in run("call", "run_evacuate", "node=pve1", "wait=0", *OPERATE)
    run("freeze", "--reason", "moving")
    return run("runs", *OPERATE, "work")


def waiting_run(scene: Scene) -> str:
    started = quorate("call", "run_evacuate", "node=pve1", "wait=0", *OPERATE, environ=scene.environ, cwd=scene.home)
    assert "result: started" in started.stdout, started.stderr
    return scene.run("runs", "work", "--access", "read")


def silent_channel(scene: Scene) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = scene.home / "config.toml"
    config.write_text(f'[watch.channels.phone]\ntype = "ntfy"\nurl = "http://127.0.0.1:{port}"\ntopic = "quorate"\n')
    return scene.run("watch", "--config", str(config), "test")


def misspelled(scene: Scene) -> str:
    config = scene.home / "config.toml"
    config.write_text('acces = "read"\n')
    return scene.call("guest_list", "--config", str(config))


def state_in_a_file(scene: Scene) -> str:
    (scene.home / "file").touch()
    state = str(scene.home / "file" / "state.sqlite")
    return scene.call("guest_power", "guest=win11", "action=start", *OPERATE, QUORATE_STATE=state)


def without_charts(scene: Scene) -> str:
    program = "import sys; sys.modules['matplotlib'] = None; from quorate.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "call", "metrics_get", "guest=docker01", "chart=true"]
    return subprocess.run(
        command, cwd=scene.home, env=scene.environ, capture_output=True, text=True, check=False
    ).stderr  # fmt: skip


TRIED: Mapping[str, Callable[[Scene], str]] = {
    "No cluster is configured": nothing_configured,
    "The certificate is not trusted": lambda on: on.alone("call", "guest_list", PROXMOX_FINGERPRINT=""),
    "The certificate changed": lambda on: on.alone("call", "guest_list", PROXMOX_FINGERPRINT="AB" * 32),
    "No connection to a node": refused_port,
    "The name cannot be resolved": lambda on: on.call("guest_list", PROXMOX_URL="https://pve.invalid:8006"),
    "The token is not accepted": lambda on: on.alone("call", "guest_list", PROXMOX_TOKEN_SECRET="nonsense"),
    "The token lacks a privilege": lacks_privilege,
    "The access level is too low": lambda on: on.call("guest_power", "guest=win11", "action=start"),
    "The tool is switched off": lambda on: on.call("firewall_get", "--toolsets", "guests"),
    "A destructive call waits for approval": waits_for_approval,
    "All changes are frozen": frozen,
    "The cluster has no quorum": no_quorum,
    "A node is offline": dead_node,
    "The guest is protected": lambda on: on.call("guest_delete", "guest=old-wiki", *ADMIN, "--approval", "none"),
    "The guest does not exist": lambda on: on.call("guest_get", "guest=dockr01"),
    "Only a stopped guest can be deleted": lambda on: on.call(
        "guest_delete", "guest=docker02", *ADMIN, "--approval", "none"
    ),
    "The guest agent is not configured": lambda on: on.call("guest_exec", "guest=legacy-db", "command=id", *OPERATE),
    "The guest agent does not answer": lambda on: on.call("guest_exec", "guest=router", "command=id", *OPERATE),
    "Commands in containers need SSH": lambda on: on.call("guest_exec", "guest=pihole", "command=id", *OPERATE),
    "The storage is full": lambda on: on.call("vm_create", "name=huge", 'disks=["90000G"]', *OPERATE),
    "The vmid is taken": lambda on: on.call("vm_create", "name=second", "vmid=100", *OPERATE),
    "The host key is not known": unknown_host_key,
    "A run is paused": paused_run,
    "A run waits for a worker": waiting_run,
    "A channel does not deliver": silent_channel,
    "The console does not let you in": wrong_token,
    "Listening on the network needs a token": lambda on: on.alone("serve", "--http", "0.0.0.0:0"),
    "Listening on the network needs TLS": without_tls,
    "421: the server does not have that name": other_name,
    "A setting is misspelled": misspelled,
    "The state cannot be written": state_in_a_file,
    "Charts are not installed": without_charts,
}


def test_every_entry_is_tried() -> None:
    assert len(SHOWN) >= 20
    assert set(SHOWN) == set(TRIED)


@pytest.mark.parametrize("entry", SHOWN)
def test_the_message_is_what_a_user_sees(entry: str, scene: Scene) -> None:
    pattern = ".+".join(re.escape(part) for part in SHOWN[entry].split("…"))
    assert re.search(pattern, TRIED[entry](scene)), SHOWN[entry]
