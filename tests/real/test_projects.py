"""Compose projects with real Docker: new images, a bad one and its rollback, logs, disk space, and what can go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.engine_host import IMAGE, EngineHost, engine_host, serving

pytestmark = pytest.mark.anyio

APP = "127.0.0.1:5000/app:1"
COMPOSE = f"""
services:
  one: {{image: "{APP}", network_mode: none}}
  two: {{image: "{IMAGE}", network_mode: none, command: ["sh", "-c", "echo two is up; sleep 1000"]}}
"""


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    with engine_host("projects") as built:
        yield built


def publish(host: EngineHost, command: str) -> None:
    """A new image under the same tag in the registry, and no longer on the host."""
    change = f'CMD ["sh","-c","{command}"]'
    host.docker("import", "--change", change, str(host.folder / "tiny.tar"), "127.0.0.1:5000/app:next")
    host.docker("tag", "127.0.0.1:5000/app:next", "127.0.0.1:5000/app:1-new")
    running = host.docker("images", "--quiet", "--no-trunc", APP).split()
    host.docker("tag", "127.0.0.1:5000/app:next", APP)
    host.docker("push", APP)
    for image in running:
        host.docker("tag", image, APP)
    host.docker("rmi", "127.0.0.1:5000/app:next", "127.0.0.1:5000/app:1-new")


def says(host: EngineHost) -> str:
    [container] = host.docker("ps", "--quiet", "--filter", "label=com.docker.compose.service=one").split()
    return host.docker("inspect", "--format", "{{.Config.Cmd}}", container)


async def test_a_project_gets_new_images_or_keeps_the_old_ones(host: EngineHost, tmp_path: Path):
    folder = host.folder / "shop"
    folder.mkdir()
    (folder / "compose.yaml").write_text(COMPOSE)
    await asyncio.to_thread(publish, host, "echo first; sleep 1000")
    host.docker("pull", APP)
    async with serving(host, tmp_path, "workloads") as quorate:
        up = await quorate.facts(
            "host_exec", host="box", command=["docker-compose", "-p", "shop", "up", "-d"], cwd=str(folder), wait=50
        )
        assert up["exit_code"] == 0, up
        rows = {row["name"]: row for row in await quorate.rows("workload_list", host="box")}
        names = sorted(name for name, row in rows.items() if row.get("project") == "shop")
        assert len(names) == 2
        lines = await quorate.rows("workload_logs", host="box", name="shop")
        assert {row["line"] for row in lines} == {"first", "two is up"}

        same = await quorate.facts("project_update", host="box", project="shop", services=["one"], wait=50)
        assert "nothing" in same["updated"]

        await asyncio.to_thread(publish, host, "echo second; sleep 1000")
        shown = await quorate.facts("project_update", host="box", project="shop", services=["one"], dry_run=True)
        assert any(APP in image for image in shown["images"])
        done = await quorate.facts("project_update", host="box", project="shop", services=["one"], wait=50)
        assert (done["updated"], done["health"]) == ([APP], "ok")
        assert "echo second" in await asyncio.to_thread(says, host)

        await asyncio.to_thread(publish, host, "echo third is broken; exit 1")
        refusal = await quorate.refusal("project_update", host="box", project="shop", services=["one"], wait=50)
        assert "The former images run again" in refusal
        assert "third is broken" in refusal
        assert "echo second" in await asyncio.to_thread(says, host)

        usage = await quorate.rows("workload_usage", host="box")
        assert {row["what"] for row in usage} >= {"Images", "Containers"}
        shown = await quorate.facts("workload_prune", host="box", what=["dangling"], dry_run=True)
        assert "untagged image" in shown["steps"][0]["step"]
        before = len(host.docker("images", "--quiet", "--filter", "dangling=true").split())
        removed = await quorate.facts("workload_prune", host="box", what=["dangling"])
        after = len(host.docker("images", "--quiet", "--filter", "dangling=true").split())
        assert removed["removed"] == before - after > 0
        assert "echo second" in await asyncio.to_thread(says, host)
        assert "no Compose project" in await quorate.refusal("project_update", host="box", project="nobody")
