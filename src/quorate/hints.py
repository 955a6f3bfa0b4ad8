"""Text that refers to tools and arguments, so that each surface can name them in its own words.

    raise NotFound(f"No guest {name!r}", next_step=see("See what exists", GUEST_LIST))
    raise Conflict(
        f"{guest} runs",
        next_step=either(
            Advice("Shut it down first", GUEST_POWER(guest=105, action="shutdown")),
            Advice("give {stop} to cut its power", stop=True),
        ),
    )

`str()` gives the native wording: "Shut it down first (guest_power guest=105 action=shutdown), or give stop=true to cut
its power". A surface leaves out the alternatives whose arguments it does not have. Layers below the operations
use the constants here.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class ToolHint:
    """One tool to call next, with the arguments that matter."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **arguments: Any) -> ToolHint:
        """The same tool with arguments: `GUEST_POWER(guest=105, action="start")`."""
        return ToolHint(self.tool, {**self.arguments, **arguments})

    def __str__(self) -> str:
        return " ".join((self.tool, *(f"{name}={value}" for name, value in self.spelled_arguments.items())))

    @property
    def spelled_arguments(self) -> dict[str, str]:
        """The arguments as text: `true` for True, lists as JSON."""
        return {name: _spell(value) for name, value in self.arguments.items()}


class Mention(Enum):
    """How a text mentions an argument without a value."""

    NAMED = "named"
    """`Advice("Give {size}, such as 32G", size=NAMED)`"""
    OMITTED = "omitted"
    """`Advice("Leave {vmid} out", vmid=OMITTED)`: for tools that can do without it."""


NAMED: Final = Mention.NAMED
OMITTED: Final = Mention.OMITTED


@dataclass(frozen=True, slots=True)
class ArgumentHint:
    """One argument of the called tool: `stop=true`; `file=` if the value is empty; `size` if it is a Mention."""

    name: str
    value: Any = NAMED

    def __str__(self) -> str:
        return self.spell(self.name)

    def spell(self, name: str) -> str:
        """The same under another name."""
        return name if isinstance(self.value, Mention) else f"{name}={_spell(self.value)}"


@dataclass(frozen=True, slots=True)
class CalledTool:
    """The tool that the caller has called: `Sentence("{tool} is switched off", tool=CalledTool("guest_stop"))`."""

    name: str

    def __str__(self) -> str:
        return self.name


Hint: TypeAlias = ToolHint | ArgumentHint | CalledTool

Naming = Callable[[Hint], str | None]
"""How a surface writes a call, an argument or the called tool; None where its caller cannot use it."""


class Wording(ABC):
    """A text that each surface renders with its own names."""

    __slots__ = ()

    @abstractmethod
    def render(self, name: Naming) -> str:
        """The text with tools and arguments as `name` writes them."""

    @abstractmethod
    def transform(self, change: Callable[[Any], Any]) -> Wording:
        """The same wording with its texts and the values of arguments passed through `change`."""

    def __str__(self) -> str:
        return self.render(str)


@dataclass(frozen=True, slots=True, init=False)
class Sentence(Wording):
    """A statement with placeholders: `Sentence("{action} needs {size}", action="resize", size=NAMED)`.

    Only the placeholders of its own hints are replaced, whatever other braces the text has. What a surface cannot name
    keeps its native name.
    """

    text: str
    hints: Mapping[str, ArgumentHint | CalledTool]

    def __init__(self, text: str, /, **mentions: Any) -> None:
        text = text.strip()
        text = text if text.endswith("..") else text.removesuffix(".")  # ".." is the parent folder
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "hints", {name: _hint(name, value) for name, value in mentions.items()})

    def render(self, name: Naming) -> str:
        if not self.hints:
            return self.text
        shown = {key: name(hint) or str(hint) for key, hint in self.hints.items()}
        return self._placeholders.sub(lambda found: shown[found[1]], self.text)

    def transform(self, change: Callable[[Any], Any]) -> Sentence:
        hints = {key: _transform(hint, change) for key, hint in self.hints.items()}
        if not hints:
            return Sentence(change(self.text))
        parts = self._placeholders.split(self.text)  # every second one is the name of a hint
        parts = [f"{{{part}}}" if number % 2 else change(part) for number, part in enumerate(parts)]
        return Sentence("".join(parts), **hints)

    @property
    def _placeholders(self) -> re.Pattern[str]:
        return re.compile("{(" + "|".join(self.hints) + ")}")

    def capitalize(self) -> Sentence:
        return Sentence(self.text[:1].upper() + self.text[1:], **self.hints)


@dataclass(frozen=True, slots=True)
class Paragraph(Wording):
    """Several wordings, each of which ends like a sentence."""

    parts: tuple[Wording, ...]

    def render(self, name: Naming) -> str:
        texts = [text for one in self.parts if (text := one.render(name))]
        line_break = "\n" if texts and "\n- " in texts[0] else " "  # what follows a list starts a line of its own
        return line_break.join(map(end_sentence, texts))

    def transform(self, change: Callable[[Any], Any]) -> Paragraph:
        return Paragraph(tuple(one.transform(change) for one in self.parts))


def end_sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":", "`")) else text + "."


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One thing to do, and the tools that help."""

    sentence: Sentence
    tools: tuple[ToolHint, ...] = ()
    only_with_tools: bool = False
    """Whether it is worth nothing where none of the tools exist; see `see`."""

    def is_possible(self, name: Naming) -> bool:
        """Whether the surface has what it mentions."""
        return all(map(name, self.sentence.hints.values())) and (not self.only_with_tools or any(map(name, self.tools)))


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives, of which one or more are possible."""

    alternatives: tuple[Suggestion, ...]
    conjunction: str = ", or "
    """Between the last two; a comma separates the others."""
    separator: str = ". "
    """From what precedes it."""

    def between(self, number: int, count: int) -> str:
        """What precedes an alternative of the possible ones."""
        return self.separator if number == 0 else self.conjunction if number == count - 1 else ", "


@dataclass(frozen=True, slots=True, init=False)
class Advice(Wording):
    """What to do next: a sentence that makes sense alone, and the tools that help."""

    choices: tuple[Choice, ...]

    def __init__(self, text: str, /, *tools: ToolHint, **arguments: Any) -> None:
        object.__setattr__(self, "choices", (Choice((Suggestion(Sentence(text, **arguments), tools),)),))

    @classmethod
    def of(cls, *choices: Choice) -> Advice:
        advice = Advice("")
        object.__setattr__(advice, "choices", choices)
        return advice

    @property
    def tools(self) -> tuple[ToolHint, ...]:
        return tuple(tool for one in self.suggestions for tool in one.tools)

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        return tuple(one for choice in self.choices for one in choice.alternatives)

    def render(self, name: Naming) -> str:
        """The alternatives that are possible there, each with its calls; empty if nothing is."""
        text, calls = "", ""
        for choice in self.choices:
            possible = [one for one in choice.alternatives if one.is_possible(name)]
            for number, one in enumerate(possible):
                if calls:  # those of the last suggestion follow a colon
                    text, calls = f"{text} ({calls})", ""
                separator = choice.between(number, len(possible)) if number or text else ""
                if text.endswith("?") and not number:
                    separator = " "
                is_start = one is not self.suggestions[0] and separator in ("", " ", ". ")
                sentence = one.sentence.capitalize() if is_start else one.sentence
                text += separator + sentence.render(name)
                calls = ", ".join(dict.fromkeys(shown for tool in one.tools if (shown := name(tool))))
        return ": ".join(part for part in (text, calls) if part)

    def transform(self, change: Callable[[Any], Any]) -> Advice:
        return self._map(
            lambda one: replace(
                one,
                sentence=one.sentence.transform(change),
                tools=tuple(ToolHint(tool.tool, change(dict(tool.arguments))) for tool in one.tools),
            )
        )

    def with_arguments(self, **arguments: Any) -> Advice:
        """The same advice with more arguments for each of its tools."""
        return self._map(lambda one: replace(one, tools=tuple(tool(**arguments) for tool in one.tools)))

    def then(self, other: Advice, separator: str = ". ") -> Advice:
        """This advice, followed by another."""
        first, *rest = other.choices
        return Advice.of(*self.choices, replace(first, separator=separator), *rest)

    def _map(self, change: Callable[[Suggestion], Suggestion]) -> Advice:
        return Advice.of(
            *(replace(one, alternatives=tuple(map(change, one.alternatives))) for one in self.choices),
        )


def see(text: str, /, *tools: ToolHint, **arguments: Any) -> Advice:
    """Where to look: `see("List the nodes", NODE_LIST)`. A surface without these tools leaves it out."""
    suggestion = Suggestion(Sentence(text, **arguments), tools, only_with_tools=bool(tools))
    return Advice.of(Choice((suggestion,)))


def either(*alternatives: Advice | str, conjunction: str = ", or ") -> Advice:
    """Advice of which one part is enough: `either("Choose another name", Advice("give {force}", force=True))`."""
    first, *others = (one for each in alternatives for one in to_advice(each).suggestions)
    return Advice.of(Choice((replace(first, sentence=first.sentence.capitalize()), *others), conjunction))


def append_advice(advice: Advice | str | None, text: str, /, *tools: ToolHint, **arguments: Any) -> Advice:
    """The advice, followed by more."""
    more = Advice(text, *tools, **arguments)
    return to_advice(advice).then(more) if advice else more


def to_advice(advice: Advice | str) -> Advice:
    return Advice(advice) if isinstance(advice, str) else advice


def resolve(value: Any, name: Naming = str) -> Any:
    """The same data with every wording as text; advice that nobody can follow is left out."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Wording):
        return value.render(name)
    if isinstance(value, (list, tuple)):
        return value if all(isinstance(one, _PLAIN) for one in value) else [resolve(one, name) for one in value]
    if isinstance(value, Mapping):
        resolved = {key: _resolve_entry(one, name) for key, one in value.items()}
        return {key: one for key, one in resolved.items() if one is not _NOTHING}
    return value


_NOTHING: Final = object()


def _resolve_entry(value: Any, name: Naming) -> Any:
    if isinstance(value, Wording):
        return value.render(name) or _NOTHING
    if isinstance(value, (list, tuple)) and any(isinstance(one, Wording) for one in value):
        return [text for one in value if (text := resolve(one, name))] or _NOTHING
    return resolve(value, name)


def _spell(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, list)) else str(value)


def _hint(name: str, value: Any) -> ArgumentHint | CalledTool:
    return value if isinstance(value, (ArgumentHint, CalledTool)) else ArgumentHint(name, value)


def _transform(hint: ArgumentHint | CalledTool, change: Callable[[Any], Any]) -> ArgumentHint | CalledTool:
    if isinstance(hint, CalledTool) or isinstance(hint.value, Mention):
        return hint
    return replace(hint, value=change({hint.name: hint.value})[hint.name])


_PLAIN = (str, int, float, type(None))
"""Types that hold no wording: most of an answer consists of them."""

ACCESS_DELETE: Final = ToolHint("access_delete")
ACCESS_LIST: Final = ToolHint("access_list")
ACL_SET: Final = ToolHint("acl_set")
ANSIBLE_CHECK: Final = ToolHint("ansible_check")
ANSIBLE_RUN: Final = ToolHint("ansible_run")
API_CALL: Final = ToolHint("api_call")
API_SEARCH: Final = ToolHint("api_search")
BACKUP_COVERAGE: Final = ToolHint("backup_coverage")
BACKUP_CREATE: Final = ToolHint("backup_create")
BACKUP_JOB_LIST: Final = ToolHint("backup_job_list")
BACKUP_JOB_SET: Final = ToolHint("backup_job_set")
BACKUP_LIST: Final = ToolHint("backup_list")
BACKUP_RESTORE: Final = ToolHint("backup_restore")
CEPH_STATUS: Final = ToolHint("ceph_status")
CAPACITY_PLAN: Final = ToolHint("capacity_plan")
CLOUDINIT_SET: Final = ToolHint("cloudinit_set")
CLUSTER_STATUS: Final = ToolHint("cluster_status")
CONTAINER_CREATE: Final = ToolHint("container_create")
DEVICE_DECOMMISSION: Final = ToolHint("device_decommission")
DISK_ADD: Final = ToolHint("disk_add")
DISK_CHANGE: Final = ToolHint("disk_change")
DISK_DESTROY: Final = ToolHint("disk_destroy")
FINDING_GET: Final = ToolHint("finding_get")
FINDING_LIST: Final = ToolHint("finding_list")
FIREWALL_GET: Final = ToolHint("firewall_get")
FIREWALL_RULE_SET: Final = ToolHint("firewall_rule_set")
GUEST_CLONE: Final = ToolHint("guest_clone")
GUEST_CONFIGURE: Final = ToolHint("guest_configure")
GUEST_DELETE: Final = ToolHint("guest_delete")
GUEST_DIR_LIST: Final = ToolHint("guest_dir_list")
GUEST_EXEC: Final = ToolHint("guest_exec")
GUEST_FILE_READ: Final = ToolHint("guest_file_read")
GUEST_FILE_WRITE: Final = ToolHint("guest_file_write")
GUEST_GET: Final = ToolHint("guest_get")
GUEST_INFO: Final = ToolHint("guest_info")
GUEST_JOB: Final = ToolHint("guest_job")
GUEST_LIST: Final = ToolHint("guest_list")
GUEST_MIGRATE: Final = ToolHint("guest_migrate")
GUEST_PATH_STAT: Final = ToolHint("guest_path_stat")
GUEST_POWER: Final = ToolHint("guest_power")
GUEST_SERVICE: Final = ToolHint("guest_service")
GUEST_STOP: Final = ToolHint("guest_stop")
GUEST_TEMPLATE: Final = ToolHint("guest_template")
GUEST_WAIT: Final = ToolHint("guest_wait")
HA_REMOVE: Final = ToolHint("ha_remove")
HA_RULE_SET: Final = ToolHint("ha_rule_set")
HA_SET: Final = ToolHint("ha_set")
HA_STATUS: Final = ToolHint("ha_status")
HOST_ADMIN_SETUP: Final = ToolHint("host_admin_setup")
HOST_DISCOVER: Final = ToolHint("host_discover")
HOST_EXEC: Final = ToolHint("host_exec")
HOST_FILE: Final = ToolHint("host_file")
HOST_IMPORT: Final = ToolHint("host_import")
HOST_JOB: Final = ToolHint("host_job")
HOST_LIST: Final = ToolHint("host_list")
HOST_REBOOT: Final = ToolHint("host_reboot")
HOST_REGISTER: Final = ToolHint("host_register")
HOST_SERVICE: Final = ToolHint("host_service")
HOST_SHELL_OPEN: Final = ToolHint("host_shell_open")
HOST_STATUS: Final = ToolHint("host_status")
HOST_UPDATE: Final = ToolHint("host_update")
HOST_VERIFY: Final = ToolHint("host_verify")
IMAGE_DOWNLOAD: Final = ToolHint("image_download")
IMAGE_UPLOAD: Final = ToolHint("image_upload")
INFRA_APPLY: Final = ToolHint("infra_apply")
INFRA_BACKUP: Final = ToolHint("infra_backup")
INFRA_BACKUP_LIST: Final = ToolHint("infra_backup_list")
INFRA_PLAN: Final = ToolHint("infra_plan")
INFRA_ROLLBACK: Final = ToolHint("infra_rollback")
INFRA_VALIDATE: Final = ToolHint("infra_validate")
METRICS_GET: Final = ToolHint("metrics_get")
METRICS_TOP: Final = ToolHint("metrics_top")
NETWORK_APPLY: Final = ToolHint("network_apply")
NETWORK_DISCOVER: Final = ToolHint("network_discover")
NETWORK_LIST: Final = ToolHint("network_list")
NETWORK_MAP: Final = ToolHint("network_map")
NETWORK_SCAN: Final = ToolHint("network_scan")
NIC_REMOVE: Final = ToolHint("nic_remove")
NIC_SET: Final = ToolHint("nic_set")
NODE_GET: Final = ToolHint("node_get")
NODE_INSPECT: Final = ToolHint("node_inspect")
NODE_LIST: Final = ToolHint("node_list")
NODE_NETWORK_CHANGE: Final = ToolHint("node_network_change")
NODE_UPDATES_REFRESH: Final = ToolHint("node_updates_refresh")
PERMISSION_AUDIT: Final = ToolHint("permission_audit")
POOL_SET: Final = ToolHint("pool_set")
REPLICATION_LIST: Final = ToolHint("replication_list")
REPLICATION_SET: Final = ToolHint("replication_set")
RUN_CONTROL: Final = ToolHint("run_control")
RUN_GET: Final = ToolHint("run_get")
RUN_GUEST_UPDATE: Final = ToolHint("run_guest_update")
RUN_LIST: Final = ToolHint("run_list")
RUN_RESTORE_DRILL: Final = ToolHint("run_restore_drill")
RUN_WAIT: Final = ToolHint("run_wait")
SCRIPT_INFO: Final = ToolHint("script_info")
SCRIPT_RUN: Final = ToolHint("script_run")
SCRIPT_SEARCH: Final = ToolHint("script_search")
SDN_CHANGE: Final = ToolHint("sdn_change")
SERVICE_CHECK: Final = ToolHint("service_check")
SERVICE_INSTALL: Final = ToolHint("service_install")
SERVICE_LIST: Final = ToolHint("service_list")
SERVICE_STATUS: Final = ToolHint("service_status")
SERVICE_UNINSTALL: Final = ToolHint("service_uninstall")
SNAPSHOT_CREATE: Final = ToolHint("snapshot_create")
SNAPSHOT_DELETE: Final = ToolHint("snapshot_delete")
SNAPSHOT_ROLLBACK: Final = ToolHint("snapshot_rollback")
SNAPSHOT_LIST: Final = ToolHint("snapshot_list")
STORAGE_LIST: Final = ToolHint("storage_list")
TASK_GET: Final = ToolHint("task_get")
TASK_LIST: Final = ToolHint("task_list")
TASK_WAIT: Final = ToolHint("task_wait")
TEMPLATE_LIST: Final = ToolHint("template_list")
TERRAFORM_APPLY: Final = ToolHint("terraform_apply")
TERRAFORM_DESTROY: Final = ToolHint("terraform_destroy")
TERRAFORM_PLAN: Final = ToolHint("terraform_plan")
TERRAFORM_REFRESH: Final = ToolHint("terraform_refresh")
VM_CREATE: Final = ToolHint("vm_create")
VOLUME_LIST: Final = ToolHint("volume_list")
VOLUME_UPDATE: Final = ToolHint("volume_update")
WORKLOAD_GET: Final = ToolHint("workload_get")
WORKLOAD_LIST: Final = ToolHint("workload_list")
WORKLOAD_REMOVE: Final = ToolHint("workload_remove")
