"""docs/reference.md is correct: its example runs, its faults exist, its passwords work."""

from __future__ import annotations

import re

import pytest

from pve_simulator.api_client import Api
from pve_simulator.command import main
from pve_simulator.faults import parse_fault
from simulator.fidelity import DOCUMENT

TEXT = DOCUMENT.read_text()
FAULTS = [
    re.sub(r"\[.*?\]", "", fault).replace("TYPE", "qmstart").replace("VMID", "102").replace("LOCK", "backup")
    for row in re.findall(r"^\| (`[a-z0-9][a-z0-9-]*[:\[`].*?) \|", TEXT, re.MULTILINE)
    for fault in re.findall(r"`([^`]+)`", row)
]


def test_the_example_runs():
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    (story,) = (value for name, value in names.items() if name.startswith("test_"))
    assert callable(story)
    story()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_understood(fault: str):
    assert parse_fault(fault).kind == fault.partition(":")[0]


def test_the_faults_are_found_in_the_table():
    assert {"latency:0.5", "drop:before", "595", "401", "locked:102:backup", "no-quorum"} <= set(FAULTS)


async def test_every_password_opens(api: Api):
    logins = re.findall(r"`(\w+@\w+)` / `([\w-]+)`", TEXT)
    assert len(logins) == 4
    for user, password in logins:
        await api.as_user(user, password)


def test_every_option_of_the_command_is_documented(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help", "--version"}
    assert options == set(re.findall(r"^\| `(--[a-z]+)", TEXT, re.MULTILINE)) | {"--guests"}
