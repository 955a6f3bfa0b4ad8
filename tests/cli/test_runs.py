"""`quorate runs` at a shell."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.rigs.cli import quorate
from tests.rigs.simulator import pointed_at, running_sim


def test_a_run_is_started_carried_on_and_shown_at_the_shell(tmp_path: Path) -> None:
    with running_sim() as sim:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "QUORATE_STATE": str(tmp_path / "state.sqlite"),
            "QUORATE_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
            "QUORATE_ACCESS": "admin",
            "QUORATE_APPROVAL": "none",
            **pointed_at(sim),
        }
        assert quorate("runs", environ=environ).stdout == "No run is active.\n"
        started = quorate("call", "run_evacuate", "node=pve1", "--json", environ=environ)
        assert started.returncode == 0, started.stderr
        facts = json.loads(started.stdout)
        name = facts["run"]
        assert facts["result"] == "started"
        assert "`quorate runs work --access operate`" in facts["next"]
        left = quorate("runs", "work", "--access", "read", environ=environ)
        assert left.returncode == 1
        needed = f"This run needs --access operate: {name}. Run `quorate runs work --access operate`."
        assert needed in left.stderr
        assert "No run is due" not in left.stdout
        elsewhere = quorate("runs", "work", environ={**environ, "PROXMOX_URL": "https://127.0.0.1:1"})
        assert f"at the address of these runs, is not configured: {name}." in elsewhere.stderr
        assert elsewhere.returncode == 1
        listed = quorate("runs", environ=environ).stdout
        assert f"{name}  running" in listed
        assert "(waiting for a worker)" in listed
        assert f"{name}: paused" in quorate("runs", "pause", name, environ=environ).stdout
        paused = quorate("runs", "show", name, environ=environ).stdout
        assert f"`quorate runs resume {name} --access operate`, or `quorate runs abort {name}`" in paused
        assert "No run is due" in quorate("runs", "work", environ=environ).stdout
        assert quorate("runs", "resume", name, environ=environ).returncode == 0
        assert quorate("runs", "abort", name, environ=environ).returncode == 0
        worked = quorate("runs", "work", environ=environ)
        assert f"{name}  aborted" in worked.stdout, worked.stderr
        shown = quorate("runs", "show", name, environ=environ)
        assert "is still on pve1" in shown.stdout
        change = json.loads(
            quorate("call", "guest_configure", "guest=108", "cores=4", "--json", environ=environ).stdout
        )
        assert f"change {change['change']}" in quorate("audit", "--tail", "1", environ=environ).stdout
        listed = json.loads(quorate("runs", "--all", "--json", environ=environ).stdout)
        assert [run["id"] for run in listed] == [name]
        for time in (listed[0]["created"], listed[0]["ended"], listed[0]["log"][0]["time"]):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time)
        assert listed[0]["starts"] is None
        assert "There is no run" in quorate("runs", "show", "nosuch", environ=environ).stderr
        frozen = json.loads(quorate("call", "run_evacuate", "node=pve2", "--json", environ=environ).stdout)["run"]
        assert quorate("freeze", "--reason", "smoke", environ=environ).returncode == 0
        assert f"{frozen}  paused: All changes were frozen" in quorate("runs", "work", environ=environ).stdout
