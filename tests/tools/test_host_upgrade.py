"""Updates of hosts that are guests of a cluster: a snapshot first, and a rollback that outlives the call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pve_simulator.guest_os import execution
from pve_simulator.guest_os.execution import Io
from quorate.config import Access
from quorate.ssh.settings import Login
from tests.rigs.homelab import house
from tests.rigs.host_tools import plain_tools
from tests.rigs.mcp_session import Rig, rig, second_server
from tests.rigs.simulated_guests import CONTAINER, machine

pytestmark = pytest.mark.anyio
execution.load_commands()  # so that a program which a test replaces is not registered again afterwards

TOOLSETS = ("hosts", "guests", "inside", "snapshots", "runs")
GUEST = "demo/104"


def snapshots(quorate: Rig, vmid: int = 104) -> list[str]:
    return [name for name in quorate.sim.world.guests[vmid].snapshots if name.startswith("before-upgrade-")]


def rollbacks(quorate: Rig) -> list[str]:
    return [path for method, path in quorate.sim.requests if method == "POST" and path.endswith("/rollback")]


async def test_a_guest_is_upgraded_after_a_snapshot_which_the_answer_names(tmp_path: Path) -> None:
    async with rig(tmp_path, toolsets=TOOLSETS) as quorate:
        machine(quorate, 104).updates = ["libc6", "openssl"]
        shown = await quorate.facts("host_upgrade", host=GUEST, dry_run=True)
        assert "2 packages: libc6 1.0-1 -> 1.0-2, openssl" in shown["steps"][0]["step"]
        assert machine(quorate, 104).updates == ["libc6", "openssl"]
        done = await quorate.facts("host_upgrade", host=GUEST)
        assert (done["upgraded"], done["left"]) == (2, 0)
        assert [done["snapshot"]] == snapshots(quorate)
        assert rollbacks(quorate) == []


async def test_a_dry_run_says_that_new_lists_are_fetched_and_the_run_counts_what_they_contained(tmp_path: Path) -> None:
    async with rig(tmp_path, toolsets=TOOLSETS) as quorate:
        guest = machine(quorate, 104)
        guest.updates, guest.unfetched = [], ["libc6", "openssl"]
        [shown] = (await quorate.facts("host_upgrade", host=GUEST, dry_run=True))["steps"]
        assert "nothing is pending in its package lists" in shown["step"]
        assert "it fetches new package lists first and installs what they contain" in shown["step"]
        [as_listed] = (await quorate.facts("host_upgrade", host=GUEST, refresh=False, dry_run=True))["steps"]
        assert "fetches" not in as_listed["step"]
        done = await quorate.facts("host_upgrade", host=GUEST)
        assert (done["upgraded"], done["left"]) == (2, 0)


async def test_lists_that_cannot_be_fetched_are_no_upgrade(tmp_path: Path) -> None:
    async with rig(tmp_path, toolsets=TOOLSETS) as quorate:  # no package source answers
        refusal = await quorate.refusal("host_upgrade", host=GUEST, rollback=True)
        assert "was not upgraded: its package lists could not be fetched" in refusal
        assert "Failed to fetch" in refusal
        assert "refresh=false" in refusal
        assert rollbacks(quorate) == []


def refuse_to_configure(io: Io, args: list[str]) -> int:
    if "-s" in args or "update" in args:
        return 0
    io.complain("dpkg: error processing package libc6 (--configure):\n dependency problems - leaving unconfigured")
    return io.fail("E: Sub-process /usr/bin/dpkg returned an error code (1)", 100)


async def test_a_failed_upgrade_names_the_package_and_the_call_that_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(execution._commands, "apt-get", refuse_to_configure)
    async with rig(tmp_path, toolsets=TOOLSETS) as quorate:
        refusal = await quorate.refusal("host_upgrade", host=GUEST)
        [snapshot] = snapshots(quorate)
        assert f"snapshot_rollback guest=104 snapshot={snapshot} start=true" in refusal
        assert "package libc6: dependency problems - leaving unconfigured" in refusal
        await quorate.facts("snapshot_rollback", guest=104, snapshot=snapshot, start=True)
        assert quorate.sim.world.guests[104].running


@pytest.mark.parametrize("vmid", [104, CONTAINER])
async def test_a_failed_upgrade_is_set_back_if_that_was_requested(
    tmp_path: Path, vmid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the agent of a VM, and in a container by SSH to its node."""
    monkeypatch.setitem(execution._commands, "apt-get", refuse_to_configure)
    async with rig(tmp_path, toolsets=TOOLSETS, ssh=True) as quorate:
        shown = await quorate.facts("host_upgrade", host=f"demo/{vmid}", rollback=True, dry_run=True)
        assert "run_guest_update" in str(shown["warnings"])
        refusal = await quorate.refusal("host_upgrade", host=f"demo/{vmid}", rollback=True)
        [snapshot] = snapshots(quorate, vmid)
        assert f"it was rolled back to the snapshot {snapshot}" in refusal
        assert len(rollbacks(quorate)) == 1
        assert quorate.sim.world.guests[vmid].running
        assert quorate.audit()[-1]["risk"] == "destroy"


async def test_setting_a_guest_back_is_more_than_an_operator_may(tmp_path: Path) -> None:
    async with rig(tmp_path, toolsets=TOOLSETS, access=Access.OPERATE) as quorate:
        assert "admin" in await quorate.refusal("host_upgrade", host=GUEST, rollback=True)
        assert snapshots(quorate) == []


async def test_an_upgrade_that_outlasts_the_call_and_its_server_still_knows_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(io: Io, args: list[str]) -> int:
        if "-s" in args or "update" in args:
            return 0
        await io.machine.world.clock.sleep(600)
        return io.fail("E: dpkg was interrupted", 100)

    monkeypatch.setitem(execution._commands, "apt-get", slow)
    async with rig(tmp_path, toolsets=TOOLSETS) as quorate:
        begun = await quorate.facts("host_upgrade", host=GUEST, rollback=True, wait=5)
        [snapshot] = snapshots(quorate)
        back = f"snapshot_rollback guest=104 snapshot={snapshot} start=true"
        assert begun["snapshot"] == snapshot
        assert back in begun["next"]
        async with second_server(quorate, tmp_path / "second.jsonl") as other:
            [job] = await other.rows("host_job")
            still = await other.facts("host_job", action="poll", job=job["job"])
            assert (still["state"], still["snapshot"]) == ("running", snapshot)
            await quorate.clock.advance(700)
            ended = await other.facts("host_job", action="poll", job=job["job"])
            assert (ended["exit_code"], ended["snapshot"]) == (100, snapshot)
            assert back in ended["next"]
        assert rollbacks(quorate) == []


async def test_a_host_that_is_registered_under_the_name_of_a_guest_is_set_back_as_that_guest(tmp_path: Path) -> None:
    programs = Path(plain_tools(tmp_path / "tools"))
    (programs / "apt-get").write_text(
        '#!/bin/sh\ncase "$*" in -s*|*update) exit;; esac; { echo "E: dpkg was interrupted" >&2; exit 100; }\n'
    )
    (programs / "apt-get").chmod(0o755)
    path = {"environment": {"PATH": f"{programs}:/usr/bin:/bin"}}
    hosts = {"k3s-server": path, "nas": path}
    async with house(tmp_path, hosts, toolsets=(*TOOLSETS, "host_admin")) as built:
        quorate = built.quorate
        assert quorate.app.cluster is not None
        access = quorate.app.cluster.ssh
        here = Login(f"127.0.0.1:{built.hosts['k3s-server'].port}", user="root")
        access.settings = replace(access.settings, single_guests={104: here})
        refusal = await quorate.refusal("host_upgrade", host="k3s-server", rollback=True)
        [snapshot] = snapshots(quorate)
        assert f"The upgrade of host k3s-server failed; it was rolled back to the snapshot {snapshot}" in refusal
        assert len(rollbacks(quorate)) == 1
        both = await quorate.facts("host_upgrade", host=["nas", "k3s-server"], rollback=True, dry_run=True)
        assert "run_guest_update" in both["warnings"][0]
        assert both["warnings"][1].startswith("Rolling back is not possible on host nas")
        alone = await quorate.facts("host_upgrade", host="nas", rollback=True, dry_run=True)
        assert alone["warnings"] == [
            "Rolling back is not possible on host nas: only guests of a cluster get a snapshot"
        ]
        refusal = await quorate.refusal("host_upgrade", host="nas")
        assert "The upgrade of host nas failed" in refusal
        assert "dpkg was interrupted" in refusal
        assert len(snapshots(quorate)) == 1
        quorate.sim.faults.add("500:away:GET:/cluster/resources")
        await quorate.clock.advance(3600)
        refusal = await quorate.refusal("host_upgrade", host="nas")
        assert "It is not known whether host nas is a guest that needs a snapshot" in refusal


async def test_host_status_names_packages_that_are_half_configured(tmp_path: Path) -> None:
    programs = Path(plain_tools(tmp_path / "tools"))
    for name, output in {"apt-get": "", "dpkg-query": "installed libc6\\nhalf-configured nginx"}.items():
        (programs / name).write_text(f"#!/bin/sh\nprintf '{output}\\n'\n")
        (programs / name).chmod(0o755)
    async with house(tmp_path, {"nas": {"environment": {"PATH": f"{programs}:/usr/bin:/bin"}}}) as built:
        [row] = await built.quorate.rows("host_status", host="nas")
        assert "half-configured: nginx" in row["updates"]
        assert "packages" in row["attention"]
        shown = await built.quorate.facts("host_upgrade", host="nas", dry_run=True)
        assert "half-configured: nginx" in shown["steps"][0]["step"]
