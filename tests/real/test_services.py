"""Services of real guests: systemd and OpenRC, by every way in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.lab import Lab
from tests.real.transports import ALL_BUT_JUMP, CONTAINERS, TRANSPORTS, Inside, reached

pytestmark = pytest.mark.anyio


async def control(inside: Inside, action: str, service: str = "napping") -> dict[str, Any]:
    return await inside.facts("guest_service_control", service=service, action=action)


@ALL_BUT_JUMP
async def test_a_service_is_started_and_stopped(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        asleep = "sleep 86400" if inside.is_busybox else "sleep infinity"
        began = await control(inside, "start")
        assert (began["before"].split()[0], began["now"].split()[0]) == ("inactive", "active")
        assert await inside.running(asleep)
        seen = await inside.facts("guest_service", service="napping")
        assert (seen["state"], seen["enabled"], seen["way"]) == (began["now"], "disabled", TRANSPORTS[way])
        assert (await control(inside, "stop"))["now"].startswith("inactive")
        assert not await inside.running(asleep)


@CONTAINERS
async def test_a_service_is_restarted_enabled_disabled_and_listed(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        assert (await control(inside, "restart"))["now"].startswith("active")
        assert (await control(inside, "enable"))["enabled"] == "enabled"
        show = ("rc-update", "show") if inside.is_busybox else ("systemctl", "is-enabled", "napping")
        assert ("napping" if inside.is_busybox else "enabled\n") in await inside.look(*show)
        rows = await inside.quorate.rows("guest_service", guest=inside.vmid, limit=500)
        states = {row["service"].removesuffix(".service"): (row["state"].split()[0], row["enabled"]) for row in rows}
        assert states["napping"] == ("active", "enabled")
        assert states["crond" if inside.is_busybox else "cron"] == ("active", "enabled")
        assert states["failing"][0] in ("inactive", "failed")
        assert (await control(inside, "disable"))["enabled"] == "disabled"
        await control(inside, "stop")
        assert "There is no service" in await inside.refusal("guest_service", service="nosuch")


@ALL_BUT_JUMP
async def test_a_service_that_cannot_start_says_why(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        refusal = await inside.refusal("guest_service_control", service="failing", action="start")
        assert "not done" in refusal
        assert "failed" in refusal
        if not inside.is_busybox:  # which keeps no log
            assert "Log:" in refusal
            assert "failing.service: Main process exited, code=exited, status=1/FAILURE" in refusal


async def test_a_service_that_was_killed_has_failed_until_it_is_started_again(lab: Lab, tmp_path: Path):
    async with reached(lab, "pct", tmp_path) as inside:
        await control(inside, "start")
        await inside.look("systemctl", "kill", "-s", "KILL", "napping")
        await inside.gone("sleep infinity")
        service = await inside.facts("guest_service", service="napping", log_lines=20)
        assert service["state"] == "failed"
        assert "signal" in service["ended"]
        again = await control(inside, "restart")
        assert again["before"].startswith("failed")
        assert again["now"].startswith("active")
        await control(inside, "stop")


@CONTAINERS
async def test_services_are_reloaded(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        name = "crond" if inside.is_busybox else "napping"
        await control(inside, "start", name)
        assert (await control(inside, "reload", name))["now"].startswith("active")
        other = "napping" if inside.is_busybox else "cron"
        assert "reload" in await inside.refusal("guest_service_control", service=other, action="reload")
        await inside.look("systemctl", "stop", "napping")
