"""This machine: the settings, the state store, the audit trail, the operator's passphrase."""

from __future__ import annotations

from quorate.checkup.findings import HERE, Findings
from quorate.config import Access, Approval, Settings
from quorate.operations.registry import HOMELAB
from quorate.problems import Problem
from quorate.pve.clock import Clock
from quorate.state.passphrase import SET_PASSPHRASE, Passphrase
from quorate.state.store import Store, open_store
from quorate.state.trail import open_trail


def check_settings(settings: Settings) -> Findings:
    found = Findings(HERE)
    if settings.problem and {*(settings.toolsets or ())} & {*HOMELAB, "homelab"}:
        found.ok("settings", f"access {settings.access}; no cluster, which plain hosts do not need")
        return found
    if settings.problem:
        found.fail("settings", settings.problem, "Run `quorate init`, or correct what is named")
        return found
    named = ", ".join(cluster.name for cluster in settings.clusters)
    found.ok("settings", f"{settings.config_file or 'by variables'}; access {settings.access}; clusters: {named}")
    for warning in settings.warnings:
        found.warn("settings", *_halved(warning))
    return found


async def check_state(settings: Settings, clock: Clock) -> Findings:
    found = Findings(HERE)
    try:
        async with open_store(settings.state, clock=clock) as store:
            if await _store(store, found):
                await _trail(store, settings, found)
                await _passphrase(store, settings, found)
    except Problem as problem:  # an address of a database that cannot be
        _tell("state", problem, found)
    return found


async def _store(store: Store, found: Findings) -> bool:
    try:
        # Takes the lock that a write needs and touches no row.
        await store.execute("UPDATE quorate_operator SET tries = tries WHERE name = $1", "")
    except Problem as problem:
        _tell("state", problem, found)
        found.skip("audit trail, passphrase", "the state cannot be written")
        return False
    found.ok("state", f"{store.place} can be written")
    return True


async def _trail(store: Store, settings: Settings, found: Findings) -> None:
    trail = open_trail(store, settings.audit_file)
    try:
        await trail.ensure_writable()
    except Problem as problem:
        _tell("audit trail", problem, found)
    else:
        found.ok("audit trail", f"{trail.place} can be written")
    finally:
        await trail.close()


async def _passphrase(store: Store, settings: Settings, found: Findings) -> None:
    levels = {settings.access, *(one.access for one in settings.clusters)}
    asked_about = {Access.ADMIN, Access.OPERATE} if settings.approve_changes else {Access.ADMIN}
    if not levels & asked_about or settings.approval is not Approval.ASK:
        return
    if await Passphrase(store).is_set():
        found.ok("passphrase", "The operator's passphrase is set")
        return
    found.warn(
        "passphrase",
        "No operator's passphrase is set: where a client cannot ask its person, nothing can be approved",
        f"Set it at a terminal with `{SET_PASSPHRASE}`",
    )


def _tell(check: str, problem: Problem, found: Findings) -> None:
    found.fail(check, f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")


def _halved(warning: str) -> tuple[str, str]:
    """Warnings say what is wrong and, after the last colon and a blank, what to do."""
    what, colon, do = warning.rpartition(": ")
    return (what, do[:1].upper() + do[1:]) if colon else (warning, "See docs/configuration.md")
