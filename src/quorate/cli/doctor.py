"""quorate doctor: check the setup and say how to fix it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quorate.cli.doctor_backup_server import check_backup_server
from quorate.cli.doctor_cluster import check_cluster
from quorate.cli.doctor_findings import HERE, Findings
from quorate.cli.options import FAILED, OK, add_command, cluster_options, gate_options, only_cluster, with_demo_cluster
from quorate.config import Access, Approval, ConfigError, Settings, clusters, load
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import resolve_host
from quorate.inside.transport import Command
from quorate.operations.registry import HOMELAB, TOOLSETS, in_use
from quorate.pipeline.redaction import clean_text
from quorate.pipeline.sites import chosen_toolsets
from quorate.problems import Problem
from quorate.pve.connection import Clock, SystemClock
from quorate.ssh.target import SshTarget
from quorate.state.limits import Freeze
from quorate.state.passphrase import SET_PASSPHRASE, Passphrase
from quorate.state.store import Store, open_store
from quorate.state.trail import open_trail

if TYPE_CHECKING:
    from quorate.cli.doctor_findings import Finding


def check_settings(settings: Settings) -> Findings:
    findings = Findings(HERE)
    for note in settings.notes:
        findings.ok("settings", note)
    if settings.problem and (settings.backup_servers or {*(settings.toolsets or ())} & {*HOMELAB, "homelab"}):
        findings.ok("settings", f"access {settings.access}; no cluster (plain hosts and backup servers need none)")
        return findings
    if settings.problem:
        findings.fail("settings", settings.problem, "Correct that setting, or run `quorate init`")
        return findings
    named = ", ".join(cluster.name for cluster in settings.clusters)
    findings.ok(
        "settings", f"{settings.config_file or 'environment variables'}; access {settings.access}; clusters: {named}"
    )
    for warning in settings.warnings:
        findings.warn("settings", *_split_advice(warning))
    return findings


async def check_state(settings: Settings, clock: Clock) -> Findings:
    findings = Findings(HERE)
    try:
        async with open_store(settings.state, clock=clock) as store:
            if await _store(store, findings):
                await _trail(store, settings, findings)
                await _passphrase(store, settings, findings)
                await _freeze(store, findings)
    except Problem as problem:  # an invalid database address
        _fail("state", problem, findings)
    return findings


async def _store(store: Store, findings: Findings) -> bool:
    try:
        # Takes the write lock and touches no row.
        await store.execute("UPDATE quorate_operator SET tries = tries WHERE name = $1", "")
    except Problem as problem:
        _fail("state", problem, findings)
        findings.skip("audit trail, passphrase", "the state is not writable")
        return False
    findings.ok("state", f"{store.place} is writable")
    return True


async def _trail(store: Store, settings: Settings, findings: Findings) -> None:
    trail = open_trail(store, settings.audit_file)
    try:
        await trail.ensure_writable()
    except Problem as problem:
        _fail("audit trail", problem, findings)
    else:
        findings.ok("audit trail", f"{trail.place} is writable")
    finally:
        await trail.close()


async def _passphrase(store: Store, settings: Settings, findings: Findings) -> None:
    levels = {settings.access, *(cluster.access for cluster in settings.clusters)}
    needs_approval = {Access.ADMIN, Access.OPERATE} if settings.approve_changes else {Access.ADMIN}
    if not levels & needs_approval or settings.approval is not Approval.ASK:
        return
    if await Passphrase(store).is_set():
        findings.ok("passphrase", "The operator's passphrase is set")
        return
    findings.warn(
        "passphrase",
        "No operator's passphrase is set: if a client cannot ask its person, nothing can be approved",
        f"Set it at a terminal with `{SET_PASSPHRASE}`",
    )


async def _freeze(store: Store, findings: Findings) -> None:
    if frozen := await Freeze(store).state():
        findings.warn("freeze", f"All changes are frozen {frozen}", "`quorate unfreeze` allows them again")


def _fail(check: str, problem: Problem, findings: Findings) -> None:
    findings.fail(check, f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")


def _split_advice(warning: str) -> tuple[str, str]:
    """Warnings say what is wrong and, after the last colon, what to do."""
    what, colon, do = warning.rpartition(": ")
    return (what, do[:1].upper() + do[1:]) if colon else (warning, "See docs/configuration.md")


SECONDS = 20.0
OPEN_SECONDS = 3.0
"""How long a host may take to accept a connection; a login takes longer, for example because of a slow name server."""
AT_ONCE = 16
AWAY = ("unreachable", "timeout")
"""A host that is switched off is not a configuration error."""


async def check_hosts(settings: Settings, clock: Clock) -> Findings:
    findings = Findings(clusters.HOMELAB)
    async with open_store(settings.state, clock=clock) as store:
        homelab = Homelab(settings.homelab, store, clock=clock)
        try:
            hosts = [host for host in await homelab.hosts.everyone() if host.active]
        except Problem:  # reported by the check of the state
            return findings
        slots = asyncio.Semaphore(AT_ONCE)
        for of_host in await asyncio.gather(*(_check_host(homelab, host, slots) for host in hosts)):
            findings += of_host
        await homelab.close()
    return findings


async def _check_host(homelab: Homelab, host: Host, slots: asyncio.Semaphore) -> Findings:
    findings, check = Findings(clusters.HOMELAB), f"SSH to {host.name}"
    try:
        async with slots, asyncio.timeout(SECONDS):
            machine = await resolve_host(homelab, host)
            if not await _accepts_connections(machine.target):
                findings.warn(
                    check, f"{host.at} did not answer within {OPEN_SECONDS:g} s", "Check that it is switched on"
                )
                return findings
            who = await machine.transport.run(Command(("id", "-un")))
    except TimeoutError:
        findings.warn(check, f"{host.at} did not answer within {SECONDS:g} s", "Check that it is switched on")
    except Problem as problem:
        tell = findings.warn if problem.code in AWAY else findings.fail
        tell(check, f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")
    else:
        findings.ok(check, f"{host.at} accepts the login of {who.stdout.decode(errors='replace').strip()}")
    return findings


async def _accepts_connections(target: SshTarget | None) -> bool:
    """False for a host that is switched off. Other failures, and hosts behind others, are for the login to explain."""
    if target is None or target.jump is not None:
        return True
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            _, writer = await asyncio.open_connection(target.host, target.port)
    except TimeoutError:
        return False
    except OSError:
        return True
    writer.close()
    return True


WORDS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "skip"}


def add(commands: Any) -> None:
    doctor = add_command(
        commands,
        "doctor",
        _doctor,
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.epilog = "Exit code 0 if nothing failed (there may be warnings), otherwise 1."
    gate_options(doctor)
    cluster_options(doctor)


def _doctor(options: argparse.Namespace) -> int:
    findings = asyncio.run(_findings(options))
    if options.json:
        failed = any(finding.state == "fail" for finding in findings)
        print(json.dumps({"ok": not failed, "findings": [asdict(finding) for finding in findings]}, ensure_ascii=False))
        return FAILED if failed else OK
    return _print(findings)


async def _findings(options: argparse.Namespace) -> list[Finding]:
    try:
        settings = load(
            file=options.config,
            access=options.access,
            toolsets=options.toolsets,
            approval=options.approval,
            tolerate=True,
        )
        settings = only_cluster(settings, None if options.demo else options.cluster)
    except ConfigError as error:
        findings = Findings(HERE)
        findings.fail("settings", str(error), "Correct that setting; docs/configuration.md explains all of them")
        return findings
    async with with_demo_cluster(settings, options.demo) as ready:
        return await _check(ready, options.demo)


async def _check(settings: Settings, demo: bool) -> list[Finding]:
    toolsets = [name for name in in_use(chosen_toolsets(settings)) if name in TOOLSETS]
    clock = SystemClock()
    parts = await asyncio.gather(
        check_state(settings, clock),
        *(
            check_cluster(cluster, (cluster.access or settings.access).value, toolsets, clock, simulated=demo)
            for cluster in settings.clusters
        ),
        *(check_backup_server(server, settings.access, clock) for server in settings.backup_servers),
        check_hosts(settings, clock),
    )
    return [*check_settings(settings), *(finding for part in parts for finding in part)]


def _print(findings: Sequence[Finding]) -> int:
    place = ""
    for finding in findings:
        if finding.place != place:
            place = finding.place
            print(place)
        print(f"  {WORDS[finding.state]}  {finding.check:<12}  {_plain(finding.says)}")
        if finding.do and finding.state != "ok":
            print(f"        -> {_plain(finding.do)}")
        for line in finding.commands:
            print(f"           {_plain(line)}")
        sys.stdout.flush()
    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    print(
        f"{failed} failed, {warned} warning{'' if warned == 1 else 's'}." if failed or warned else "No problems found."
    )
    return FAILED if failed else OK


def _plain(text: str) -> str:
    """Remove control characters: the text may come from a server."""
    return clean_text(text).replace("\n", " ").replace("\t", " ")
