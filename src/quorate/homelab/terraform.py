"""Runs OpenTofu or Terraform, whichever is installed, in a work folder for each service and host.

Everything uses saved plans: a plan is made and shown, and exactly that file is applied. Plans and state contain secrets
in plain text, as both programs write them, so the folder is private. Both lock the state while they work on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from quorate.documents import Unreadable, read_json
from quorate.hints import Advice, tools
from quorate.homelab.services.catalogue import VERSION, Template
from quorate.homelab.services.programs import capture_output, environment, private_folder, run_program, write_private
from quorate.problems import Conflict, NotConfigured, NotFound, Problem, ServerFailed, TaskFailed, TimedOut
from quorate.pve.tasks import Report

Kind = Literal["apply", "destroy", "refresh"]
APPLY_SECONDS = 3600.0
KEPT_PLANS = 5
SHOWN = 60
WORDS = 1500
STATE = "terraform.tfstate"
_HASH = re.compile(r"[0-9a-f]{16}")
_ACTIONS = {"create": "create", "update": "change", "delete": "destroy", "forget": "forget"}
_FLAGS = {"apply": (), "destroy": ("-destroy",), "refresh": ("-refresh-only",)}


@dataclass(frozen=True, slots=True)
class Change:
    address: str
    action: str
    """create, change, destroy, replace or forget"""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedPlan:
    hash: str
    changes: tuple[Change, ...]
    drift: tuple[Change, ...]
    outputs: tuple[str, ...]
    """Names of outputs that would change."""
    content: str = ""
    """A hash of its effect, identical for plans with the same effect."""

    @property
    def destroys(self) -> tuple[str, ...]:
        return tuple(change.address for change in self.changes if change.action in ("destroy", "replace", "forget"))

    @property
    def empty(self) -> bool:
        return not self.changes and not self.outputs

    @property
    def counts(self) -> dict[str, int]:
        names = ("create", "change", "replace", "destroy", "forget")
        return {name: count for name in names if (count := sum(change.action == name for change in self.changes))}

    def as_dict(self) -> dict[str, Any]:
        more = {"not_shown": len(self.changes) - SHOWN} if len(self.changes) > SHOWN else {}
        return {
            "plan": self.hash,
            "counts": self.counts,
            "changes": {"columns": ["resource", "action", "fields"], "rows": _rows(self.changes)},
            **more,
            **({"outputs_changed": list(self.outputs[:SHOWN])} if self.outputs else {}),
            **({"drift": _rows(self.drift)} if self.drift else {}),
        }


def _rows(changes: tuple[Change, ...]) -> list[list[str]]:
    return [[change.address, change.action, ", ".join(change.fields[:12])] for change in changes[:SHOWN]]


class Workspace:
    def __init__(self, work: Path, host: str, service: str) -> None:
        self.folder = work / "terraform" / quote(host, safe="") / service
        self._plans = self.folder / "plans"

    @property
    def program(self) -> str:
        program = shutil.which("tofu") or shutil.which("terraform")
        if program is None:
            raise NotConfigured(
                "Neither OpenTofu nor Terraform is installed on the server",
                next_step="The operator can install `tofu` or `terraform` on the PATH",
            )
        return program

    @property
    def applied(self) -> bool:
        return (self.folder / STATE).exists()

    def values(self) -> dict[str, str]:
        """The settings that were applied last, even partially, including secrets."""
        return _values(self.folder / "variables.json")

    async def plan(
        self, template: Template, values: Mapping[str, str], host: Mapping[str, str], kind: Kind, seconds: float
    ) -> SavedPlan:
        """Make a plan and save it; nothing outside the folder changes.

        Terraform reserves the variable name `version`, so that one becomes `service_version`.
        """
        await asyncio.to_thread(self._prepare, template)
        await self._run(("init", "-input=false", "-no-color"), {}, seconds)
        new = self._plans / f"new-{secrets.token_hex(8)}"
        renamed = {"service_version" if name == VERSION else name: value for name, value in values.items()}
        variables = {f"TF_VAR_{name}": value for name, value in {**renamed, **host}.items()}
        line = ("plan", "-input=false", "-no-color", "-lock-timeout=10s", *_FLAGS[kind], f"-out={new}")
        try:
            await self._run(line, variables, seconds)
            return await asyncio.to_thread(self._keep, new, values, await self._show_plan(new, seconds))
        finally:
            new.unlink(missing_ok=True)

    def has(self, digest: str) -> bool:
        return self._file(digest).exists()

    async def load_plan(self, digest: str, seconds: float = 60.0) -> SavedPlan:
        """The saved plan. Raises a Problem if it is missing or was changed."""
        file = self._file(digest)
        if not file.exists():
            raise NotFound(f"There is no plan {digest!r}", next_step=Advice("Make one", tools.terraform_plan))
        if _digest(file) != digest:
            raise Conflict("The saved plan was changed", next_step=Advice("Make a new one", tools.terraform_plan))
        return _read(digest, await self._show_plan(file, seconds))

    async def apply(self, saved: SavedPlan, report: Report | None) -> dict[str, Any]:
        """Apply exactly that plan. A failure lists what was done, which the state contains, too."""
        if not (file := self._file(saved.hash)).exists() or _digest(file) != saved.hash:
            raise Conflict(
                "The saved plan is missing or was changed", next_step=Advice("Make a new one", tools.terraform_plan)
            )
        done: list[str] = []
        faults: list[str] = []
        line = (self.program, "apply", "-input=false", "-json", "-lock-timeout=10s", str(file))
        before = self._state()
        try:
            async with run_program(line, self.folder, _surroundings(), APPLY_SECONDS) as (process, ended):
                assert process.stdout is not None
                async for raw in process.stdout:
                    await self._note(raw, done, faults, len(saved.changes), report)
        except TimedOut as late:
            raise _apply_failed(saved, done, [late.what]) from None
        finally:
            if self._state() != before:
                self._hold(saved.hash)
        if ended.exit_code != 0:
            raise _apply_failed(saved, done, faults or [ended.stderr.strip()[-WORDS:]])
        await asyncio.to_thread(self._finish_plan, saved.hash)
        return {"done": done[:SHOWN], **await self._outputs()}

    async def _note(self, raw: bytes, done: list[str], faults: list[str], whole: int, report: Report | None) -> None:
        try:
            event = read_json(raw, dict[str, Any])
        except Unreadable:
            return
        message = str(event.get("@message", ""))[:WORDS]
        if event.get("type") == "apply_complete":
            done.append(str(event.get("hook", {}).get("resource", {}).get("addr", message)))
        if event.get("@level") == "error":
            detail = event.get("diagnostic", {}).get("detail", "") if isinstance(event.get("diagnostic"), dict) else ""
            faults.append(f"{message} {detail}".strip()[:WORDS])
        if report is not None and event.get("type") in ("apply_start", "apply_progress", "apply_complete"):
            await report(100.0 * len(done) / max(1, whole), 100.0, message)

    async def _outputs(self) -> dict[str, Any]:
        try:
            _, out, _ = await self._run(("output", "-json", "-no-color"), {}, 60.0)
            outputs = read_json(out, dict[str, dict[str, Any]])
        except (Problem, Unreadable):
            return {}
        shown = {
            name: "(sensitive)" if output.get("sensitive") else output.get("value") for name, output in outputs.items()
        }
        return {"outputs": dict(list(shown.items())[:SHOWN])} if shown else {}

    # -- files -----------------------------------------------------------------------------------------------------

    def _prepare(self, template: Template) -> None:
        private_folder(self.folder.parent.parent)
        private_folder(self.folder.parent)
        private_folder(self.folder)
        private_folder(self._plans)
        for file in self.folder.glob("*.tf*"):
            if file.suffix in (".tf", ".tfvars") and file.name not in template.terraform:
                file.unlink()
        for name, text in template.terraform.items():
            write_private(self.folder / name, text)

    def _keep(self, new: Path, values: Mapping[str, str], shown: dict[str, Any]) -> SavedPlan:
        new.chmod(0o600)
        digest = _digest(new)
        new.replace(self._file(digest))
        write_private(self._file(digest).with_suffix(".json"), msgspec.json.encode(dict(values)).decode())
        by_age = sorted(self._plans.glob("*.tfplan"), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in by_age[KEPT_PLANS:]:
            old.unlink(missing_ok=True)
            old.with_suffix(".json").unlink(missing_ok=True)
        return _read(digest, shown)

    def planned_values(self, digest: str) -> dict[str, str]:
        return _values(self._file(digest).with_suffix(".json"))

    def _state(self) -> bytes:
        try:
            return (self.folder / STATE).read_bytes()
        except FileNotFoundError:
            return b""

    def _hold(self, digest: str) -> None:
        """The settings of this plan count from now on, however far it got: what exists was created with them."""
        write_private(self.folder / "variables.json", msgspec.json.encode(self.planned_values(digest)).decode())

    def _finish_plan(self, digest: str) -> None:
        """Delete the plan: it can be applied only once."""
        self._hold(digest)
        self._file(digest).unlink(missing_ok=True)
        self._file(digest).with_suffix(".json").unlink(missing_ok=True)
        for file in self.folder.glob(f"{STATE}*"):
            file.chmod(0o600)

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, digest: str) -> Path:
        if not _HASH.fullmatch(digest):
            raise NotFound(f"There is no plan {digest!r}", next_step=Advice("Make one", tools.terraform_plan))
        return self._plans / f"{digest}.tfplan"

    # -- the program -----------------------------------------------------------------------------------------------

    async def _show_plan(self, file: Path, seconds: float) -> dict[str, Any]:
        _, out, _ = await self._run(("show", "-json", "-no-color", str(file)), {}, seconds)
        try:
            plan: dict[str, Any] = read_json(out, dict[str, Any])
        except Unreadable as fault:
            raise ServerFailed(f"The plan from {self.program} {fault}") from None
        return plan

    async def _run(self, argv: tuple[str, ...], variables: Mapping[str, str], seconds: float) -> tuple[int, bytes, str]:
        surroundings = {**_surroundings(), **variables}
        try:
            code, out, stderr = await capture_output((self.program, *argv), self.folder, surroundings, seconds)
        except TimedOut as late:
            slow = "The first time, it downloads its providers" if argv[0] == "init" else None
            step = Advice("Allow more seconds; nothing was applied", tools.terraform_plan)
            raise TimedOut(f"{late.what} It was running {argv[0]}", why=slow, next_step=step) from None
        if code != 0:
            words = _strip_box(stderr) or _strip_box(out.decode("utf-8", "replace"))
            if "state lock" in words:
                raise Conflict(
                    "Another process is working on this state", why=words, next_step="Wait until it has ended"
                )
            raise ServerFailed(f"{Path(self.program).name} {argv[0]} failed", why=f"It said: {words}")
        return code, out, stderr


def _surroundings() -> dict[str, str]:
    return environment(TF_IN_AUTOMATION="1", TF_INPUT="0", CHECKPOINT_DISABLE="1", NO_COLOR="1")


def _read(digest: str, shown: Mapping[str, Any]) -> SavedPlan:
    outputs = shown.get("output_changes") or {}
    return SavedPlan(
        digest,
        _changes(shown.get("resource_changes")),
        _changes(shown.get("resource_drift")),
        tuple(name for name, output in outputs.items() if output.get("actions") != ["no-op"]),
        hashlib.sha256(msgspec.json.encode([shown.get("resource_changes"), outputs], order="sorted")).hexdigest()[:16],
    )


def _changes(listed: Any) -> tuple[Change, ...]:
    changes = []
    for resource in listed or ():
        change = resource.get("change", {})
        actions = change.get("actions", [])
        action = "replace" if {"create", "delete"} <= set(actions) else _ACTIONS.get("".join(actions[:1]))
        if action is not None:
            changes.append(
                Change(str(resource.get("address", "")), action, _fields(change) if action != "create" else ())
            )
    return tuple(changes)


def _fields(change: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of changed fields, without their values, which may be secrets."""
    before, after = change.get("before") or {}, change.get("after") or {}
    if not after:
        return ()
    return tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))


def _apply_failed(saved: SavedPlan, done: list[str], faults: list[str]) -> TaskFailed:
    rest = [change.address for change in saved.changes if change.address not in done]
    how_far = f"Done: {', '.join(done[:20]) or 'nothing'}. Not done: {', '.join(rest[:20])}"
    return TaskFailed(
        "The plan was not applied completely",
        why=f"{'; '.join(faults[:3])[:WORDS]} {how_far}",
        next_step=Advice(
            "The state contains what was done. Plan the rest, or destroy everything",
            tools.terraform_plan,
            tools.terraform_destroy,
        ),
        facts={"done": done[:SHOWN], "not_done": rest[:SHOWN]},
    )


def _values(file: Path) -> dict[str, str]:
    try:
        values: dict[str, str] = read_json(file.read_bytes(), dict[str, str])
        return values
    except (OSError, Unreadable):
        return {}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _strip_box(text: str) -> str:
    """Remove the frame around Terraform's errors."""
    return " ".join(text.translate(dict.fromkeys(map(ord, "╷│╵"), " ")).split())[-WORDS:]
