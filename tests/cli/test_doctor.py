"""quorate doctor, at a real terminal and for scripts: what works, what does not, and how to fix it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.simulator import SimulatedCluster
from quorate.cli.grants import grant_script
from quorate.homelab.host import Host as Registered
from quorate.homelab.host import Hosts
from quorate.operations.registry import TOOLSETS
from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from tests.rigs.cli import quorate
from tests.rigs.expired_certificate import expired_server
from tests.rigs.silent_host import silent
from tests.rigs.simulator import pveum, run_script, running_sim
from tests.rigs.ssh_server import Host, serving
from tests.rigs.terminal import terminal


def pointed_at(sim: SimulatedCluster, **changes: str) -> dict[str, str]:
    return {
        "PROXMOX_URL": sim.url,
        "PROXMOX_TOKEN_ID": sim.token_id,
        "PROXMOX_TOKEN_SECRET": sim.token_secret,
        "PROXMOX_CA_FILE": sim.ca_file,
        **changes,
    }


def examined(environ: Mapping[str, str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    done = quorate("doctor", "--json", *arguments, environ=environ, cwd=Path(environ["HOME"]))
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["ok"] is (done.returncode == 0)
    return done.returncode, told["findings"]


def finding_of(findings: list[dict[str, Any]], check: str) -> dict[str, Any]:
    (matching,) = [finding for finding in findings if finding["check"] == check]
    return matching


def test_all_is_well_is_said_check_by_check(environ: dict[str, str]) -> None:
    with running_sim() as sim, terminal("doctor", environ={**environ, **pointed_at(sim)}) as screen:
        assert screen.end() == 0
        for check in ("settings", "state", "audit trail", "connection", "certificate", "token", "version", "clock"):
            assert f"ok    {check}" in screen.text
        assert "ok    privileges" in screen.text
        assert "No problems found." in screen.text
        assert sim.token_secret not in screen.text


def test_nothing_configured_is_a_failure_with_the_way_out(environ: dict[str, str]) -> None:
    with terminal("doctor", environ=environ) as screen:
        assert screen.end() == 1
        assert "quorate init" in screen.text


def test_a_mistake_in_the_settings_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('acces = "read"\n')
    code, findings = examined({**environ, "QUORATE_CONFIG": str(tmp_path / "config.toml")})
    assert code == 1
    assert "acces" in finding_of(findings, "settings")["says"]
    assert len(findings) == 1


def test_a_name_that_nobody_knows_ends_the_checks_of_that_cluster(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        code, findings = examined({**environ, **pointed_at(sim, PROXMOX_URL="https://pve.invalid:8006")})
    assert code == 1
    assert finding_of(findings, "name")["state"] == "fail"
    assert "IP address" in finding_of(findings, "name")["do"]
    assert [finding["state"] for finding in findings[-3:]] == ["skip", "skip", "skip"]


def test_a_refused_port_and_a_silent_host_have_different_errors(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with running_sim() as sim:
        code, findings = examined({**environ, **pointed_at(sim, PROXMOX_URL=f"https://127.0.0.1:{port}")})
    assert code == 1
    assert f"refuses connections on port {port}" in finding_of(findings, "connection")["says"]
    assert "8006" in finding_of(findings, "connection")["do"]


def test_an_address_that_no_host_can_have_is_refused_by_the_system_in_its_own_words(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        code, findings = examined({**environ, **pointed_at(sim, PROXMOX_URL="https://255.255.255.255:8006")})
    assert code == 1
    says = finding_of(findings, "connection")["says"]
    assert says.startswith("No connection to 255.255.255.255 on port 8006: ")
    assert "Connect call" not in says


def test_a_server_without_tls_is_named(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            for _ in range(2):  # the connection check, then the handshake
                connection, _ = plain.accept()
                with connection:
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{plain.getsockname()[1]}"
        with running_sim() as sim:
            code, findings = examined({**environ, **pointed_at(sim, PROXMOX_URL=url)})
        thread.join(10)
    assert code == 1
    assert "does not speak TLS" in finding_of(findings, "certificate")["says"]


def test_a_certificate_of_pves_own_ca_is_shown_with_its_fingerprint(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = pointed_at(sim)
        del settings["PROXMOX_CA_FILE"]
        code, findings = examined({**environ, **settings})
        assert code == 1
        assert sim.fingerprint in finding_of(findings, "certificate")["says"]
        assert "PROXMOX_FINGERPRINT" in finding_of(findings, "certificate")["do"]
        assert examined({**environ, **settings, "PROXMOX_FINGERPRINT": sim.fingerprint})[0] == 0


def test_a_pin_that_does_not_match_warns_of_someone_in_between(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = pointed_at(sim, PROXMOX_FINGERPRINT="AB" * 32)
        del settings["PROXMOX_CA_FILE"]
        code, findings = examined({**environ, **settings})
        assert ("GET", "/version") not in sim.requests
    assert code == 1
    assert "not the pinned one" in finding_of(findings, "certificate")["says"]
    assert "intercepting" in finding_of(findings, "certificate")["do"]


def test_a_name_that_is_not_in_the_certificate_is_shown_with_those_that_are(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        url = sim.url.replace("127.0.0.1", "127.0.0.2")
        with Forwarder("127.0.0.2", int(sim.url.rpartition(":")[2])):
            code, findings = examined({**environ, **pointed_at(sim, PROXMOX_URL=url)})
    assert code == 1
    assert "not valid for" in finding_of(findings, "certificate")["says"]
    assert "localhost" in finding_of(findings, "certificate")["do"]


def test_an_expired_certificate_is_refused_by_a_ca_and_warned_of_where_it_is_pinned(
    environ: dict[str, str], tmp_path: Path
) -> None:
    with expired_server(tmp_path) as (port, fingerprint, ca_file):
        settings = {
            "PROXMOX_URL": f"https://localhost:{port}",
            "PROXMOX_TOKEN_ID": "quorate@pve!mcp",
            "PROXMOX_TOKEN_SECRET": "x",
        }
        _, findings = examined({**environ, **settings, "PROXMOX_CA_FILE": ca_file})
        assert finding_of(findings, "certificate")["state"] == "fail"
        assert "expired" in finding_of(findings, "certificate")["says"]
        assert "pvecm updatecerts" in finding_of(findings, "certificate")["do"]
        _, findings = examined({**environ, **settings, "PROXMOX_FINGERPRINT": fingerprint})
        assert finding_of(findings, "certificate")["state"] == "warn"


def test_a_wrong_token_skips_what_needs_a_login(environ: dict[str, str]) -> None:
    wrong = "00000000-0000-4000-8000-000000000000"
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim, PROXMOX_TOKEN_SECRET=wrong)}
        with terminal("doctor", environ=settings) as screen:
            assert screen.end() == 1
            assert "FAIL  token" in screen.text
            assert "pveum user token list" in screen.text
            assert "skip  version, clock, privileges, SSH" in screen.text
            assert wrong not in screen.text


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
def test_missing_privileges_are_named_by_toolset_and_the_commands_grant_them(
    environ: dict[str, str], version: str
) -> None:
    with running_sim(version=version) as sim:
        secret = pveum(
            sim,
            [
                "pveum user add quorate@pve",
                "pveum acl modify /storage --users quorate@pve --roles PVEDatastoreUser",
                "pveum user token add quorate@pve mcp --privsep 0",
            ],
        )
        settings = pointed_at(sim, PROXMOX_TOKEN_ID="quorate@pve!mcp", PROXMOX_TOKEN_SECRET=secret)
        code, findings = examined({**environ, **settings}, "--access", "operate")
        assert code == 1
        lacking = finding_of(findings, "toolset guests")
        assert lacking["state"] == "fail"
        assert "VM.PowerMgmt" in lacking["says"]
        pveum(sim, finding_of(findings, "privileges")["commands"])
        code, findings = examined({**environ, **settings}, "--access", "operate")
        assert code == 0, findings


def test_rights_on_some_guests_only_are_no_failure(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        script = grant_script("quorate@pve!mcp", "read", 9, list(TOOLSETS)).replace("grant /vms ", "grant /vms/100 ")
        secret, _ = run_script(sim, script)
        settings = pointed_at(sim, PROXMOX_TOKEN_ID="quorate@pve!mcp", PROXMOX_TOKEN_SECRET=secret)
        code, findings = examined({**environ, **settings})
    assert code == 0, findings
    assert finding_of(findings, "toolset guests")["state"] == "warn"


def test_a_state_that_cannot_be_written_fails(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim), "QUORATE_STATE": str(tmp_path / "a-file" / "state.sqlite")}
        code, findings = examined(settings)
    assert code == 1
    assert finding_of(findings, "state")["state"] == "fail"
    assert finding_of(findings, "state")["do"]
    assert finding_of(findings, "audit trail, passphrase")["state"] == "skip"


def test_an_audit_trail_that_cannot_be_written_fails(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim), "QUORATE_AUDIT_FILE": str(tmp_path / "a-file" / "audit.jsonl")}
        code, findings = examined(settings)
    assert code == 1
    assert "QUORATE_AUDIT_FILE" in finding_of(findings, "audit trail")["do"]


def test_admin_without_a_passphrase_is_warned_of(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        code, findings = examined({**environ, **pointed_at(sim)}, "--access", "admin")
    assert code == 0
    assert "quorate approvals passphrase" in finding_of(findings, "passphrase")["do"]


def test_every_cluster_is_examined_and_one_failure_is_enough(environ: dict[str, str], tmp_path: Path) -> None:
    with running_sim() as prod, running_sim(nodes=1, guests=1) as lab:
        tables = "".join(
            f'[clusters.{name}]\nurl = "{sim.url}"\ntoken_id = "{sim.token_id}"\n'
            f'token_secret = "{secret}"\nfingerprint = "{sim.fingerprint}"\n'
            for name, sim, secret in (("prod", prod, prod.token_secret), ("lab", lab, "wrong"))
        )
        (tmp_path / "config.toml").write_text(tables)
        (tmp_path / "config.toml").chmod(0o600)
        code, findings = examined({**environ, "QUORATE_CONFIG": str(tmp_path / "config.toml")})
    assert code == 1
    tokens = {finding["place"]: finding["state"] for finding in findings if finding["check"] == "token"}
    assert tokens == {"cluster prod": "ok", "cluster lab": "fail"}


def test_a_dead_address_beside_a_living_one_fails_but_the_rest_is_examined(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = pointed_at(sim, PROXMOX_URL=f"https://pve.invalid:8006,{sim.url}")
        code, findings = examined({**environ, **settings})
    assert code == 1
    assert finding_of(findings, "name")["state"] == "fail"
    assert finding_of(findings, "token")["state"] == "ok"


def test_the_ways_in_by_ssh_are_tried_where_they_are_configured(environ: dict[str, str], tmp_path: Path) -> None:
    with running_sim(ssh=True) as sim:
        nodes = ", ".join(f'{node} = "127.0.0.1:{port}"' for node, port in sim.ssh_ports.items())
        (tmp_path / "config.toml").write_text(
            f'[clusters.home]\nurl = "{sim.url}"\ntoken_id = "{sim.token_id}"\ntoken_secret = "{sim.token_secret}"\n'
            f'fingerprint = "{sim.fingerprint}"\n[clusters.home.ssh]\nkey = "{sim.ssh_key_file}"\n'
            f'nodes = {{ {nodes} }}\nknown_hosts = "{sim.ssh_known_hosts}"\n'
        )
        (tmp_path / "config.toml").chmod(0o600)
        settings = {**environ, "QUORATE_CONFIG": str(tmp_path / "config.toml")}
        code, findings = examined(settings)
        assert code == 0, findings
        assert {finding["check"] for finding in findings if "SSH" in finding["check"]} == {
            f"SSH to {node}" for node in sim.ssh_ports
        }
        unknown = (tmp_path / "config.toml").read_text().replace(sim.ssh_known_hosts, os.devnull)
        (tmp_path / "config.toml").write_text(unknown.replace(f'known_hosts = "{os.devnull}"\n', ""))
        code, findings = examined(settings)
    assert code == 1
    assert "quorate trust" in finding_of(findings, f"SSH to {sim.node}")["do"]


def test_registered_hosts_are_tried_and_one_that_is_away_is_no_failure(environ: dict[str, str], tmp_path: Path) -> None:
    async def examined_hosts() -> tuple[int, list[dict[str, Any]]]:
        async with serving(tmp_path / "nas") as nas:
            async with open_store(environ["QUORATE_STATE"], clock=SystemClock()) as store:
                hosts = Hosts(store)
                await hosts.add(Registered("nas", "127.0.0.1", nas.port, key=str(nas.key_file)))
                await hosts.add(Registered("away", "127.0.0.1", 1))
                await hosts.add(Registered("off", "127.0.0.1", 2, active=False))
            known = {"QUORATE_HOMELAB_KNOWN_HOSTS": str(nas.known_hosts)}
            code, findings = await asyncio.to_thread(examined, {**environ, **known}, "--toolsets", "homelab")
            assert code == 0, findings
            assert finding_of(findings, "SSH to nas")["state"] == "ok"
            assert finding_of(findings, "SSH to away")["state"] == "warn"
            assert "no cluster" in finding_of(findings, "settings")["says"]
            return await asyncio.to_thread(examined, environ, "--toolsets", "homelab")

    code, findings = asyncio.run(examined_hosts())
    assert code == 1
    assert "quorate trust" in finding_of(findings, "SSH to nas")["do"]
    assert not any("off" in finding["check"] for finding in findings)


def test_a_login_that_may_not_run_pct_gets_the_line_for_sudoers(environ: dict[str, str], tmp_path: Path) -> None:
    with running_sim() as sim, running_host(tmp_path / "host") as host:
        (tmp_path / "config.toml").write_text(
            f'[clusters.home]\nurl = "{sim.url}"\ntoken_id = "{sim.token_id}"\ntoken_secret = "{sim.token_secret}"\n'
            f'fingerprint = "{sim.fingerprint}"\n[clusters.home.ssh]\nuser = "admin"\nkey = "{host.key_file}"\n'
            f'nodes = {{ {sim.node} = "127.0.0.1:{host.port}" }}\nknown_hosts = "{host.known_hosts}"\n'
            'networks = "127.0.0.0/8"\n'
        )
        (tmp_path / "config.toml").chmod(0o600)
        code, findings = examined({**environ, "QUORATE_CONFIG": str(tmp_path / "config.toml")})
    assert code == 1
    login = finding_of(findings, f"SSH to {sim.node}")
    assert "admin may not run pct" in login["says"]
    assert "admin ALL=(root) NOPASSWD: /usr/sbin/pct" in login["do"]
    assert "sudo -n pct list" in host.commands


@contextmanager
def running_host(folder: Path) -> Iterator[Host]:
    """An SSH server in a thread of its own whose sudo lets nobody do anything."""
    tools = folder.with_name("tools")
    tools.mkdir()
    (tools / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    (tools / "sudo").chmod(0o755)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    door = serving(folder, environment={"PATH": f"{tools}:{os.environ['PATH']}"})
    try:
        yield asyncio.run_coroutine_threadsafe(door.__aenter__(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(door.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def test_changes_that_need_a_yes_want_a_passphrase_as_well(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim), "QUORATE_APPROVE_CHANGES": "true"}
        _, findings = examined(settings, "--access", "operate")
    assert "quorate approvals passphrase" in finding_of(findings, "passphrase")["do"]


def test_the_clocks_are_compared(environ: dict[str, str]) -> None:
    from pve_simulator.clock import ManualClock

    with running_sim(clock=ManualClock()) as sim:
        _, findings = examined({**environ, **pointed_at(sim)})
    clock = finding_of(findings, "clock")
    assert clock["state"] == "warn"
    assert "NTP" in clock["do"]


class Forwarder:
    """Takes connections at another address of loopback and passes them on to 127.0.0.1 at the same port."""

    def __init__(self, host: str, port: int) -> None:
        self._listener = socket.create_server((host, port))
        self._port = port

    def __enter__(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()


def test_commands_in_containers_without_ssh_are_one_warning_and_no_connection(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim)}
        code, findings = examined(settings, "--access", "operate")
        assert code == 0, findings
        warned = finding_of(findings, "SSH")
        assert warned["state"] == "warn"
        assert "Commands in containers need SSH to their node" in warned["says"]
        assert "quorate trust" in warned["do"]
        assert not [finding for finding in findings if finding["check"].startswith("SSH to")]
        _, read_only = examined(settings, "--access", "read")
        assert finding_of(read_only, "SSH")["state"] == "skip"
        home = Path(environ["HOME"])
        refused = quorate("call", "guest_exec", "guest=pihole", "command=id", "--access=operate",
                          environ=settings, cwd=home)  # fmt: skip
        assert refused.returncode == 1
        assert "SSH to pve1 (192.168.10.11) is not set up" in refused.stderr
        assert "quorate trust 192.168.10.11" in refused.stderr


def test_a_host_that_is_off_is_a_warning_after_three_seconds(environ: dict[str, str]) -> None:
    with silent() as port:

        async def register() -> None:
            async with open_store(environ["QUORATE_STATE"], clock=SystemClock()) as store:
                await Hosts(store).add(Registered("nas", "127.0.0.1", port))

        asyncio.run(register())
        _, findings = examined(environ, "--toolsets", "hosts")
    off = finding_of(findings, "SSH to nas")
    assert off["state"] == "warn"
    assert off["says"] == f"127.0.0.1:{port} did not answer within 3 s"


def test_privileges_that_a_read_only_token_does_not_get_are_named(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        script = grant_script("quorate@pve!mcp", "read", 9, list(TOOLSETS))
        secret, _ = run_script(sim, script)
        settings = pointed_at(sim, PROXMOX_TOKEN_ID="quorate@pve!mcp", PROXMOX_TOKEN_SECRET=secret)
        code, findings = examined({**environ, **settings}, "--toolsets", "all")
    assert code == 0
    said = " ".join(finding["says"] for finding in findings if finding["check"] == "privileges")
    assert "to see the pending updates of nodes: Sys.Modify on /nodes" in said


def test_a_token_without_the_console_fails_the_check_of_the_default_tools(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        script = grant_script("quorate@pve!mcp", "operate", 9, list(TOOLSETS)).replace("VM.Console,", "")
        secret, _ = run_script(sim, script)
        settings = pointed_at(sim, PROXMOX_TOKEN_ID="quorate@pve!mcp", PROXMOX_TOKEN_SECRET=secret)
        code, findings = examined({**environ, **settings}, "--access", "operate")
    assert code == 1
    assert "VM.Console" in finding_of(findings, "toolset guests")["says"]
