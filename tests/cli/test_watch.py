"""quorate watch at a shell, without a cluster: on the simulated one, and on plain hosts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.rigs.cli import quorate


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}


def test_findings_of_the_demo_are_listed_with_options_before_and_after_the_action(environ):
    before = quorate("watch", "--demo", "list", "--json", environ=environ)
    after = quorate("watch", "list", "--json", "--demo", environ=environ)
    for done in (before, after):
        assert done.returncode == 0, done.stderr
        by_kind = {load["finding"]["kind"]: load for load in json.loads(done.stdout)}
        assert by_kind["backup-missing"]["state"] == "open"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", by_kind["backup-missing"]["opened"])
        assert by_kind["backup-missing"]["finding"]["next"]["tool"] == "backup_create"


def test_the_advice_for_a_server_without_a_cluster_is_an_option_that_exists(environ):
    refused = quorate("watch", "--once", environ=environ)
    assert refused.returncode == 2
    assert "--toolsets hosts" in refused.stderr
    done = quorate("watch", "--once", "--toolsets", "hosts", environ=environ)
    assert (done.returncode, done.stdout) == (0, "No open findings in what the watch has checked.\n")


def test_an_unknown_finding_is_answered_with_the_command_that_lists_them(environ):
    refused = quorate("watch", "acknowledge", "nope", "--toolsets", "hosts", environ=environ)
    assert refused.returncode == 1
    assert refused.stderr == "quorate: There is no finding 'nope'. See which exist: `quorate watch list`\n"


def test_what_nobody_watches_is_not_listed_as_healthy(environ):
    for options in ((), ("--json",)):
        done = quorate("watch", "list", *options, "--toolsets", "hosts", environ=environ)
        assert done.stdout in ("", "[]\n")
        assert "Nothing is watched" in done.stderr


def test_options_of_other_commands_stand_on_either_side_of_the_action(environ, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(f'state = "{tmp_path / "state.sqlite"}"\n')
    file.chmod(0o600)
    config = ("--config", str(file))
    for command, action in (
        ("tokens", ("list",)),
        ("secrets", ("list",)),
        ("policy", ("show",)),
        ("scripts", ("show",)),
    ):
        for words in ((command, *config, *action), (command, *action, *config)):
            done = quorate(*words, environ=environ)
            assert done.returncode == 0, (words, done.stderr)
    missing = quorate("policy", "--config", "/nowhere", "explain", "guest_list", environ=environ)
    assert "/nowhere cannot be read" in missing.stderr


def test_a_demo_sends_no_messages(environ, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[watch.channels.phone]\ntype = "ntfy"\nurl = "http://127.0.0.1:9"\ntopic = "x"\n')
    refused = quorate("watch", "--demo", "--config", str(config), "test", environ=environ)
    assert (refused.returncode, "No channel is configured" in refused.stderr) == (1, True)
