"""Every command on every page does what it says: it runs against a simulated cluster and hosts of this machine.

What cannot run here is in a table with its reason; if it is a `quorate` command, its words are still checked.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pve_simulator.simulator import SimulatedCluster
from quorate.cli import build_parser
from quorate.homelab.host import Host, Hosts
from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from tests import paths
from tests.rigs.cli import quorate
from tests.rigs.processes import running
from tests.rigs.simulator import pointed_at, running_sim
from tests.rigs.ssh_server import HOST, serving
from tests.rigs.ssh_server import Host as SshHost

pytestmark = pytest.mark.anyio

PAGES = [
    page
    for page in sorted(page for folder in ("", "docs/**/", "packages/**/") for page in paths.ROOT.glob(f"{folder}*.md"))
    if "decisions" not in page.parts and page.name != "CHANGELOG.md"
]
HOST_PAGES = [paths.ROOT / "docs" / "homelab" / f"{name}.md" for name in ("README", "admin", "commands", "hosts")]
"""They are about plain hosts and run without a cluster."""
NOT_RUN = {
    r"make ": "tests/test_readme.py checks the targets, and .ci/run runs them",
    r"(uv|uvx|pipx|pip) ": "installs packages from the internet",
    r"\.venv/bin/python -": "measures or tests Quorate itself",
    r"(sudo|docker|journalctl|cd|export|openssl|rm|tar) |as_quorate": "changes this machine or the shell",
    r"(pveum|terraform|claude|pass) ": "another program",
    r"curl |JSON$|\{": "needs a server with a real name: tests/surfaces/web",
    r"[A-Z_]+=\S*$": "a variable, not a command",
    r"pve-simulator .*&$|timeout ": "stays in the background, on fixed ports",
    r"eval |quorate completion ": "runs in the shells of tests/cli/test_completion.py",
    r"quorate tokens (create NAME|revoke NAME|\[)": "shows the form of a command",
    r"quorate (init|unfreeze|trust (?!-)|secrets (set|passphrase|remove))": "asks at a terminal: tests/cli",
    r"quorate trust --remove": "needs the key of that host: tests/cli/test_trust.py",
    r"quorate call (workload_|project_|service_|script_run)": "needs a container engine or a script: tests/homelab",
    r"quorate call (infra_|host_admin_setup)": "changes machines: tests/homelab, tests/real",
    r"quorate call (host_import source=scan|script_info .*text=)|quorate scripts refresh": "contacts other machines",
    r"quorate call terraform_export .*cluster=": "needs several clusters: tests/homelab",
}
"""A pattern of commands -> why they are not run. The words of `quorate` commands are still checked."""
FORMS = re.compile(r"quorate tokens (\[|create NAME \[)")
"""Usage, with brackets around what is optional."""
SERVERS = re.compile(r"quorate (serve|console|sim)\b")


def commands(page: Path) -> Iterator[str]:
    """The commands in blocks: every line of those for a shell, else what follows a prompt or begins with `quorate`."""
    language: str | None = None
    for line in re.sub(r"\\\n\s*", "", page.read_text()).splitlines():
        if fence := re.match(r"\s*```(\w*)", line):
            language = fence[1] if language is None else None
        elif language == "sh" or (language == "" and line.startswith(("$ ", "quorate "))):
            command = re.split(r"(?:^|\s+)#\s|\s+(?:2>&1\s*)?\|\s", line.removeprefix("$ "))[0].strip()
            if command:
                yield command


def reason_not_to_run(command: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), None)


ALL = {page: list(commands(page)) for page in PAGES}


def pages_with(run: bool) -> list[Path]:
    return [page for page, found in ALL.items() if any((reason_not_to_run(one) is None) is run for one in found)]


def page_name(page: Path) -> str:
    return str(page.relative_to(paths.ROOT))


@dataclass
class Scene:
    """A person at a shell, in a folder that starts empty."""

    home: Path
    environ: dict[str, str]
    hosts: Mapping[str, SshHost]

    def words(self, command: str) -> list[str]:
        """The words that the shell would pass on, with what differs here: addresses, ports and ids."""
        for name, host in self.hosts.items():
            address = {"nas": "192.168.1.20"}.get(name, "-")
            command = command.replace(f"address={address} ", f"address={HOST} port={host.port} ")
        if "k7m2q9" in command:
            listed = quorate("runs", "--all", "--json", environ=self.environ, cwd=self.home)
            command = command.replace("k7m2q9", json.loads(listed.stdout)[0]["id"])
        return [word.replace("~/", f"{self.home}/") for word in shlex.split(command)]

    def run(self, command: str) -> None:
        if SERVERS.match(command):
            self._serve(self.words(command))
            return
        done = quorate(*self.words(command)[1:], environ=self.environ, cwd=self.home)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip() or done.stderr.strip(), command

    def _serve(self, words: list[str]) -> None:
        """Start a server, wait until it says where it is, and end it. One over stdio ends with its input."""
        arguments = words[1:]
        over_http = "--http" in arguments
        if over_http:
            place = arguments.index("--http")
            arguments[place : place + 2 - (arguments[place + 1 :] == [])] = ["--http", f"{HOST}:0"]
        if arguments[0] == "console":
            arguments.append("--no-browser")
        with running(*arguments, environ=self.environ, cwd=self.home) as server:
            if arguments[0] == "serve" and not over_http:
                _, errors = server.communicate()
                assert server.wait() == 0, errors
                return
            stream = server.stdout if arguments[0] == "sim" else server.stderr
            line = stream.readline()
            assert f"://{HOST}" in line or "link works once" in line, line + server.stderr.readline()
            os.kill(server.pid, signal.SIGTERM)
            server.wait()


@contextmanager
def scene(tmp_path: Path, hosts: Mapping[str, SshHost], sim: SimulatedCluster | None) -> Iterator[Scene]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    if sim is not None:
        environ |= pointed_at(sim)
    if hosts:
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh" / "config").write_text(f"Host pi\n  HostName {HOST}\n")
        environ["QUORATE_HOMELAB_KNOWN_HOSTS"] = ",".join(str(host.known_hosts) for host in hosts.values())
        shutil.copy(hosts["nas"].key_file, tmp_path / ".ssh" / "lab")
    yield Scene(tmp_path, environ, hosts)


PROGRAM = "#!/bin/sh\n"
"""Of a host: systemctl, zpool and the like, which succeed."""


@asynccontextmanager
async def plain_hosts(tmp_path: Path) -> AsyncIterator[dict[str, SshHost]]:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("systemctl", "zpool"):
        (programs / name).write_text(PROGRAM)
        (programs / name).chmod(0o755)
    (programs / "sudo").write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    (programs / "sudo").chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(serving(tmp_path / name, environment=environment))
            for name in ("nas", "pve1")
        }


async def register(place: Path, hosts: Mapping[str, SshHost]) -> None:
    async with open_store(str(place), clock=SystemClock()) as store:
        for name, host in hosts.items():
            await Hosts(store).add(Host(name, HOST, host.port, user="tester", key=str(host.key_file)))


@pytest.mark.parametrize("page", [page for page in pages_with(run=True) if page in HOST_PAGES], ids=page_name)
async def test_the_commands_of_a_page_about_hosts_work_one_after_the_other(tmp_path: Path, page: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with plain_hosts(tmp_path) as hosts:
        registers = any("host_register host=nas" in command for command in ALL[page])
        present = {name: host for name, host in hosts.items() if not (registers and name == "nas")}
        await register(home / ".local" / "state" / "quorate" / "state.sqlite", present)
        with scene(home, hosts, None) as person:
            for command in ALL[page]:
                if reason_not_to_run(command) is None:
                    await asyncio.to_thread(person.run, command)


@pytest.mark.parametrize("page", [page for page in pages_with(run=True) if page not in HOST_PAGES], ids=page_name)
def test_the_commands_of_a_page_work_one_after_the_other(tmp_path: Path, page: Path) -> None:
    with running_sim() as sim, scene(tmp_path, {}, sim) as person:
        for command in ALL[page]:
            if reason_not_to_run(command) is None:
                person.run(command)


@pytest.mark.parametrize("page", pages_with(run=False), ids=page_name)
def test_a_command_that_cannot_run_here_has_words_that_quorate_takes(page: Path) -> None:
    for command in ALL[page]:
        if command.startswith("quorate ") and reason_not_to_run(command) and not FORMS.match(command):
            build_parser().parse_args(shlex.split(command)[1:])


def test_each_exception_is_needed() -> None:
    found = [command for commands in ALL.values() for command in commands]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, command) for command in found)] == []
