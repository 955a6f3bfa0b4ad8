"""Changes on hosts, inside guests and by infrastructure plans: their servers are killed as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quorate import units
from quorate.config.homelab import HomelabSettings
from quorate.ssh.settings import Login, SshSettings
from tests.journal.kills import Scene, chosen, run_and_kill, scene
from tests.journal.truth import resolved_on
from tests.rigs.docker_engine import DockerEngine, docker_engine
from tests.rigs.host_tools import plain_tools
from tests.rigs.ssh_server import HOST, Host, serving

pytestmark = pytest.mark.anyio
MOMENTS = 15
"""Of each kind, unless EVERY_MOMENT is set."""


class Lab:
    """A host with a Docker engine outside the cluster."""

    def __init__(self, stage: Scene, box: Host, engine: DockerEngine, folder: Path) -> None:
        self.stage = stage
        self.engine = engine
        self.file = folder / "written"
        self.host = {"address": HOST, "port": box.port, "user": "tester", "key": str(box.key_file)}

    def done_outside(self) -> list[str]:
        """What has happened on the host and in the cluster, in any order."""
        lines = self.file.read_text().split() if self.file.exists() else []
        return sorted([*lines, *self.engine.changes, *(" ".join(write) for write in self.stage.writes().elements())])


@asynccontextmanager
async def lab(folder: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        await anyio.Path(folder).mkdir()
        engine = await stack.enter_async_context(docker_engine(folder))
        environment = {"PATH": plain_tools(folder / "tools"), "DOCKER_HOST": f"unix://{engine.socket}"}
        box = await stack.enter_async_context(serving(folder / "box", environment=environment))
        ssh = SshSettings(Login(user="tester"), known_hosts=(box.known_hosts,), pins=folder / "pins")
        homelab = HomelabSettings(
            ssh=ssh,
            secrets_folder=folder,
            secrets_file=folder / "secrets",
            catalogue=folder / "catalogue",
            work=folder / "work",
        )
        stage = await stack.enter_async_context(scene(folder, ssh=True, homelab=homelab, toolsets=("all", "homelab")))
        yield Lab(stage, box, engine, folder)


Given = Callable[[Lab], dict[str, Any]]


def registered(home: Lab) -> dict[str, Any]:
    return {"host": "box", **home.host, "verify": False}


def document(home: Lab) -> dict[str, Any]:
    return {
        "document": {
            "name": "lab",
            "hosts": {"two": home.host},
            "workloads": {"db": {"host": "two", "image": "postgres:16"}},
            "guests": {"made": {"cluster": "demo", "clone": "9000", "running": False}},
        }
    }


KINDS: dict[str, tuple[str, Given, bool]] = {
    "register": ("host_register", registered, False),
    "update": ("host_update", lambda home: {"host": "box", "labels": ["new"]}, True),
    "remove": ("host_remove", lambda home: {"host": "box"}, True),
    "command": ("host_exec", lambda home: {"host": "box", "command": f"echo run >> {home.file}"}, True),
    "command on a node": ("host_exec", lambda home: {"host": "pve1", "command": "hostname"}, False),
    "deploy": ("workload_deploy", lambda home: {"host": "box", "name": "web", "image": "nginx:1.27"}, True),
    "inside": ("guest_exec", lambda home: {"guest": 102, "command": "touch /tmp/x"}, False),
    "file": ("guest_file_write", lambda home: {"guest": 102, "path": "/tmp/x", "content": "word"}, False),
    "service": ("guest_service_control", lambda home: {"guest": 102, "service": "cron", "action": "restart"}, False),
    "infrastructure": ("infra_apply", document, False),
}


async def kill_everywhere(tmp_path: Path, kind: str, choose: Callable[[list[str]], list[int]]) -> None:
    tool, arguments_for, needs_host = KINDS[kind]
    async with lab(tmp_path / "usual") as home:
        await home.stage.prepare((("host_register", registered(home)),) if needs_host else ())
        living = await run_and_kill(home.stage, tool, arguments_for(home))
        usual = home.done_outside()
        (entry,) = [line for line in home.stage.entries() if line["tool"] == tool and "wire" in line][-1:]
        assert entry["outcome"] == "done", living.told
    for moment in choose(living.moments):
        async with lab(tmp_path / str(moment)) as home:
            await home.stage.prepare((("host_register", registered(home)),) if needs_host else ())
            before = len(home.stage.entries())
            await run_and_kill(home.stage, tool, arguments_for(home), moment)
            done = home.done_outside()
            assert not [line for line in set(done) if done.count(line) > usual.count(line)], "something was done twice"
            entries = (await resolved_on(home.stage))[before:]
            assert not done or entries, "something was done without an entry"
            for line in entries:
                assert_entry_matches(line, done)


def assert_entry_matches(entry: dict[str, Any], done: list[str]) -> None:
    assert entry["outcome"] not in ("unfinished", "interrupted", "failed")
    if entry["outcome"] == "not done":
        assert done == []
    if "unknown" in [step["state"] for step in entry["steps"]]:
        assert any("Look at it before you repeat the call" in line for line in entry["found"])


def some(moments: list[str]) -> list[int]:
    """Around the writes of the journal, and in the midst of the work."""
    written = [number for number, what in enumerate(moments, 1) if what in ("after intent", "before step")]
    return [written[0], *range(written[0] + 3, written[-1], max(1, (written[-1] - written[0]) // 3)), written[-1]]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["command", "infrastructure"])
async def test_a_server_of_a_homelab_that_is_killed_leaves_the_truth_behind(tmp_path: Path, kind: str) -> None:
    await kill_everywhere(tmp_path, kind, some)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_may_be_killed_at_any_moment_of_a_homelab_change(tmp_path: Path, kind: str) -> None:
    await kill_everywhere(tmp_path, kind, lambda moments: chosen(moments, MOMENTS, kind))


async def test_of_several_hosts_each_is_resolved_by_its_own_steps(tmp_path: Path) -> None:
    """The first host was at its second step, the second one at its first: its second step was never tried."""
    async with scene(tmp_path, toolsets=("homelab",), homelab=HomelabSettings()) as stage:
        dying = stage.server()
        wire: list[dict[str, Any]] = [
            {"cluster": "homelab", "action": line, "target": f"host {host}", "calls": []}
            for host in ("one", "two")
            for line in ("useradd quorate", "visudo -cf")
        ]
        now = units.moment(stage.time.time())
        begun = {"time": now, "cluster": "homelab", "tool": "host_admin_setup", "wire": wire}
        change = dying.pipeline.journal.change()
        await change.begin({**begun, "independent": True, "sequences": [2, 2]})
        await change.record_answer({"step": "1", "state": "done", "time": now})
        await dying.close()
        (entry,) = await resolved_on(stage)
        assert [step["state"] for step in entry["steps"]] == ["done", "unknown", "unknown", "not tried"]


async def test_what_a_killed_change_of_several_hosts_left_is_shown_host_by_host(tmp_path: Path) -> None:
    async with scene(tmp_path, toolsets=("homelab",), homelab=HomelabSettings()) as stage:
        dying = stage.server()
        now = units.moment(stage.time.time())
        wire = [
            {"cluster": "homelab", "action": "docker stop web", "target": f"host {host}", "calls": []}
            for host in ("one", "two")
        ]
        arguments = {"host": ["one", "two"], "name": "web", "action": "stop"}
        begun = {"time": now, "cluster": "homelab", "tool": "workload_power", "arguments": arguments, "wire": wire}
        await dying.pipeline.journal.change().begin({**begun, "independent": True, "sequences": [1, 1, 1]})
        await dying.close()
        (entry,) = await resolved_on(stage)
        for line, host in zip(entry["found"], ("one", "two"), strict=True):
            assert f"There is no host '{host}'" in line
