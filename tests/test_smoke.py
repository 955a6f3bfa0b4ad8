"""The smoke test: opted in to, scoped to a pool, and leaving nothing behind."""

import json
import os

import pytest

from pve_simulator.access.directory import Pool
from quorate.cli import main
from quorate.config import Access, Approval, ConfigError
from quorate.config.smoke import SmokeSettings, read_smoke
from quorate.smoke import Smoke
from tests.coverage.rows import volumes
from tests.rigs.compat_session import surface
from tests.rigs.processes import completed

pytestmark = pytest.mark.anyio

LIVE = {"PROXMOX_ENABLE_LIVE_SMOKE": "1"}
OPT_IN = ("PROXMOX_ENABLE_DESTRUCTIVE",)


def lab(tmp_path, **simulator):
    """A server whose operator has set the seed's opt-in and nothing else."""
    return surface(
        tmp_path,
        "solomonneas",
        opt_ins=OPT_IN,
        access=Access.READ,
        approval=Approval.ASK,
        gate_chosen=False,
        **simulator,
    )


async def smoked(quorate, wanted, *, pool=True):
    """Whether it went well, and its steps."""
    if pool:
        quorate.sim.world.access.pools["mcp-smoke"] = Pool("mcp-smoke")
    (tools,) = quorate.app.surfaces()
    steps = []
    smoke = Smoke(tools, wanted, clock=quorate.app.cluster.clock, say=lambda *step: steps.append(step))
    return await smoke.run(), steps


def names(steps):
    return [name for name, _, _ in steps]


async def test_without_wishes_it_only_reads(tmp_path):
    async with lab(tmp_path) as quorate:
        well, steps = await smoked(quorate, SmokeSettings(), pool=False)
        assert well
        assert names(steps) == ["status", "storages", "guests", "containers", "tasks"]
        assert {method for method, _ in quorate.sim.requests} == {"GET"}


async def test_the_life_of_a_scratch_container_with_backup_and_rollback_leaves_nothing_behind(tmp_path):
    wanted = SmokeSettings(create=True, backup_storage="nas", rollback=True)
    async with lab(tmp_path, ssh=True) as quorate:
        world = quorate.sim.world
        before = set(world.guests), volumes(world)
        well, steps = await smoked(quorate, wanted)
        assert well, [step for step in steps if not step[1]]
        assert (set(world.guests), volumes(world)) == before
        assert names(steps)[5:] == [
            "pool", "templates", "vmid", "create", "inspect", "backup", "backup listed", "remove backup", "snapshot",
            "write inside", "stop for rollback", "rollback", "look inside", "delete snapshot", "stop", "remove",
        ]  # fmt: skip
        written = [path for method, path in quorate.sim.requests if method != "GET"]
        assert all("/110" in path or path.endswith(("/lxc", "/vzdump")) or "/content/" in path for path in written)


async def test_without_a_way_into_the_container_the_rollback_is_made_and_said_not_to_be_verified(tmp_path):
    async with lab(tmp_path) as quorate:
        well, steps = await smoked(quorate, SmokeSettings(create=True, rollback=True))
        assert well
        (told,) = [facts for name, _, facts in steps if name == "write inside"]
        assert "no way in" in told["not_verified"] or "SSH" in told["not_verified"]
        assert "look inside" not in names(steps)


async def test_a_clone_is_started_waited_for_and_removed(tmp_path):
    async with lab(tmp_path) as quorate:
        world = quorate.sim.world
        before = set(world.guests), volumes(world)
        well, steps = await smoked(quorate, SmokeSettings(source=9000, target=777))
        assert well, [step for step in steps if not step[1]]
        assert names(steps)[6:] == ["source", "clone", "start", "address", "stop", "remove"]
        assert (set(world.guests), volumes(world)) == before


async def test_a_source_that_is_not_fit_is_not_cloned(tmp_path):
    async with lab(tmp_path) as quorate:
        well, steps = await smoked(quorate, SmokeSettings(source=104))
        assert not well
        assert steps[-1][1:] == (False, {"error": "The VM is running: stop it, or allow running sources"})
        assert {method for method, _ in quorate.sim.requests} == {"GET"}


async def test_what_fails_midway_is_removed_all_the_same(tmp_path):
    async with lab(tmp_path) as quorate:
        before = set(quorate.sim.world.guests)
        well, steps = await smoked(quorate, SmokeSettings(create=True, backup_storage="nowhere"))
        assert not well
        assert names(steps)[-2:] == ["backup", "remove"]
        assert set(quorate.sim.world.guests) == before


async def test_a_guest_that_took_the_id_meanwhile_is_not_touched(tmp_path):
    async with lab(tmp_path) as quorate:
        well, steps = await smoked(quorate, SmokeSettings(source=9000, target=107))
        assert not well
        assert names(steps)[-1] == "clone"
        assert 107 in quorate.sim.world.guests


async def test_a_pool_that_is_not_there_ends_it_before_anything_is_made(tmp_path):
    async with lab(tmp_path) as quorate:
        well, steps = await smoked(quorate, SmokeSettings(create=True), pool=False)
        assert not well
        assert "There is no pool 'mcp-smoke'" in steps[-1][2]["error"]
        assert {method for method, _ in quorate.sim.requests} == {"GET"}


async def test_a_service_inside_a_guest_is_looked_at_and_controlled(tmp_path):
    async with lab(tmp_path) as quorate:
        well, steps = await smoked(quorate, SmokeSettings(inside=102, service="ssh", service_action="restart"))
        assert well
        assert names(steps)[5:] == ["service", "service restart"]


# -- opting in ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "set PROXMOX_ENABLE_LIVE_SMOKE=1"),
        ({**LIVE, "PROXMOX_SMOKE_CREATE": "1"}, "set PROXMOX_ENABLE_DESTRUCTIVE=1 as well"),
        ({**LIVE, "PROXMOX_SMOKE_QEMU_SOURCE_VMID": "9000"}, "set PROXMOX_ENABLE_DESTRUCTIVE=1 as well"),
        ({**LIVE, "PROXMOX_SMOKE_QEMU_SOURCE_VMID": "many"}, "must be a whole number above 0"),
        ({**LIVE, "PROXMOX_SMOKE_BACKUP": "1"}, "set PROXMOX_SMOKE_CREATE=1 as well"),
        ({**LIVE, "PROXMOX_SMOKE_BACKUP_MODE": "hot"}, "must be snapshot, suspend or stop"),
        ({**LIVE, "PROXMOX_SMOKE_SERVICE_ACTION": "stop"}, "PROXMOX_SMOKE_SERVICE_ACTION_CONFIRM=1"),
    ],
)
def test_nothing_runs_that_the_environment_does_not_ask_for(variables, why):
    with pytest.raises(ConfigError, match=why):
        read_smoke(variables)


def test_the_variables_of_the_other_harness_are_understood():
    wanted = read_smoke(
        {
            **LIVE,
            "PROXMOX_ENABLE_DESTRUCTIVE": "1",
            "PROXMOX_SMOKE_CREATE": "1",
            "PROXMOX_SMOKE_BACKUP": "1",
            "PROXMOX_SMOKE_BACKUP_STORAGE": "nas",
            "PROXMOX_SMOKE_SNAPSHOT_ROLLBACK": "1",
            "PROXMOX_SMOKE_QEMU_SOURCE_VMID": "9000",
            "PROXMOX_SMOKE_SYSTEMD_VMID": "100",
        }
    )
    assert wanted == SmokeSettings(create=True, backup_storage="nas", rollback=True, source=9000, inside=100)


def test_the_commands_that_set_it_up_are_scoped_to_the_pool(capsys, monkeypatch):
    monkeypatch.setenv("PROXMOX_SMOKE_POOL", "scratch")
    with pytest.raises(SystemExit):
        main(["smoke", "--setup"])
    lines = capsys.readouterr().out.splitlines()
    paths = [line.split()[3] for line in lines if line.startswith("pveum acl modify")]
    assert paths == ["/pool/scratch", "/storage/local", "/storage/local-lvm", "/sdn"]
    assert "pveum pool add scratch" in lines


def test_the_command_tells_each_step_and_its_end(tmp_path):
    environ = {**os.environ, **LIVE, "XDG_STATE_HOME": str(tmp_path)}
    ended = completed("smoke", "--demo", "--json", environ=environ)
    assert ended.returncode == 0
    steps = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [step["step"] for step in steps] == ["status", "storages", "guests", "containers", "tasks"]
    assert all(step["ok"] for step in steps)
