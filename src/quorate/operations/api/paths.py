"""Paths of the raw API as callers write them: accepted only in the one plain spelling.

The risk of a call is read off its path, so PVE must read the same path as Quorate. PVE decodes percent signs
before it splits the path and drops double slashes; a path that needs either is a trick or a mistake.
"""

from __future__ import annotations

import re

from pve_schema.schema import Facts, Match
from quorate.hints import API_SEARCH, Advice
from quorate.problems import BadArgument
from quorate.suggestions import suggest

_PLAIN = re.compile(r"/[A-Za-z0-9._~:@!$,=+\-/]*")
_FORMATS = ("api2", "json", "extjs", "html", "htmljs", "png", "spiceconfig")


def objection(path: str) -> BadArgument | None:
    """What is wrong with the spelling of a path, None if it is plain."""
    for wrong, why, next_step in _FAULTS:
        if wrong(path):
            return BadArgument(f"The path {path[:200]!r} is not accepted", why=why, next_step=next_step)
    return None


_FAULTS = (
    (
        lambda path: any(mark in path for mark in "?#&"),
        "It has a query in it",
        "Give parameters in params",
    ),
    (lambda path: "{" in path, "It has a placeholder in it", "Fill in the real value, such as /nodes/pve1/status"),
    (lambda path: "%" in path, "It has percent-encoded characters", "Write it decoded; nothing in PVE needs encoding"),
    (
        lambda path: path.lstrip("/").partition("/")[0].lower() in _FORMATS,
        "It contains the API prefix",
        "Begin after /api2/json, such as /nodes or /cluster/status",
    ),
    (lambda path: not path.startswith("/"), "It does not begin with a slash", "Write it like /nodes/pve1/status"),
    (lambda path: _PLAIN.fullmatch(path) is None, "It has characters that no PVE path has", "Write it plainly"),
    (lambda path: "//" in path, "It has an empty part", "Write single slashes"),
    (lambda path: len(path) > 1 and path.endswith("/"), "It ends with a slash", "Leave the last slash out"),
    (lambda path: {".", ".."} & set(path.split("/")), "It has . or .. as a part", "Write the actual path"),
)


def find(facts: Facts, method: str, path: str) -> Match:
    """The one endpoint that a plain path leads to, or what is wrong."""
    if problem := objection(path):
        raise problem
    match = facts.find(method, path)
    if match is None:
        raise _unknown(facts, method, path)
    return match


def _unknown(facts: Facts, method: str, path: str) -> BadArgument:
    others = [other for other in ("GET", "POST", "PUT", "DELETE") if facts.find(other, path)]
    if others:
        return BadArgument(f"{path} has no {method} in PVE {facts.version}", next_step=f"It has {', '.join(others)}")
    templates = {endpoint.template for endpoint in facts.endpoints()}
    hint = suggest(path.lower(), templates, Advice("Find the path by words", API_SEARCH), count=3, cutoff=0.5)
    return BadArgument(f"PVE {facts.version} has no {path[:200]}", next_step=hint)
