"""Whose access a run has: its caller's, as it is at each step, on every cluster that it touches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from quorate.runs.store import Run, RunState
from tests.pipeline.test_policy import policy
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import rig, second_server, text_of
from tests.rigs.several_clusters import SeveralClusters, several_clusters
from tests.rigs.web_server import Web, served, web

pytestmark = pytest.mark.anyio

MOVE = {"guest": 104, "to": "lab", "storage": "local", "cluster": "prod"}
OF_LAB = ("lab1", "lab2", "playground", "scratch")


async def use(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, text_of(answer)
    return dict(answer.structured_content)


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer.structured_content
    return text_of(answer)


# -- the token of a run's caller ---------------------------------------------------------------------------------------


@asynccontextmanager
async def evacuating(tmp_path: Path, **scope: Any) -> AsyncIterator[tuple[Web, str]]:
    """A run that the holder of a token has started, one guest at a time, and that no process continues yet."""
    async with web(tmp_path, toolsets=("all",)) as quorate:
        token = await quorate.token("alice", "operate", **scope)
        async with quorate.client(token) as alice:
            started = await use(alice, "run_evacuate", node="pve3", with_local_disks=True, parallel=1)
        yield quorate, started["run"]


async def carried_on(quorate: Web, run: str) -> Run:
    await quorate.rig.app.runs.work()
    return await quorate.rig.app.runs.get(run)


def moves(quorate: Web) -> int:
    return sum(method == "POST" and path.endswith("/migrate") for method, path in quorate.rig.sim.requests)


async def revoke_after_first_step(quorate: Web) -> None:
    """Revoke the token as soon as the first step of the run has begun."""
    store = quorate.rig.app.runs.store
    original = store.change_ours

    async def watched(id: str, edit: Any) -> Any:
        run = await original(id, edit)
        if run.current:
            await quorate.tokens.revoke("alice")
        return run

    store.change_ours = watched  # type: ignore[method-assign]


@tries("a run continues after its caller's token was revoked, expired or lost scope")
async def test_a_run_pauses_when_the_token_of_its_caller_is_revoked(tmp_path: Path) -> None:
    async with evacuating(tmp_path) as (quorate, name):
        await quorate.tokens.revoke("alice")
        run = await carried_on(quorate, name)
        assert run.state is RunState.PAUSED
        assert "token alice" in run.reason
        assert "revoked" in run.reason
        assert moves(quorate) == 0


@tries("a run continues after its caller's token was revoked, expired or lost scope")
async def test_a_token_revoked_in_the_middle_stops_the_run_before_its_next_step(tmp_path: Path) -> None:
    async with evacuating(tmp_path) as (quorate, name):
        await revoke_after_first_step(quorate)
        run = await carried_on(quorate, name)
        assert (run.state, "revoked" in run.reason) == (RunState.PAUSED, True)
        assert moves(quorate) <= 1


async def test_a_run_pauses_when_the_token_of_its_caller_expires(tmp_path: Path) -> None:
    async with web(tmp_path, toolsets=("all",)) as quorate:
        token = await quorate.token("alice", "operate", expires=quorate.rig.clock.now() + 3600)
        async with quorate.client(token) as alice:
            started = await use(alice, "run_evacuate", node="pve3", with_local_disks=True)
        await quorate.rig.clock.advance(3601)
        run = await carried_on(quorate, started["run"])
        assert (run.state, "expired" in run.reason) == (RunState.PAUSED, True)


@pytest.mark.parametrize(
    ("narrowed", "why"),
    [("access = 'read'", "the token has read"), ("clusters = '[]'", "outside the scope"), ("toolsets = '[]'", "scope")],
)
async def test_a_run_pauses_when_the_scope_of_its_caller_gets_too_small(
    tmp_path: Path, narrowed: str, why: str
) -> None:
    async with evacuating(tmp_path) as (quorate, name):
        await quorate.rig.app.store.execute(f"UPDATE quorate_tokens SET {narrowed}")
        run = await carried_on(quorate, name)
        assert run.state is RunState.PAUSED
        assert why in run.reason
        assert moves(quorate) == 0


async def test_someone_with_enough_access_resumes_the_run_and_it_acts_for_them(tmp_path: Path) -> None:
    async with evacuating(tmp_path) as (quorate, name):
        await quorate.tokens.revoke("alice")
        await carried_on(quorate, name)
        reader, bob = await quorate.token("reader"), await quorate.token("bob", "operate")
        async with quorate.client(reader) as client:
            assert "needs operate" in await refusal(client, "run_control", run=name, action="resume")
        async with quorate.client(bob) as client:
            await use(client, "run_control", run=name, action="resume")
        run = await carried_on(quorate, name)
        assert run.state is RunState.DONE, run.reason
        assert str(run.caller["subject"]).startswith("token bob")
        steps = [entry for entry in quorate.rig.audit() if entry["tool"] == "guest_migrate"]
        assert steps
        assert all(str(entry["caller"]["subject"]).startswith("token bob") for entry in steps)


async def test_a_run_that_was_paused_for_another_reason_keeps_its_caller(tmp_path: Path) -> None:
    async with evacuating(tmp_path) as (quorate, name):
        bob = await quorate.token("bob", "operate")
        async with quorate.client(bob) as client:
            await use(client, "run_control", run=name, action="pause")
            await use(client, "run_control", run=name, action="resume")
        run = await carried_on(quorate, name)
        assert run.state is RunState.DONE, run.reason
        assert str(run.caller["subject"]).startswith("token alice")


async def test_aborting_a_run_of_a_revoked_token_cleans_up_for_the_one_who_aborts_it(tmp_path: Path) -> None:
    async with web(tmp_path, toolsets=("all",)) as quorate:
        before = set(quorate.rig.sim.world.guests)
        token = await quorate.token("alice", "admin")
        async with quorate.client(token) as alice:
            started = await use(alice, "run_restore_drill", guest=102)
        store = quorate.rig.app.runs.store
        original = store.change_ours

        async def watched(id: str, edit: Any) -> Any:
            run = await original(id, edit)
            if "start-0" in run.current:
                await quorate.tokens.revoke("alice")
            return run

        store.change_ours = watched  # type: ignore[method-assign]
        run = await carried_on(quorate, started["run"])
        assert (run.state, "revoked" in run.reason) == (RunState.PAUSED, True)
        assert set(quorate.rig.sim.world.guests) > before
        carol, bob = await quorate.token("carol", "operate"), await quorate.token("bob", "admin")
        async with quorate.client(carol) as client:
            for action in ("resume", "abort"):
                assert "needs admin" in await refusal(client, "run_control", run=run.id, action=action)
        async with quorate.client(bob) as client:
            await use(client, "run_control", run=run.id, action="abort")
        run = await carried_on(quorate, run.id)
        assert run.state is RunState.ABORTED, run.reason
        assert set(quorate.rig.sim.world.guests) == before


@tries("a run that may destroy something is continued with less access than it takes to start it")
async def test_a_destructive_run_is_resumed_and_aborted_only_with_the_access_that_starts_it(tmp_path: Path) -> None:
    async with web(tmp_path, toolsets=("all",)) as quorate:
        admin, carol = await quorate.token("alice", "admin"), await quorate.token("carol", "operate")
        async with quorate.client(admin) as alice, quorate.client(carol) as client:
            name = (await use(alice, "run_restore_drill", guest=102))["run"]
            await use(client, "run_control", run=name, action="pause")  # stopping is easy
            await carried_on(quorate, name)
            for action in ("resume", "abort"):
                assert "only with access admin" in await refusal(client, "run_control", run=name, action=action)
            assert (await carried_on(quorate, name)).state is RunState.PAUSED
            await use(alice, "run_control", run=name, action="resume")
        assert (await carried_on(quorate, name)).state is RunState.DONE


@tries("a run shows what is inside guests, or which guests are hidden")
async def test_a_run_shows_what_it_saw_inside_to_those_who_may_look_inside(tmp_path: Path) -> None:
    async with web(tmp_path, toolsets=("all",)) as quorate:
        admin, reader = await quorate.token("alice", "admin"), await quorate.token("reader", "read")
        async with quorate.client(admin) as alice, quorate.client(reader) as client:
            name = (await use(alice, "run_restore_drill", guest=102, check="cat /etc/passwd"))["run"]
            assert (await carried_on(quorate, name)).state is RunState.DONE
            seen = await alice.call_tool("run_get", {"run": name, "inside": True})
            assert "root:x:0:0" in text_of(seen)
            assert [block.type for block in seen.content] == ["text", "image"]
            assert "needs operate" in await refusal(client, "run_get", run=name, inside=True)
            for tool in ("run_get", "run_wait"):
                answer = await client.call_tool(tool, {"run": name, "lines": 1000})
                assert not answer.is_error
                assert "passed" in text_of(answer)
                assert "root:x:0:0" not in text_of(answer)
                assert {block.type for block in answer.content} == {"text"}


@tries("a run shows what is inside guests, or which guests are hidden")
async def test_a_run_for_a_hidden_guest_is_as_hidden_as_the_guest(tmp_path: Path) -> None:
    rule = policy('[[rules]]\nname = "not for you"\ndeny = "read"\nvmids = [102]\n')
    async with (
        rig(tmp_path, in_memory=True) as quorate,
        second_server(quorate, tmp_path / "b.jsonl", policy=rule) as veiled,
    ):
        name = (await quorate.facts("run_restore_drill", guest=102))["run"]
        attempts: list[tuple[str, dict[str, Any]]] = [
            ("run_get", {}),
            ("run_get", {"inside": True}),
            ("run_wait", {"wait": 0}),
            *(("run_control", {"action": action}) for action in ("pause", "resume", "abort")),
        ]
        for tool, more in attempts:
            assert f"There is no run '{name}'" in await veiled.refusal(tool, run=name, **more)
        missing, hidden = [await veiled.refusal("run_get", run=run_id) for run_id in ("NOSUCH", name.upper())]
        assert hidden == missing.replace("nosuch", name)
        assert await veiled.rows("run_list", state="all") == []
        assert (await quorate.app.runs.get(name)).state is RunState.RUNNING


@tries("a run shows what is inside guests, or which guests are hidden")
async def test_hidden_runs_take_no_room_in_a_list(tmp_path: Path) -> None:
    rule = policy('[[rules]]\nname = "not for you"\ndeny = "read"\nvmids = [102]\n')
    async with (
        rig(tmp_path, in_memory=True) as quorate,
        second_server(quorate, tmp_path / "b.jsonl", policy=rule) as veiled,
    ):
        visible = [(await quorate.facts("run_evacuate", node="pve3", stopped=stopped))["run"] for stopped in (0, 1)]
        for _ in range(3):
            await quorate.clock.advance(1)
            await quorate.facts("run_restore_drill", guest=102)
        assert {row["run"] for row in await veiled.rows("run_list", limit=2)} == set(visible)
        assert len(await veiled.rows("run_list", limit=1)) == 1


# -- whose runs a server continues ------------------------------------------------------------------------------------


@tries("a run acts on another cluster of the same name")
async def test_a_server_leaves_runs_of_clusters_alone_that_it_does_not_have(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        name = (await quorate.facts("run_evacuate", node="pve3", with_local_disks=True, cluster="prod"))["run"]
        prod, lab = quorate.app.settings.clusters
        for clusters in ((lab,), (replace(lab, name="prod"),)):
            async with second_server(quorate, tmp_path / "b.jsonl", clusters=clusters) as other:
                assert await other.app.runs.work() == []
                assert (await other.app.runs.blocked_runs())[name].needed is None
                assert f"There is no run '{name}'" in await other.refusal("run_control", run=name, action="abort")
                assert (await other.facts("run_list"))["rows"] == []
        assert not quorate.writes_to("lab")
        assert (await quorate.app.runs.get(name)).state is RunState.RUNNING
        more = replace(prod.connection, endpoints=("https://192.0.2.1:8006", *prod.connection.endpoints))
        async with second_server(quorate, tmp_path / "b.jsonl", clusters=(replace(prod, connection=more),)) as other:
            (run,) = await other.app.runs.due()
            assert run.id == name


# -- the other cluster of a move ---------------------------------------------------------------------------------------


@tries("a move to another cluster shows what is there, or bypasses its rules")
@pytest.mark.parametrize("tool", ["run_remote_move", "guest_remote_migrate"])
async def test_a_token_for_one_cluster_learns_nothing_of_another(tmp_path: Path, tool: str) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as inner, served(inner) as quorate:
        token = await quorate.token("prod-only", "admin", clusters=["prod"])
        more = {"node": "lab1", "vmid": 608} if tool == "guest_remote_migrate" else {}
        asked = len(inner.sims["lab"].requests)
        async with quorate.client(token) as client:
            for to in ("lab", "nowhere"):
                refused = await refusal(client, tool, guest=104, to=to, **more)
                assert f"There is no cluster '{to}'" in refused
                assert not [word for word in (*OF_LAB, "lab,", "prod, lab") if word in refused]
        assert len(inner.sims["lab"].requests) == asked


@tries("a move to another cluster shows what is there, or bypasses its rules")
async def test_a_move_to_a_cluster_that_the_caller_does_not_know_is_not_shown(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as inner, served(inner) as quorate:
        name = (await inner.facts("run_remote_move", **MOVE))["run"]
        limited = await quorate.token("prod-only", "admin", clusters=["prod"])
        async with quorate.client(limited) as client:
            assert (await use(client, "run_list", state="all"))["rows"] == []
            for tool, more in (("run_get", {}), ("run_wait", {"wait": 0}), ("run_control", {"action": "pause"})):
                assert f"There is no run '{name}'" in await refusal(client, tool, run=name, **more)
        async with quorate.client(await quorate.token("both", "admin")) as client:
            (row,) = (await use(client, "run_list", state="all"))["rows"]
            assert name in row
            assert (await use(client, "run_get", run=name, cluster="prod"))["run"] == name


@tries("a move to another cluster shows what is there, or bypasses its rules")
async def test_rules_of_the_other_cluster_refuse_a_move_before_anyone_is_asked(tmp_path: Path) -> None:
    for rule, words in (
        ('deny = "change"\nvmids = [104]\n', "not here"),
        ('deny = "change"\nnames = "k3s*"\n', "not here"),
        ('deny = "change"\nstorages = "local"\n', "not here"),
        ('deny = "change"\ntools = "run_remote_move"\n', "not here"),
    ):
        own = {"lab": {"policy": policy(f'[[rules]]\nname = "not here"\n{rule}')}}
        async with several_clusters(tmp_path, "prod", "lab", own=own) as quorate:
            assert words in await quorate.refusal("run_remote_move", **MOVE), rule
            assert await quorate.app.runs.store.list() == []


async def test_the_access_level_of_the_other_cluster_counts(tmp_path: Path) -> None:
    from quorate.config import Access

    async with several_clusters(tmp_path, "prod", "lab", own={"lab": {"access": Access.READ}}) as quorate:
        assert "refused at access level read" in await quorate.refusal("run_remote_move", **MOVE)


async def test_privileges_in_the_other_cluster_are_checked_before_the_run_starts(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        limit_lab_token(quorate, "VM.Allocate,Datastore.AllocateSpace,Datastore.Audit,Sys.Audit,VM.Audit,SDN.Use")
        refused = await quorate.refusal("run_remote_move", **MOVE)
        assert "Sys.Incoming" in refused
        assert await quorate.app.runs.store.list() == []


async def test_a_hidden_guest_of_the_other_cluster_is_not_named(tmp_path: Path) -> None:
    own = {"lab": {"policy": policy('[[rules]]\nname = "secret"\ndeny = "read"\nnames = "play*"\n')}}
    async with several_clusters(tmp_path, "prod", "lab", own=own) as quorate:
        refused = await quorate.refusal(
            "run_remote_move", guest=104, to="lab", storage="local", vmid=100, cluster="prod"
        )
        assert "is taken" in refused
        assert "playground" not in refused
        moved = await quorate.facts(
            "run_remote_move", guest="router", to="lab", storage="local", bridge="vmbr0", cluster="prod"
        )
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(moved["run"])
        assert run.state is RunState.DONE, run.reason
        assert run.scope["target_vmid"] != 100
        shown = str(await quorate.facts("run_get", run=run.id, lines=1000))
        assert "playground" not in shown


def limit_lab_token(quorate: SeveralClusters, privileges: str) -> None:
    """The token of Quorate in lab has these privileges and no others."""
    sim = quorate.sims["lab"]
    access = sim.world.access
    access.custom_roles["Little"] = frozenset(privileges.split(","))
    user, _, name = sim.token_id.partition("!")
    access.users[user].tokens[name].privsep = True
    access.grant("/", "Little", sim.token_id)
