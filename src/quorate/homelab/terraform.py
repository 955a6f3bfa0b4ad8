"""OpenTofu or Terraform, whichever is there, in a work folder for each service and host.

Everything goes by saved plans: a plan is made and shown, and exactly that file is applied. Plans and state hold secrets
in the clear, as both programs write them: the folder is for our user alone. Both lock the state while they work on it.
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

from quorate.homelab.services.programs import environment, output, private_folder, running, write_private
from quorate.homelab.services.template import VERSION, Template
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
    """Of what it would do, the same for two plans that do the same."""

    @property
    def destroys(self) -> tuple[str, ...]:
        return tuple(one.address for one in self.changes if one.action in ("destroy", "replace", "forget"))

    @property
    def empty(self) -> bool:
        return not self.changes and not self.outputs

    @property
    def counts(self) -> dict[str, int]:
        names = ("create", "change", "replace", "destroy", "forget")
        return {name: count for name in names if (count := sum(one.action == name for one in self.changes))}

    def told(self) -> dict[str, Any]:
        rows = [[one.address, one.action, ", ".join(one.fields[:12])] for one in self.changes[:SHOWN]]
        more = {"not_shown": len(self.changes) - SHOWN} if len(self.changes) > SHOWN else {}
        return {
            "plan": self.hash,
            "counts": self.counts,
            "changes": {"columns": ["resource", "action", "fields"], "rows": rows},
            **more,
            **({"outputs_changed": list(self.outputs[:SHOWN])} if self.outputs else {}),
            **({"drift": [[one.address, one.action, ", ".join(one.fields[:12])] for one in self.drift[:SHOWN]]}
               if self.drift else {}),
        }  # fmt: skip


class Workspace:
    def __init__(self, work: Path, place: str, service: str) -> None:
        self.folder = work / "terraform" / quote(place, safe="") / service
        self._plans = self.folder / "plans"

    @property
    def program(self) -> str:
        found = shutil.which("tofu") or shutil.which("terraform")
        if found is None:
            raise NotConfigured(
                "There is neither OpenTofu nor Terraform on the server",
                next_step="The operator installs `tofu` or `terraform` where PATH leads to",
            )
        return found

    @property
    def applied(self) -> bool:
        """Whether anything was ever made from here."""
        return (self.folder / STATE).exists()

    def values(self) -> dict[str, str]:
        """The settings that were applied last, if only halfway, secrets included."""
        return _values(self.folder / "variables.json")

    async def plan(
        self, template: Template, values: Mapping[str, str], host: Mapping[str, str], kind: Kind, seconds: float
    ) -> SavedPlan:
        """Make one and keep it; of the world outside the folder nothing is changed.

        A variable cannot be called `version` there, so that one is `service_version`.
        """
        await asyncio.to_thread(self._prepare, template)
        await self._run(("init", "-input=false", "-no-color"), {}, seconds)
        new = self._plans / f"new-{secrets.token_hex(8)}"
        renamed = {"service_version" if name == VERSION else name: value for name, value in values.items()}
        variables = {f"TF_VAR_{name}": value for name, value in {**renamed, **host}.items()}
        line = ("plan", "-input=false", "-no-color", "-lock-timeout=10s", *_FLAGS[kind], f"-out={new}")
        try:
            await self._run(line, variables, seconds)
            return await asyncio.to_thread(self._keep, new, values, await self._shown(new, seconds))
        finally:
            new.unlink(missing_ok=True)

    async def saved(self, digest: str, seconds: float = 60.0) -> SavedPlan:
        """The plan of that name, if the file is still what it was."""
        file = self._file(digest)
        if not file.exists():
            raise NotFound(f"There is no plan {digest!r} here", next_step="terraform_plan makes one")
        if _digest(file) != digest:
            raise Conflict("The saved plan is not what it was", next_step="Make a new one with terraform_plan")
        return _read(digest, await self._shown(file, seconds))

    async def apply(self, saved: SavedPlan, report: Report | None) -> dict[str, Any]:
        """Exactly that plan. What was done before a failure is told; the state knows it, too."""
        if not (file := self._file(saved.hash)).exists() or _digest(file) != saved.hash:
            raise Conflict("The saved plan is gone or changed", next_step="Make a new one with terraform_plan")
        done: list[str] = []
        faults: list[str] = []
        line = (self.program, "apply", "-input=false", "-json", "-lock-timeout=10s", str(file))
        before = self._state()
        try:
            async with running(line, self.folder, _surroundings(), APPLY_SECONDS) as (process, ended):
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
        await asyncio.to_thread(self._applied, saved.hash)
        return {"done": done[:SHOWN], **await self._outputs()}

    async def _note(self, raw: bytes, done: list[str], faults: list[str], whole: int, report: Report | None) -> None:
        try:
            event = msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.DecodeError:
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
            told = msgspec.json.decode(out, type=dict[str, dict[str, Any]])
        except (Problem, msgspec.DecodeError):
            return {}
        shown = {name: "(sensitive)" if one.get("sensitive") else one.get("value") for name, one in told.items()}
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
        """From now on the settings of this plan hold, however far it came: what is there was made with them."""
        write_private(self.folder / "variables.json", msgspec.json.encode(self.planned_values(digest)).decode())

    def _applied(self, digest: str) -> None:
        """A plan is good for once."""
        self._hold(digest)
        self._file(digest).unlink(missing_ok=True)
        self._file(digest).with_suffix(".json").unlink(missing_ok=True)
        for file in self.folder.glob(f"{STATE}*"):
            file.chmod(0o600)

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, digest: str) -> Path:
        if not _HASH.fullmatch(digest):
            raise NotFound(f"There is no plan {digest!r} here", next_step="terraform_plan makes one")
        return self._plans / f"{digest}.tfplan"

    # -- the program -----------------------------------------------------------------------------------------------

    async def _shown(self, file: Path, seconds: float) -> dict[str, Any]:
        _, out, _ = await self._run(("show", "-json", "-no-color", str(file)), {}, seconds)
        told: dict[str, Any] = msgspec.json.decode(out)
        return told

    async def _run(self, argv: tuple[str, ...], variables: Mapping[str, str], seconds: float) -> tuple[int, bytes, str]:
        surroundings = {**_surroundings(), **variables}
        try:
            code, out, said = await output((self.program, *argv), self.folder, surroundings, seconds)
        except TimedOut as late:
            slow = "The first time, it fetches its providers" if argv[0] == "init" else None
            step = "Call terraform_plan with more seconds; nothing was applied"
            raise TimedOut(f"{late.what} It was at {argv[0]}", why=slow, next_step=step) from None
        if code != 0:
            words = _unboxed(said) or _unboxed(out.decode("utf-8", "replace"))
            if "state lock" in words:
                raise Conflict("Somebody else works on this state", why=words, next_step="Wait for them to end")
            raise ServerFailed(f"{Path(self.program).name} {argv[0]} failed", why=f"It said: {words}")
        return code, out, said


def _surroundings() -> dict[str, str]:
    return environment(TF_IN_AUTOMATION="1", TF_INPUT="0", CHECKPOINT_DISABLE="1", NO_COLOR="1")


def _read(digest: str, shown: Mapping[str, Any]) -> SavedPlan:
    outputs = shown.get("output_changes") or {}
    return SavedPlan(
        digest,
        _changes(shown.get("resource_changes")),
        _changes(shown.get("resource_drift")),
        tuple(name for name, one in outputs.items() if one.get("actions") != ["no-op"]),
        hashlib.sha256(msgspec.json.encode([shown.get("resource_changes"), outputs], order="sorted")).hexdigest()[:16],
    )


def _changes(told: Any) -> tuple[Change, ...]:
    found = []
    for one in told or ():
        change = one.get("change", {})
        actions = change.get("actions", [])
        action = "replace" if {"create", "delete"} <= set(actions) else _ACTIONS.get("".join(actions[:1]))
        if action is not None:
            found.append(Change(str(one.get("address", "")), action, _fields(change) if action != "create" else ()))
    return tuple(found)


def _fields(change: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of what differs; never the values, some of which are secrets."""
    before, after = change.get("before") or {}, change.get("after") or {}
    if not after:
        return ()
    return tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))


def _apply_failed(saved: SavedPlan, done: list[str], faults: list[str]) -> TaskFailed:
    rest = [one.address for one in saved.changes if one.address not in done]
    how_far = f"Done: {', '.join(done[:20]) or 'nothing'}. Not done: {', '.join(rest[:20])}"
    return TaskFailed(
        "The plan was not carried out to its end",
        why=f"{'; '.join(faults[:3])[:WORDS]} {how_far}",
        next_step="What was done is in the state. terraform_plan shows what is left; terraform_destroy takes all away",
        facts={"done": done[:SHOWN], "not_done": rest[:SHOWN]},
    )


def _values(file: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _unboxed(text: str) -> str:
    """Without the frame that it draws around errors."""
    return " ".join(text.translate(dict.fromkeys(map(ord, "╷│╵"), " ")).split())[-WORDS:]
