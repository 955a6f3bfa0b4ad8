"""The neighbor table of this machine."""

import logging
import os

import pytest

from quorate.homelab.network_probe import neighbors

pytestmark = pytest.mark.anyio


async def test_reading_them_leaves_no_complaint_about_processes(tmp_path, monkeypatch, caplog):
    for name in ("ip", "arp"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 192.0.2.7 dev eth0 lladdr bc:24:11:00:00:07 REACHABLE\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with caplog.at_level(logging.WARNING, "asyncio"):
        for _ in range(20):
            await neighbors()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
