"""Runs Ansible in a separate process through ansible-runner; its events are the progress and the result.

Each run has a private folder with playbook, inventory, variables and the trusted host keys, which is deleted
afterwards. No secret appears on a command line.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.documents import Unreadable, read_json
from quorate.hints import Advice, tools
from quorate.homelab.machines import Machine
from quorate.homelab.services.catalogue import tasks_in
from quorate.homelab.services.programs import environment, private_folder, run_program, trusted_keys, write_private
from quorate.problems import BadArgument, NotConfigured, ServerFailed, TaskFailed, TimedOut
from quorate.pve.tasks import Report
from quorate.ssh.target import SshTarget

SECONDS = 3600.0
SHOWN = 60
LONGEST_DIFF = 2000
MOST_DIFF = 8000
WORDS = 500
AGAIN = "Run it again: tasks that are done change nothing"
_TAG = re.compile(r"[A-Za-z0-9_-]{1,60}")
_STATES = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}


@dataclass(slots=True)
class Run:
    """The result, from the events."""

    tasks: list[list[str]] = field(default_factory=list)
    """Task, state, words"""
    diffs: list[str] = field(default_factory=list)
    task: str = ""
    begun: int = 0

    @property
    def changed(self) -> list[str]:
        return [row[0] for row in self.tasks if row[1] == "changed"]

    @property
    def failed(self) -> list[list[str]]:
        return [row for row in self.tasks if row[1] in ("failed", "unreachable")]

    @property
    def how_far(self) -> str:
        return f"{len(self.changed)} of {len(self.tasks)} tasks had changed something"

    def as_dict(self) -> dict[str, Any]:
        counts: dict[str, int] = {}
        for row in self.tasks:
            counts[row[1]] = counts.get(row[1], 0) + 1
        shown = [row for row in self.tasks if row[1] != "skipped"][:SHOWN]
        return {
            "counts": counts,
            "tasks": {"columns": ["task", "state", "words"], "rows": shown},
            **({"diff": "\n".join(self.diffs)[:MOST_DIFF]} if self.diffs else {}),
        }

    def note(self, event: Mapping[str, Any]) -> None:
        kind, data = str(event.get("event", "")), event.get("event_data") or {}
        if kind == "playbook_on_task_start":
            self.task = str(data.get("task", ""))[:200]
            self.begun += 1
        if kind not in _STATES or (kind == "runner_on_failed" and data.get("ignore_errors")):
            return
        result = data.get("res") or {}
        state = "changed" if kind == "runner_on_ok" and result.get("changed") else _STATES[kind]
        words = (
            str(result.get("msg") or result.get("stderr") or "")[:WORDS] if state in ("failed", "unreachable") else ""
        )
        self.tasks.append([str(data.get("task", self.task))[:200], state, words])
        self.diffs += _diffs(result.get("diff"))


def require_ansible() -> None:
    if not (importlib.util.find_spec("ansible_runner") and importlib.util.find_spec("ansible")):
        raise NotConfigured(
            "Ansible is not installed", next_step="The operator can install it: `pip install 'quorate[ansible]'`"
        )
    if shutil.which("ssh") is None:
        raise NotConfigured(
            "`ssh` is not installed on the server", next_step="The operator can install OpenSSH's client"
        )


def checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise BadArgument(f"{tag!r} is not a tag", next_step="Use letters, digits, _ and -")
    return tuple(tags)


async def play(
    machine: Machine,
    playbook: str,
    variables: Mapping[str, Any],
    work: Path,
    *,
    check: bool,
    tags: Sequence[str] = (),
    seconds: float = SECONDS,
    report: Report | None = None,
) -> Run:
    """Run a playbook on one machine, or only check it. Raises a Problem if a task fails, with how far it got."""
    require_ansible()
    if machine.target is None or machine.ssh is None:
        raise NotConfigured(
            f"Ansible needs SSH, but {machine} is reached through the {machine.transport.description}",
            next_step=Advice("Register it with the address of its SSH server", tools.host_register),
        )
    flags = " ".join(["--diff", *(["--check"] if check else []), *([f"--tags={','.join(tags)}"] if tags else [])])
    private_folder(work, "ansible")
    folder = private_folder(work, "ansible", f"run-{secrets.token_hex(8)}")
    try:
        await asyncio.to_thread(_fill, folder, machine, machine.target, playbook, variables)
        return await _run(folder, flags, tasks_in(playbook) + 1, seconds, report)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)


async def _run(folder: Path, flags: str, whole: int, seconds: float, report: Report | None) -> Run:
    line = (sys.executable, "-m", "ansible_runner", "run", str(folder), "-p", "playbook.yml", "--json",
            "--ident", "run", f"--cmdline={flags}")  # fmt: skip
    run, message = Run(), ""
    try:
        async with run_program(line, folder, _surroundings(folder), seconds) as (process, ended):
            assert process.stdout is not None
            async for raw in process.stdout:
                try:
                    event = read_json(raw, dict[str, Any])
                except Unreadable:
                    message = raw.decode("utf-8", "replace").strip() or message
                    continue
                run.note(event)
                if event.get("event") == "error" or event.get("event") == "verbose":
                    message = str(event.get("stdout") or message)
                if report is not None and event.get("event") == "playbook_on_task_start":
                    await report(min(95.0, 95.0 * (run.begun - 1) / whole), 100.0, run.task)
    except TimedOut as late:
        where = f"It was interrupted in the task {run.task!r}. {run.how_far}" if run.task else "No task had started"
        raise TimedOut(late.what, why=where, next_step=AGAIN, facts=run.as_dict()) from None
    if ended.exit_code == 0:
        return run
    if run.failed:
        task, state, words = run.failed[0]
        raise TaskFailed(
            f"The task {task!r} {'failed' if state == 'failed' else 'did not reach the host'}",
            why=f"{words} {run.how_far}".strip(),
            next_step=AGAIN,
            facts=run.as_dict(),
        )
    raise ServerFailed("Ansible could not run the playbook", why=(message or ended.stderr.strip())[-WORDS:] or None)


def _surroundings(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return environment(
        PATH=path,
        LC_ALL="C.UTF-8",
        ANSIBLE_CONFIG=str(folder / "ansible.cfg"),
        ANSIBLE_HOME=str(folder / "home"),
        ANSIBLE_HOST_KEY_CHECKING="1",
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_PIPELINING="1",
        ANSIBLE_RETRY_FILES_ENABLED="0",
        ANSIBLE_INVENTORY_UNPARSED_FAILED="1",
    )


def _fill(folder: Path, machine: Machine, target: SshTarget, playbook: str, variables: Mapping[str, Any]) -> None:
    assert machine.ssh is not None
    for name in ("project", "inventory", "env", "home"):
        private_folder(folder, name)
    write_private(folder / "known_hosts", trusted_keys(machine.ssh))
    write_private(folder / "ansible.cfg", "")
    write_private(folder / "project/playbook.yml", playbook)
    write_private(folder / "env/extravars", _literally(variables))
    host = _literally(_connection(folder, machine, target))
    write_private(folder / "inventory/hosts.yml", f'{{"all": {{"hosts": {{"target": {host}}}}}}}')


def _literally(values: Mapping[str, Any]) -> str:
    """YAML in which no text is a template: `{{ lookup("pipe", …) }}` would run here, on the server.

    Settings, logins and key paths may come from a caller.
    """
    lines = []
    for name, value in values.items():
        literally = "!unsafe " if isinstance(value, str) else ""
        lines.append(f"{json.dumps(name)}: {literally}{json.dumps(value)}")
    return f"{{{', '.join(lines)}}}"


def _connection(folder: Path, machine: Machine, target: SshTarget) -> dict[str, Any]:
    """Inventory variables for the connection Quorate itself would use: address, login and host keys, no ssh_config."""
    variables: dict[str, Any] = {
        "ansible_connection": "ssh",
        "ansible_host": target.host,
        "ansible_port": target.port,
        "ansible_user": target.user,
        "ansible_ssh_args": " ".join(map(shlex.quote, _options(folder, target))),
        "ansible_python_interpreter": "auto_silent",
    }
    if target.key is not None:
        variables["ansible_ssh_private_key_file"] = str(target.key)
    if target.password is not None:
        variables["ansible_password"] = target.password.reveal()
    if machine.sudo_password is not None:
        variables["ansible_become_password"] = machine.sudo_password.reveal()
    if target.user == "root":
        variables["ansible_become"] = False
    return variables


def _options(folder: Path, target: SshTarget) -> list[str]:
    options = [
        "-F", "/dev/null", "-o", f"UserKnownHostsFile={folder / 'known_hosts'}", "-o", "GlobalKnownHostsFile=/dev/null",
        "-o", "StrictHostKeyChecking=yes", "-o", "ControlMaster=no", "-o", "ConnectTimeout=15",
    ]  # fmt: skip
    options += ["-o", "IdentitiesOnly=yes"] if target.key is not None else []
    if target.jump is not None:
        options += ["-o", f"ProxyCommand={' '.join(map(shlex.quote, _jump(folder, target.jump)))}"]
    return options


def _jump(folder: Path, jump: SshTarget) -> list[str]:
    if jump.password is not None and jump.key is None:
        raise NotConfigured(
            f"Ansible cannot use the jump host {jump}: its login has only a password",
            next_step="Configure a key for it",
        )
    key = ["-i", str(jump.key)] if jump.key is not None else []
    return ["ssh", *_options(folder, jump), *key, "-p", str(jump.port), "-l", jump.user, "-W", "[%h]:%p", jump.host]


def _diffs(reported: Any) -> list[str]:
    shown = []
    for diff in reported if isinstance(reported, list) else [reported] if reported else []:
        if not isinstance(diff, dict):
            continue
        if prepared := diff.get("prepared"):
            shown.append(str(prepared)[:LONGEST_DIFF])
            continue
        before, after = (_text(diff.get(side)) for side in ("before", "after"))
        names = [str(diff.get(f"{side}_header") or side) for side in ("before", "after")]
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), names[0], names[1], lineterm="", n=1)
        shown.append("\n".join(lines)[:LONGEST_DIFF])
    return [text for text in shown if text]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True) if value else ""
