"""This machine: the settings, the state store, the audit trail, the operator's passphrase."""

from __future__ import annotations

from quorate.config import Access, Approval, Settings
from quorate.doctor import HERE, Findings
from quorate.operations.registry import HOMELAB
from quorate.problems import Problem
from quorate.pve.clock import Clock
from quorate.state.freeze import Freeze
from quorate.state.passphrase import SET_PASSPHRASE, Passphrase
from quorate.state.store import Store, open_store
from quorate.state.trail import open_trail


def check_settings(settings: Settings) -> Findings:
    found = Findings(HERE)
    for note in settings.notes:
        found.ok("settings", note)
    if settings.problem and {*(settings.toolsets or ())} & {*HOMELAB, "homelab"}:
        found.ok("settings", f"access {settings.access}; no cluster (plain hosts need none)")
        return found
    if settings.problem:
        found.fail("settings", settings.problem, "Correct that setting, or run `quorate init`")
        return found
    named = ", ".join(cluster.name for cluster in settings.clusters)
    found.ok(
        "settings", f"{settings.config_file or 'environment variables'}; access {settings.access}; clusters: {named}"
    )
    for warning in settings.warnings:
        found.warn("settings", *_split_advice(warning))
    return found


async def check_state(settings: Settings, clock: Clock) -> Findings:
    found = Findings(HERE)
    try:
        async with open_store(settings.state, clock=clock) as store:
            if await _store(store, found):
                await _trail(store, settings, found)
                await _passphrase(store, settings, found)
                await _freeze(store, found)
    except Problem as problem:  # an invalid database address
        _fail("state", problem, found)
    return found


async def _store(store: Store, found: Findings) -> bool:
    try:
        # Takes the write lock and touches no row.
        await store.execute("UPDATE quorate_operator SET tries = tries WHERE name = $1", "")
    except Problem as problem:
        _fail("state", problem, found)
        found.skip("audit trail, passphrase", "the state is not writable")
        return False
    found.ok("state", f"{store.place} is writable")
    return True


async def _trail(store: Store, settings: Settings, found: Findings) -> None:
    trail = open_trail(store, settings.audit_file)
    try:
        await trail.ensure_writable()
    except Problem as problem:
        _fail("audit trail", problem, found)
    else:
        found.ok("audit trail", f"{trail.place} is writable")
    finally:
        await trail.close()


async def _passphrase(store: Store, settings: Settings, found: Findings) -> None:
    levels = {settings.access, *(one.access for one in settings.clusters)}
    needs_approval = {Access.ADMIN, Access.OPERATE} if settings.approve_changes else {Access.ADMIN}
    if not levels & needs_approval or settings.approval is not Approval.ASK:
        return
    if await Passphrase(store).is_set():
        found.ok("passphrase", "The operator's passphrase is set")
        return
    found.warn(
        "passphrase",
        "No operator's passphrase is set: if a client cannot ask its person, nothing can be approved",
        f"Set it at a terminal with `{SET_PASSPHRASE}`",
    )


async def _freeze(store: Store, found: Findings) -> None:
    if frozen := await Freeze(store).state():
        found.warn("freeze", f"All changes are frozen {frozen}", "`quorate unfreeze` allows them again")


def _fail(check: str, problem: Problem, found: Findings) -> None:
    found.fail(check, f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")


def _split_advice(warning: str) -> tuple[str, str]:
    """Warnings say what is wrong and, after the last colon, what to do."""
    what, colon, do = warning.rpartition(": ")
    return (what, do[:1].upper() + do[1:]) if colon else (warning, "See docs/configuration.md")
