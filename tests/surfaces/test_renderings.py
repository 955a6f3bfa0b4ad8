"""What people and models read: no Python in it, no doubled phrase, right plurals, for every tool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quorate.operations.registry import Operation, Table
from quorate.surfaces.rendering import text
from tests.generators.population import populate
from tests.pipeline.test_every_tool_under_faults import one_call_each
from tests.rigs.infra_hosts import infra_lab
from tests.rigs.mcp_session import Rig, rig, text_of

pytestmark = pytest.mark.anyio

FAULTS = {
    "a value of Python": r"\bNone\b(?! of)|\bTrue\b|\bFalse\b| object at 0x|<class |Ellipsis",
    "a list or mapping of Python": r"\[(?:'[^']*'(?:, |\]))|\{'[^']*': ",
    "a plural for one": r"(?<![\w.:/-])1 (?:guests|nodes|disks|snapshots|backups|tasks|volumes|steps|files|hosts|runs"
    r"|rules|privileges|packages|updates|storages|jobs|bytes|lines|devices|services|tools|things|times|days|resources|cores|devices)\b",
    "a float in full": r"\b\d+\.\d{5,}",
    "a time in seconds": r": 1[67]\d{8}(?:\.\d+)?\b",
    "a range of one": r"\b(?P<end>read|change|destroy) to (?P=end)\b",
    "a phrase twice": r"\b(?P<phrase>(?:vm|ct) \d+ [\w.-]+|(?:on|in) [\w-]{4,}),? (?:in |on |of )?(?P=phrase)\b",
    "a path for a name": r"\bnode=/|\bguest=/|\bstorage=/",
    "what exists twice": r"There is no .*\. There is none",
}
FOREIGN = {"inventory_export", "log_read", "api_call", "guest_file_read", "task_get"}
"""Their answers contain texts of others."""


def faults_in(text: str) -> list[str]:
    return [f"{fault}: {match[0]!r}" for fault, pattern in FAULTS.items() if (match := re.search(pattern, text))]


async def read_all(quorate: Rig, operation: Operation, arguments: dict[str, Any]) -> list[str]:
    """The faults in what a tool answers; that of a change also when it is dry, and when it is repeated."""
    times = [{"dry_run": True}, {}, {}] if operation.changes else [{}]
    texts = [text_of(await quorate.call(operation.name, **{**arguments, **more})) for more in times]
    foreign = operation.name in FOREIGN
    return [
        f"{operation.name} {arguments}: {fault}\n{text}" for text in texts if not foreign for fault in faults_in(text)
    ]


async def test_no_answer_of_any_tool_contains_python_or_says_something_twice(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        await populate(quorate)
        found = [await read_all(quorate, *each) for each in list(one_call_each(quorate))]
        assert not (faults := [fault for each in found for fault in each]), "\n\n".join(faults)


async def test_no_answer_about_hosts_contains_python_or_says_something_twice(tmp_path: Path) -> None:
    async with infra_lab(tmp_path, register=True, toolsets=("homelab", "guests")) as lab:
        answers = [
            (name, arguments, text_of(await lab.quorate.call(name, **arguments)))
            for name, arguments in calls_about_hosts(f"{tmp_path}/a.txt")
        ]
    faults = [f"{name} {arguments}: {fault}\n{text}" for name, arguments, text in answers for fault in faults_in(text)]
    assert not faults, "\n\n".join(faults)


def calls_about_hosts(file: str) -> list[tuple[str, dict[str, Any]]]:
    """Calls of the tools for hosts, workloads, the map and plans. The hosts are this machine, so some are only dry."""
    one: dict[str, Any] = {"host": "one"}
    dry: dict[str, Any] = {"dry_run": True}
    document = {"name": "shelf", "workloads": {"web": {**one, "image": "nginx:1.27"}}}
    return [
        *[("host_list", {}), ("host_status", {}), ("host_discover", one), ("host_verify", {"host": "all"})],
        *[("host_exec", {**one, "command": "echo hi"}), ("host_exec", {"host": "all", "command": "echo 1; echo 2"})],
        *[("host_job", {}), ("host_file_write", {**one, "path": file, "content": "a"})],
        *[("host_file", {**one, "path": file}), ("host_logs", {**one, "path": file})],
        *[("host_service", one), ("host_service_control", {**one, "service": "ssh", "action": "restart", **dry})],
        *[("host_reboot", {**one, **dry}), ("host_upgrade", {**one, **dry}), ("host_export", {})],
        ("host_import", {"source": "ssh_config", "text": "Host a\n HostName 10.0.0.1\n", **dry}),
        ("host_update", {**one, "labels": ["role=nas"]}),
        *[("host_admin_setup", {**one, **dry}), ("host_admin_verify", one), ("host_admin_remove", {**one, **dry})],
        ("workload_deploy", {**one, "name": "web", "image": "nginx:1.27"}),
        *[("workload_list", {"host": "all"}), ("workload_get", {**one, "name": "web"})],
        *[("workload_logs", {**one, "name": "web"}), ("workload_usage", one), ("workload_prune", one)],
        *[("workload_power", {**one, "name": "web", "action": "restart"}), ("workload_remove", {**one, "name": "web"})],
        *[("network_discover", {}), ("network_map", {}), ("network_analyze", {}), ("network_changes", {})],
        *[("network_suggest", {}), ("network_suggest", {"kind": "database", "cores": 1})],
        *[("infra_validate", {"document": document}), ("infra_plan", {"document": document})],
        *[("infra_apply", {"document": document}), ("infra_apply", {"document": document})],
        *[("infra_backup", {}), ("infra_backup_list", {}), ("infra_rollback", {"backup": "none"})],
        *[("script_search", {"words": "docker"}), ("script_info", {"script": "docker"}), ("service_list", {})],
        *[("service_info", {"service": "gitea"}), ("service_status", one), ("host_remove", {"host": "two"})],
    ]


def test_a_table_leaves_out_empty_columns_and_keeps_the_lines_of_an_output_apart() -> None:
    table = Table(("host", "why_not", "ok", "stdout"), [["one", "", True, "a\nb\n"], ["two", None, False, ""]], 2)
    assert text(table) == "host\tok\tstdout\none\tyes\ta\\nb\ntwo\tno\t\n2 of 2"
    assert text({"now": None, "labels": [[], ["a=b"]], "more": {"now": None}}) == (
        "labels:\n- none\n- a=b\nmore:\n  now: none"
    )


@pytest.mark.parametrize(
    "text",
    [
        "now: None", "tags: ['a', 'b']", "was: {'a': 1}", "Snapshot 1 guests", "load: 0.123456",
        "Write 3 bytes to /x on vm 102 docker01 in vm 102 docker01", "node_updates_refresh node=/nodes/pve1",
        "<ssl.SSLContext object at 0x7f>", "created: 1768464006.1", "risk: change to change",
    ],
)  # fmt: skip
def test_the_sweep_sees_each_fault(text: str) -> None:
    assert faults_in(text)
