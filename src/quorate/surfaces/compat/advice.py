"""Advice in the words of the server whose tools are served: its tools and arguments, never ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from quorate.hints import OMITTED, Advice, CalledTool, Hint, Naming, ToolHint, resolve
from quorate.operations.registry import operations
from quorate.surfaces.compat.declaration import System, Tool

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "guest": ("vmid",),
    "task": ("upid",),
    "pool": ("poolid",),
    "vmid": ("vmid", "new_vmid", "newid"),
    "host": ("hostname",),
    "device": ("device_id",),
    "service": ("service_name",),
    "backup": ("backup_id", "archive", "volid"),
    "snapshot": ("snapname",),
    "template": ("ostemplate",),
    "content": ("contentType",),
    "ssh_keys": ("ssh_public_keys", "sshkeys"),
    "target_storage": ("storage",),
}
"""Our name for an argument -> what other servers call it. Names that are the same everywhere are not listed."""

INSTEAD: Mapping[str, str] = {"task_wait": "task_get", "node_list": "cluster_status", "volume_list": "backup_list"}
"""An operation that serves where a system has no tool for the one in a hint."""

ADVICE = ("next", "note", "warnings", "unchanged", "to_do", "stdout_cut", "stderr_cut")
"""Parts of an answer that may say what to call next."""

_CALL = re.compile(r"(?<![\w-])(?P<tool>[a-z]+(?:_[a-z]+)+)(?P<given>(?: [a-z_]+=[^\s,;]*[^\s,;.])*)(?![\w-])")
_NAME = re.compile(r"(?<![\w=-])([a-z]+(?:_[a-z]+)+)(?![\w=-])")
_GIVEN = re.compile(r"(?<![\w-])([a-z][a-z_]*)=")
_LEFT_OUT = re.compile(r"\b[Ll]eave (?!it |them |that )(\w+) out")
_SENTENCE = re.compile(r"(?<=[.;])\s+")
_CHOICE = re.compile(r",? or (?=\w)")
_KINDS = {"vm": "vm", "vms": "vm", "qemu": "vm", "lxc": "ct", "container": "ct", "containers": "ct"}
"""Words in the name of a tool for one kind of guest -> what our labels call that kind."""
_FOR_BOTH = {"type", "type_", "vm_type"}
"""Arguments by which a tool takes either kind, whatever its name says."""
_LABEL = re.compile(r"\b(vm|ct) \d+\b")


@cache
def _own_arguments() -> frozenset[str]:
    """Our arguments that no sentence contains by chance, because they are of several words."""
    every = (name for one in operations().values() for name in one.arguments.__struct_fields__)
    return frozenset(name for name in every if "_" in name)


class AdviceTranslator:
    def __init__(self, system: System) -> None:
        self._tools = system.tools
        self._arguments = system.arguments
        self._native = [(tool, hint) for tool in system.tools.values() for hint in _native_calls(tool.native)]

    def naming(self, tool: Tool | None = None, about: str = "") -> Naming:
        """How hints are written for the caller of a tool; `about` as in `call`."""

        def name(hint: Hint) -> str | None:
            if isinstance(hint, ToolHint):
                return self.call(hint, tool, about)
            if tool is None:
                return str(hint)
            if isinstance(hint, CalledTool):
                return tool.name
            if hint.value is OMITTED and not self._can_be_left_out(tool, hint.name):
                return None
            theirs = self._argument(tool, hint.name)
            return hint.spell(theirs) if theirs else None

        return name

    # -- tools by value --------------------------------------------------------------------------------------------

    def call(self, hint: ToolHint, tool: Tool | None = None, about: str = "") -> str | None:
        """The call that does the same here, or several that might; None if there is none.

        `tool` is the one called, `about` what was said of its guest: neither leads to a tool for the other kind.
        """
        kind = _kind_in(about) or (_kind_of(tool) if tool else None)
        known = [
            (one, native)
            for one, native in self._native
            if native.tool == hint.tool
            and kind in (None, _kind_of(one) or kind)
            and (hint.arguments or tool is None or one.name != tool.name)
        ]
        given = hint.spelled_arguments
        fitting = [(one, native) for one, native in known if native.arguments.items() <= given.items()]
        # A list of VMs shows fewer than all guests, but more than nothing.
        fitting = fitting or [(one, native) for one, native in known if not one.changes and not given]
        if not fitting:
            instead = INSTEAD.get(hint.tool)
            return self.call(ToolHint(instead, hint.arguments), tool, about) if instead else None
        most = max(len(native.arguments) for _, native in fitting)
        best = [
            (one, {name: value for name, value in given.items() if name not in native.arguments})
            for one, native in fitting
            if len(native.arguments) == most
        ]
        return " or ".join(dict.fromkeys(self._written(one, rest) for one, rest in best))

    def _written(self, tool: Tool, given: Mapping[str, str]) -> str:
        parts = (f"{theirs}={value}" for name, value in given.items() if (theirs := self._argument(tool, name)))
        return " ".join([tool.name, *parts])

    def _argument(self, tool: Tool, name: str) -> str | None:
        return next(self._spellings(tool, name), None)

    def _spellings(self, tool: Tool, name: str) -> Iterator[str]:
        own = self._arguments.get(name)
        names = (own,) if own else (name, *ARGUMENTS.get(name, ()))
        return (one for one in names if one in tool.spellings)

    # -- whole advice ----------------------------------------------------------------------------------------------

    def advise(self, advice: Advice | str, tool: Tool, about: str = "") -> str | None:
        """The advice without what cannot be followed here; None if nothing is left of it."""
        if isinstance(advice, str):
            return self._possible_text(advice, tool)
        name = self.naming(tool, about)
        calls = [call for hint in advice.tools if (call := name(hint))]
        said = advice.render(lambda hint: None if isinstance(hint, ToolHint) else name(hint))
        text = self._possible_text(said, tool)
        if not calls:
            return text or None
        return f"{text.rstrip('.')}: {', '.join(calls)}" if text else f"See {', '.join(calls)}"

    def translate(self, facts: Mapping[str, Any], tool: Tool) -> dict[str, Any]:
        """An answer with its advice in this server's words; advice that nobody can follow here is left out."""
        about = str(facts.get("plan", ""))
        translated = {
            name: self._part(value, tool, about) if name in ADVICE else value for name, value in facts.items()
        }
        kept = {name: value for name, value in translated.items() if name not in ADVICE or value not in (None, [])}
        resolved: dict[str, Any] = resolve(kept, self.naming(tool, about))
        return resolved

    def _part(self, value: Any, tool: Tool, about: str) -> Any:
        if isinstance(value, (str, Advice)):
            return self.advise(value, tool, about)
        if isinstance(value, (list, tuple)) and all(isinstance(one, (str, Advice)) for one in value):
            return [text for one in value if (text := self.advise(one, tool, about))]
        return value

    # -- free text -------------------------------------------------------------------------------------------------

    def translate_text(self, text: str, tool: Tool) -> str:
        text = _CALL.sub(lambda found: self._translated_call(found, tool), text)
        text = _NAME.sub(lambda found: self._translated_name(found[1], tool), text)
        return _GIVEN.sub(lambda found: f"{self._arguments.get(found[1], found[1])}=", text)

    def _translated_call(self, found: re.Match[str], tool: Tool) -> str:
        if found["tool"] not in operations():
            return found[0]
        return self.call(ToolHint(found["tool"], _pairs(found["given"])), tool) or found[0]

    def _translated_name(self, name: str, tool: Tool) -> str:
        return (self._argument(tool, name) or name) if name in _own_arguments() else name

    def _possible_text(self, text: str, tool: Tool) -> str | None:
        """What is left when the parts about tools and arguments that do not exist here are gone."""
        translated = self.translate_text(text, tool)
        if not self._foreign(translated, tool):
            return translated
        kept = [part for sentence in _SENTENCE.split(translated) if (part := self._possible_part(sentence, tool))]
        if not kept:
            return None
        left = " ".join(kept).rstrip(";, ")
        left = left[:1].upper() + left[1:]
        return left if left.endswith((".", "?", "…")) or not text.endswith(".") else f"{left}."

    def _possible_part(self, sentence: str, tool: Tool) -> str | None:
        if not self._foreign(sentence, tool):
            return sentence
        kept = [choice for choice in _CHOICE.split(sentence) if not self._foreign(choice, tool)]
        if not kept:
            return None
        left = ", or ".join(kept)
        return left + (";" if sentence.endswith(";") and not left.endswith(";") else "")

    def _foreign(self, text: str, tool: Tool) -> bool:
        words = set(re.findall(r"[\w-]+", text))
        if words & set(operations()):
            return True
        named = [tool, *(one for name, one in self._tools.items() if name in words)]
        known = {spelling for one in named for spelling in one.spellings}
        given = set(_GIVEN.findall(text)) | (words & _own_arguments())
        return bool(given - known) or not all(self._can_be_left_out(tool, name) for name in _LEFT_OUT.findall(text))

    def _can_be_left_out(self, tool: Tool, name: str) -> bool:
        names = set(self._spellings(tool, name)) - set(tool.needs)
        return any(names & set(one.spellings) and not one.required for one in tool.accepted)


def _native_calls(native: str) -> list[ToolHint]:
    """The operations that each do what the tool does, with the arguments that make them do it."""
    if " then " in native:
        return []
    found = ((one["tool"], _pairs(one["given"])) for one in _CALL.finditer(native))
    return [
        ToolHint(tool, {name: value for name, value in given.items() if value.isidentifier()}) for tool, given in found
    ]


def _pairs(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split())


def _kind_of(tool: Tool) -> str | None:
    """`vm` or `ct`, of a tool that is for one kind of guest only."""
    if _FOR_BOTH & set(tool.spellings):
        return None
    return next((_KINDS[word] for word in re.split("[-_]", tool.name) if word in _KINDS), None)


def _kind_in(text: str) -> str | None:
    found = _LABEL.search(text)
    return found[1] if found else None
