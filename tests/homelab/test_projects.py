"""Compose projects and disk space, every day: newer images or the former ones, what takes space, what can go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quorate.config import Access
from tests.homelab.test_workloads import with_docker
from tests.rigs.docker_command import OLD, DockerCommand
from tests.rigs.homelab import house
from tests.rigs.mcp_session import Rig

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def shop(tmp_path: Path, **options) -> AsyncIterator[tuple[Rig, DockerCommand]]:
    host = DockerCommand(tmp_path / "machine")
    async with house(tmp_path, {"box": host.options}, toolsets=("hosts", "workloads"), **options) as built:
        yield built.quorate, host


async def test_a_project_gets_newer_images_and_a_dry_run_changes_nothing(tmp_path):
    async with shop(tmp_path, access=Access.OPERATE) as (quorate, host):
        assert "admin" in await quorate.refusal("workload_prune", host="box")
        arguments = {"host": "box", "project": "shop", "services": ["one"]}
        assert "nothing" in (await quorate.facts("project_update", **arguments))["updated"]
        new = host.publish("app:1", "healthy")
        calls = len(host.state()["calls"])
        shown = await quorate.facts("project_update", **arguments, dry_run=True)
        assert f"app:1 ({OLD.removeprefix('sha256:')[:12]})" in shown["images"]
        assert not [call for call in host.state()["calls"][calls:] if "pull" in call or " up " in call]
        done = await quorate.facts("project_update", **arguments)
        assert (done["updated"], done["restarted"], done["health"]) == (["app:1"], ["shop-one-1"], "ok")
        assert host.running() == {"one": new, "two": OLD}


@pytest.mark.thorough
async def test_images_that_do_not_become_healthy_give_way_to_the_former_ones(tmp_path):
    async with shop(tmp_path) as (quorate, host):
        host.publish("app:1", "unhealthy")
        refusal = await quorate.refusal("project_update", host="box", project="shop")
        assert "shop is not healthy with the new images. shop-one-1 is unhealthy" in refusal
        assert "The former images run again" in refusal
        assert "the last words" in refusal
        assert host.running() == {"one": OLD, "two": OLD}
        assert host.state()["images"]["app:1"] == OLD


async def test_what_is_no_project_or_no_service_of_it_is_refused_with_those_there(tmp_path):
    async with shop(tmp_path) as (quorate, host):
        assert "has no service three" in await quorate.refusal(
            "project_update", host="box", project="shop", services=["three"]
        )
        (host.folder / "compose.yaml").unlink()
        refusal = await quorate.refusal("project_update", host="box", project="shop")
        assert "The files of shop are not where they were" in refusal


async def test_disk_space_is_shown_and_exactly_what_the_plan_lists_is_removed(tmp_path):
    first, second = (f"sha256:{letter * 64}" for letter in "bc")
    async with shop(tmp_path) as (quorate, host):
        usage = await quorate.facts("workload_usage", host="box")
        assert ["host box", "Images", "3", "1", "900MB", "600MB (66%)"] in [row[:6] for row in usage["rows"]]
        assert usage["largest_images"]["host box"][0] == "db:2 1.2GB"
        host.leave(first, second)
        shown = await quorate.facts("workload_prune", host="box", dry_run=True)
        assert "untagged image bbbbbbbbbbbb, 300MB" in shown["steps"][0]["step"]
        assert "build cache, 50MB" in shown["steps"][0]["step"]
        assert host.state()["dangling"] == [first, second]
        host.leave(first, second, busy=second)
        done = await quorate.facts("workload_prune", host="box", what=["dangling"])
        assert (done["removed"], done["kept"]) == (
            1, "untagged image cccccccccccc, 300MB: image is being used by running container",
        )  # fmt: skip
        assert host.state()["dangling"] == [second]


async def test_the_last_lines_of_several_workloads_come_in_one_table(tmp_path):
    (tmp_path / "house").mkdir()
    async with with_docker(tmp_path) as (quorate, engine):
        engine.add("web", "nginx")
        engine.add("db", "postgres")
        table = await quorate.facts("workload_logs", host="box", name=["web", "db", "absent"], lines=1)
        assert [row[:1] + row[2:] for row in table["rows"]] == [["web", "no such file"], ["db", "no such file"]]
        assert "absent" in table["no_answer"]
        for name in ("shop-api", "shop-db"):
            engine.add(name, "nginx")
            engine.containers[name]["Config"]["Labels"] = {"com.docker.compose.project": "shop"}
        both = await quorate.facts("workload_logs", host="box", name=["web", "shop"], lines=1)
        assert [row[0] for row in both["rows"]] == ["web", "shop-api", "shop-db"]
