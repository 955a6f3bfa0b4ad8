"""Placeholders of the recorded scenarios, and rules for when answers agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")
_UPID = re.compile(r"UPID:[^:]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:([^:]+):([^:]*):([^:]+):")
_PATTERNS = (
    (_MAC, "<MAC>"),
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "<digest>"),
    (re.compile(r"\b\d{4}_\d\d_\d\d-\d\d_\d\d_\d\d\b"), "<when>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\b"), "<when>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"creation-qemu=[\d.]+"), "creation-qemu=<v>"),
    (re.compile(r"ctime=\d+"), "ctime=<t>"),
    (re.compile(r"\bpc-(i440fx|q35)-[\d.]+(?:\+pve\d+)?"), r"pc-\1-<v>"),
    (re.compile(r"at /usr/share/perl5/\S+ line \d+"), "at <perl>"),
    (re.compile(r"(invalid calendar event '.*?') - [^\n]*"), r"\1 - <parser>"),
    (re.compile(r"Name or service not known"), "<not resolved>"),
)
_MEASURED = (  # durations, rates and amounts in task logs, which differ in every run
    (re.compile(r"\d[\d.,]*\s?(?:[KMGT]i?B|bytes|B)/s(?:ec)?"), "<rate>"),
    (re.compile(r"(in|after|time:) (?:<?\d[\d.]*)(s| seconds)(?: \(<rate>\))?"), r"\1 <duration>"),
    (re.compile(r"(Total bytes (?:read|written)): \d+ \([\d.]+MiB, <rate>\)"), r"\1 <amount>"),
    (re.compile(r"(archive file size:|zero data|sparse:|transferred) .*"), r"\1 <amount>"),
    (re.compile(r"^((?:Number of|Total|Literal|File list|sent|total size)[^:\d]*).*"), r"\1 <amount>"),
    (re.compile(r": \d+/(\d+) files \(.*\), \d+/(\d+) blocks"), r": \1 files, \2 blocks"),
    (re.compile(r"/proc/\d+/"), "/proc/<pid>/"),
)
_BUSY = ("trying to acquire lock...", " OK")  # another process held the lock, or not
_ANYTHING = ("<string>", "<number>", "<digest>", "<os of the template>")
_IDENTITIES = (
    "volid",
    "key",
    "vmid",
    "userid",
    "poolid",
    "storage",
    "iface",
    "sid",
    "rule",
    "group",
    "id",
    "name",
    "pos",
)


class Words:
    """Translates between this world's names and the placeholders of the recordings."""

    def __init__(self, base_id: int, names: Mapping[str, str]) -> None:
        self._spelled = {f"<id{number}>": str(base_id + number) for number in range(10)} | dict(names)
        self._ids = {base_id + number: f"<id{number}>" for number in range(10)}
        self._template_file = names["<template>"].rpartition("/")[2]

    def spell(self, text: str) -> str:
        """Replace placeholders with this world's names."""
        if text == "~" or text.startswith("~/"):
            text = f"/nodes/<node>{text[1:]}"
        for placeholder, name in self._spelled.items():
            text = text.replace(placeholder, name)
        return text

    def upid(self, upid: str) -> str:
        """Type, target and user of a task, as the recordings write them."""
        match = _UPID.fullmatch(upid)
        assert match is not None, upid
        return " ".join(self._read_text(part) for part in match.groups()).replace("!rig", "!<token>")

    def read(self, value: Any) -> Any:
        """Translate an answer to the placeholders of the recordings."""
        if isinstance(value, str):
            return self._read_text(value)
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._ids.get(value, value)
        if isinstance(value, list):
            return [self.read(item) for item in value]
        if isinstance(value, dict):
            return {self._read_text(key): self.read(inner) for key, inner in value.items()}
        return value

    def _read_text(self, text: str) -> str:
        match = _UPID.fullmatch(text)
        if match is not None:
            return f"<UPID {self.upid(text)}>"
        text = _UPID.sub(lambda match: f"<UPID {self.upid(match[0])}>", text)
        for pattern, placeholder in _PATTERNS:
            text = pattern.sub(placeholder, text)
        for placeholder in ("<template>", "<iso>"):
            text = text.replace(self._spelled[placeholder], placeholder)
        text = text.replace(self._template_file, "<template-file>")
        for placeholder in ("<st2>", "<btrfs>", "<st>", "<bridge>", "<node>"):
            text = re.sub(rf"(?<![\w-]){re.escape(self._spelled[placeholder])}(?![\w])", placeholder, text)
        text = text.replace("root@pam!rig", "root@pam!<token>")
        if text == "rig":
            return "<token>"
        return re.sub(r"(?<!\d)(\d{5})(?!\d)", lambda match: self._ids.get(int(match[1]), match[1]), text)


def texts_agree(expected: str, answer: str) -> bool:
    """Whether two messages agree, apart from differences between worlds."""
    return _plain(expected) == _plain(answer)


def logs_agree(expected: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether two task logs have the same lines; the options of a backup job come in no fixed order."""
    return _log_lines(expected) == _log_lines(answer)


def _log_lines(lines: Sequence[str]) -> list[str]:
    return [_log_line(line) for line in lines if line not in _BUSY]


def _log_line(line: str) -> str:
    line = _plain(line)
    if "starting new backup job: " in line:
        command, *options = line.split(" --")
        return " --".join([command, *sorted(options)])
    for pattern, placeholder in _MEASURED:
        line = pattern.sub(placeholder, line)
    return line


def errors_agree(expected: Mapping[str, str], answer: Mapping[str, str]) -> bool:
    """Whether two errors agree; their lines come in no fixed order."""
    if expected.keys() != answer.keys():
        return False
    return all(text in _ANYTHING or _parts(text) == _parts(answer[name]) for name, text in expected.items())


def _parts(text: str) -> list[str]:
    return sorted(part.strip() for part in re.split(r"[,'\n]", _plain(text, keep_lines=True)) if part.strip())


def _plain(text: str, *, keep_lines: bool = False) -> str:
    text = text.replace("<time>:<time>", "<MAC>").strip()
    return text if keep_lines else re.sub(r"\s+", " ", text)


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return {dict: "object", list: "list", type(None): "null"}.get(type(value), "string")


def shapes_differ(expected: Any, data: Any, values: Any, *, narrow: bool) -> str:
    """Differences in keys and types; recorded lists only have what the scenario created."""
    if isinstance(data, list) and isinstance(values, list) and all(isinstance(row, dict) for row in values):
        data = data if narrow else own_rows(values, data)
    return "; ".join(_differ(expected, data, "data"))


def own_rows(values: list[Any], rows: list[Any]) -> list[Any]:
    """The rows of a list that are in the recording, by name."""
    identity = next((key for key in _IDENTITIES if values and key in values[0]), None)
    if identity is None:
        return [row for row in rows if any(not _values_differ(value, row, "") for value in values)]
    names = {json.dumps(value.get(identity)) for value in values}
    return [row for row in rows if json.dumps(row.get(identity)) in names]


def _differ(expected: Any, data: Any, path: str) -> list[str]:
    if isinstance(expected, dict):
        return _objects_differ(expected, data, path)
    if isinstance(expected, list):
        return _lists_differ(expected, data, path)
    if expected == "UPID":
        return [] if isinstance(data, str) and data.startswith("<UPID ") else [f"{path}: UPID -> {_render(data)}"]
    own = kind_of(data)
    if expected != own and not (expected == "number" and isinstance(data, str) and data.startswith("<id")):
        return [f"{path}: {expected} -> {own}"]
    return []


def _objects_differ(expected: dict[str, Any], data: Any, path: str) -> list[str]:
    if not isinstance(data, dict):
        return [f"{path}: object -> {_render(data)}"]
    differing = [f"{path}.{key}: missing" for key in sorted(expected.keys() - data.keys())]
    differing += [f"{path}.{key}: not in PVE's answer" for key in sorted(data.keys() - expected.keys())]
    for key in sorted(expected.keys() & data.keys()):
        differing += _differ(expected[key], data[key], f"{path}.{key}")
    return differing


def _lists_differ(expected: list[Any], data: Any, path: str) -> list[str]:
    if not isinstance(data, list):
        return [f"{path}: list -> {_render(data)}"]
    if expected == ["empty"]:
        return [] if not data else [f"{path}: empty -> {_render(data)}"]
    if not data:
        return [f"{path}: list -> empty"]
    if _are_rows(expected) and all(isinstance(row, dict) for row in data):
        return _rows_differ(expected[0], data, path)
    best = (min((_differ(row, item, f"{path}.[]") for row in expected), key=len) for item in data)
    return [differences[0] for differences in best if differences][:3]


def _are_rows(expected: list[Any]) -> bool:
    return isinstance(expected[0], dict) and all(
        isinstance(inner, dict) and inner.keys() == {"is", "always"} for inner in expected[0].values()
    )


def _rows_differ(expected: dict[str, Any], rows: list[dict[str, Any]], path: str) -> list[str]:
    differing = []
    for key in sorted(expected.keys() | {key for row in rows for key in row}):
        having = [row[key] for row in rows if key in row]
        if key not in expected:
            differing.append(f"{path}.[].{key}: not in PVE's answer")
        elif not having:
            differing.append(f"{path}.[].{key}: missing")
        elif expected[key]["always"] != (len(having) == len(rows)):
            differing.append(f"{path}.[].{key}: {'always' if expected[key]['always'] else 'not always'} there")
        else:
            kinds = _alternatives(expected[key]["is"])
            for value in having:
                differences = min((_differ(kind, value, f"{path}.[].{key}") for kind in kinds), key=len)
                differing += [difference for difference in differences if difference not in differing]
    return differing


def _alternatives(kinds: Any) -> list[Any]:
    if isinstance(kinds, list) and len(kinds) > 1:
        return kinds
    if isinstance(kinds, list) and kinds and isinstance(kinds[0], list):
        return kinds
    return [kinds]


def values_differ(expected: Any, data: Any, part: str | None, *, narrow: bool) -> str:
    """Differences from the recorded values; `part` names the recorded part of the data, if only one was.

    A narrow request covers only objects of the scenario, so there must be no further rows.
    """
    if isinstance(expected, bool):  # presence of a key, which the shape covers as well
        return ""
    if isinstance(data, dict) and isinstance(data.get(part), dict | list):
        data = data[part]
        return "" if _leaves(expected) <= _leaves(data) else f"without {sorted(_leaves(expected) - _leaves(data))}"
    if isinstance(expected, list) and isinstance(data, list) and all(isinstance(row, dict) for row in expected):
        return _lists_of_values_differ(expected, data if narrow else own_rows(expected, data))
    differences = _values_differ(expected, data, "")
    if differences and _is_projected(expected, data):
        return "" if _leaves(expected) <= _leaves(data) else f"without {sorted(_leaves(expected) - _leaves(data))}"
    return differences


def _is_projected(expected: Any, data: Any) -> bool:
    """Whether the recording has a projection of the data, such as the keys of an object."""
    return kind_of(expected) != kind_of(data) or isinstance(expected, list)


def _lists_of_values_differ(expected: list[dict[str, Any]], rows: list[Any]) -> str:
    left, missing = list(rows), []
    for value in expected:
        match = next((row for row in left if not _values_differ(value, row, "")), None)
        if match is None:
            missing.append(value)
        else:
            left.remove(match)
    if not missing and not left:
        return ""
    differences = []
    for value in missing:
        identity = next((key for key in _IDENTITIES if key in value), None)
        near = next((row for row in left if identity and row.get(identity) == value[identity]), None)
        if near is None or identity is None:
            differences.append(f"without {json.dumps(value, ensure_ascii=False)}")
        else:
            left.remove(near)
            differences.append(f"{value.get(identity)}: {_values_differ(value, near, '')}")
    differences += [f"with {json.dumps(row, ensure_ascii=False)}" for row in left]
    return "; ".join(differences)


def _values_differ(expected: Any, data: Any, path: str) -> str:
    if expected in _ANYTHING if isinstance(expected, str) else False:
        return "" if data is not None else f"{path}: missing"
    if isinstance(expected, dict) and isinstance(data, dict):
        differences = (_values_differ(value, data.get(key), f"{path}.{key}") for key, value in expected.items())
        return "; ".join(difference for difference in differences if difference)
    if isinstance(expected, list) and isinstance(data, list):
        if len(expected) != len(data):
            return f"{path}: {_render(expected)} -> {_render(data)}"
        left = list(data)
        for value in expected:
            match = next((row for row in left if not _values_differ(value, row, path)), None)
            if match is None:
                return f"{path}: {_render(expected)} -> {_render(data)}"
            left.remove(match)
        return ""
    if isinstance(expected, str) and isinstance(data, str):
        same = expected.replace("<time>:<time>", "<MAC>") == data
        if path.endswith(".content"):  # in no fixed order: PVE keeps the types in a hash
            same = sorted(expected.split(",")) == sorted(data.split(","))
    else:
        same = type(expected) is type(data) and expected == data
    return "" if same else f"{path}: {_render(expected)} -> {_render(data)}"


def _leaves(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {str(key) for key in value} | {leaf for inner in value.values() for leaf in _leaves(inner)}
    if isinstance(value, list):
        return {leaf for inner in value for leaf in _leaves(inner)}
    return {part for part in str(value).split("\n") if part}


def _render(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:300]
