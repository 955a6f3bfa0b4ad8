"""Scenarios that say nothing about Quorate, each with the reason. One that passes anyway must leave this list.

An entry is a scenario, or `scenario:check` where only one of its checks is meant.
"""

from __future__ import annotations

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"

IN_BOTH_ERAS = {
    "Quorate answers with text and pictures, not with sound or embedded resources": [
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
    ],
    "They want resources of their own to read; Quorate's have other names": [
        "resources-read-text",
        "resources-read-binary",
        "resources-templates-read",
    ],
    "They want prompts of their own; Quorate's have other names": [
        "prompts-get-simple",
        "prompts-get-with-args",
        "prompts-get-embedded-resource",
        "prompts-get-with-image",
    ],
    "It wants a tool with a prescribed schema; Quorate's own schemas are checked by the Inspector": [
        "json-schema-2020-12"
    ],
}
IN_ONE_ERA = {
    HANDSHAKE: {
        "Quorate sends no log messages to clients": ["logging-set-level", "tools-call-with-logging"],
        "Quorate never asks the client's model": ["tools-call-sampling"],
        "Resources of Quorate are read anew, not subscribed to": ["resources-subscribe", "resources-unsubscribe"],
        "Quorate asks for one typed text; forms with defaults and choices are not used": [
            "elicitation-sep1034-defaults",
            "elicitation-sep1330-enums",
        ],
        "Streams are not resumed: a change that outlasts its call is followed with task_wait": ["server-sse-polling"],
    },
    STATELESS: {
        "Quorate never asks the client's model or for its roots": [
            "input-required-result-basic-sampling",
            "input-required-result-basic-list-roots",
            "input-required-result-capability-check",
            "server-stateless:sep-2575-server-rejects-undeclared-capability",
            "server-stateless:sep-2575-missing-capability-http-400",
        ],
        "Quorate asks one question at a time, and once": [
            "input-required-result-multiple-input-requests",
            "input-required-result-multi-round",
        ],
        "No prompt of Quorate asks anything": ["input-required-result-non-tool-request"],
        "No tool of Quorate puts arguments into headers": ["http-custom-header-server-validation"],
    },
}
ON_STDIO = {
    HANDSHAKE: {"There is no Host header on stdio": ["dns-rebinding-protection"]},
    STATELESS: {
        "There are no headers on stdio": ["dns-rebinding-protection", "http-header-validation"],
        "There are no status codes on stdio": [
            f"server-stateless:sep-2575-http-server-{check}"
            for check in (
                "meta-invalid-400",
                "unsupported-version-400",
                "header-mismatch-400",
                "method-not-found-404",
                "method-not-found-404-initialize",
                "method-not-found-404-ping",
                "method-not-found-404-logging-setlevel",
                "method-not-found-404-resources-subscribe",
                "method-not-found-404-resources-unsubscribe",
            )
        ],
    },
}


def as_baseline(era: str, transport: str) -> str:
    """The file that the conformance tool takes: what is listed may fail, and must."""
    groups = [IN_BOTH_ERAS, IN_ONE_ERA[era], *([ON_STDIO[era]] if transport == "stdio" else [])]
    lines = ["server:"]
    for reasons in groups:
        for reason, entries in reasons.items():
            lines += [f"  # {reason}", *(f"  - {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"
