"""quorate audit: show, export, verify and resolve the audit trail."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.app import build
from quorate.cli.options import FAILED, OK, add_command
from quorate.config import ConfigError, Settings, load
from quorate.pipeline.redaction import clean_text
from quorate.problems import Problem
from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from quorate.state.trail import Filters, open_trail
from quorate.surfaces.rendering import problem_text

if TYPE_CHECKING:
    from quorate.state.trail import AuditTrail


_VERBS = ("POST ", "PUT ", "DELETE ")
_AGO = re.compile(r"(\d+)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add(commands: Any) -> None:
    audit = add_command(commands, "audit", _audit)
    audit.add_argument("--verify", action="store_true", help="verify the hash chain; exit code 1 if it is broken")
    audit.add_argument(
        "--resolve",
        action="store_true",
        help="ask the clusters how unfinished changes ended, and record it; exit code 1 if some remain open",
    )
    audit.add_argument("--export", choices=("jsonl", "csv"), help="print all matching entries in this format")
    audit.add_argument(
        "--tail", metavar="N", type=int, default=20, help="number of latest entries to show (default: 20)"
    )
    audit.add_argument("--json", action="store_true", help="print JSON lines")
    for name, what in (("tool", "guest_*"), ("outcome", "failed"), ("caller", "claude*"), ("cluster", "prod")):
        audit.add_argument(f"--{name}", metavar="PATTERN", help=f"only entries with this {name}, such as {what!r}")
    audit.add_argument("--approval", metavar="ID", help="only entries about this approval")
    audit.add_argument("--since", metavar="WHEN", help="a time (2026-01-31 or 2026-01-31T12:00) or an age (2h, 7d)")
    audit.add_argument("--until", metavar="WHEN", help="as for --since")
    audit.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")


def _audit(options: argparse.Namespace) -> int:
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    settings = load(file=options.config, tolerate=True)
    if options.resolve:
        return await _resolve(settings)
    filters = Filters(
        tool=options.tool,
        outcome=options.outcome,
        caller=options.caller,
        cluster=options.cluster,
        approval=options.approval,
        since=_moment(options.since),
        until=_moment(options.until),
    )
    async with open_store(settings.state, clock=SystemClock()) as store:
        trail = open_trail(store, settings.audit_file)
        try:
            return await (_verify(trail) if options.verify else _show(trail, filters, options))
        except Problem as problem:
            print(f"quorate: {problem_text(problem)}", file=sys.stderr)
            return FAILED
        finally:
            await trail.close()


async def _resolve(settings: Settings) -> int:
    """Close changes whose process died; those of a living process are left alone."""
    app = build(settings)
    try:
        unfinished = await app.pipeline.resolve_unfinished()
    except Problem as problem:
        print(f"quorate: {problem_text(problem)}", file=sys.stderr)
        return FAILED
    finally:
        await app.close()
    for change in unfinished:
        shown = {**change.entry, "outcome": change.outcome or "unfinished", "error": " ".join(change.says)}
        print(_line(shown))
    if not unfinished:
        print("There are no changes to resolve.")
    return FAILED if any(resolution.outcome is None for resolution in unfinished) else OK


async def _verify(trail: AuditTrail) -> int:
    verification = await trail.verify()
    for remark in verification.remarks:
        print(remark)
    if verification.broken is not None:
        print(
            f"quorate: the audit trail {trail.place} is broken ({verification.broken.how}): {verification.broken.says}",
            file=sys.stderr,
        )
        return FAILED
    for line in verification.unfinished:
        print(line)
    unfinished = f", {len(verification.unfinished)} unfinished (see --resolve)" if verification.unfinished else ""
    entries = "1 entry" if verification.entries == 1 else f"{verification.entries} entries"
    records = "1 record" if verification.records == 1 else f"{verification.records} records"
    print(f"The audit trail {trail.place} is intact: {entries} in {records}{unfinished}.")
    return OK


async def _show(trail: AuditTrail, filters: Filters, options: argparse.Namespace) -> int:
    if options.export:
        async for line in trail.export(options.export, filters):
            sys.stdout.write(line)
        return OK
    entries = await trail.entries(filters, options.tail)
    for entry in entries:
        print(json.dumps(entry, ensure_ascii=False) if options.json else _line(entry))
    if not entries and not options.json:
        print("No matching entries.")
    return OK


def _line(entry: dict[str, Any]) -> str:
    who = entry.get("caller", {})
    summary = entry.get("plan") or f"{entry.get('tool')} {json.dumps(entry.get('arguments', {}), ensure_ascii=False)}"
    commands = [
        call for call in entry.get("calls", ()) if not call.startswith(_VERBS)
    ]  # commands and files are not in the plan
    summary = " ".join([summary, *(f"({command})" for command in commands)])
    parts = (
        entry.get("time", ""),
        f"{entry.get('outcome', ''):<12}",
        entry.get("cluster", ""),
        summary,
        f"[{who.get('subject') or who.get('client', '')}; approval: {entry.get('approval', 'not recorded')}]",
        f"change {entry['change']}" if entry.get("change") else "",
        entry.get("error", ""),
        f"(outcome established afterwards: {' '.join(entry.get('found', ()))})" if entry.get("resolved") else "",
    )
    return clean_text("  ".join(str(part) for part in parts if part)).replace("\n", " ")


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    if match := _AGO.fullmatch(text.strip()):
        return dt.datetime.now(dt.UTC).timestamp() - int(match[1]) * _SECONDS[match[2]]
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time: write 2026-01-31, 2026-01-31T12:00 or an age such as 2h.") from None
    return moment.astimezone().timestamp()
