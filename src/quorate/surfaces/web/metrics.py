"""What happens here in numbers, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Labels = Mapping[str, str]


@dataclass(slots=True)
class Durations:
    """How many calls took up to so many seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))
    total: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.total += seconds
        self.count += 1
        for number, bound in enumerate(BOUNDS):
            if seconds <= bound:
                self.buckets[number] += 1


@dataclass(slots=True)
class Metrics:
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By tool and outcome."""
    durations: dict[str, Durations] = field(default_factory=dict)
    running: int = 0
    refused_credentials: Counter[str] = field(default_factory=Counter)
    rate_limited: Counter[str] = field(default_factory=Counter)

    def called(self, tool: str, outcome: str, seconds: float) -> None:
        self.calls[tool, outcome] += 1
        self.durations.setdefault(tool, Durations()).add(seconds)

    def text(self, *, pve: Mapping[str, Counter[tuple[str, str]]], pending: int | None) -> str:
        """`pve` is what was asked of each cluster, by method and answer; `pending` None where it cannot be read."""
        lines = [
            *_family("quorate_calls_total", "counter", "Tool calls by tool and outcome.", self._calls()),
            *self._histogram(),
            *_family("quorate_calls_running", "gauge", "Tool calls that run now.", [({}, self.running)]),
            *_family(
                "quorate_auth_failures_total",
                "counter",
                "Requests without valid credentials, by reason.",
                [({"reason": reason}, count) for reason, count in sorted(self.refused_credentials.items())],
            ),
            *_family(
                "quorate_rate_limited_total",
                "counter",
                "Requests refused because there were too many, by what is counted.",
                [({"by": by}, count) for by, count in sorted(self.rate_limited.items())],
            ),
            *_family("quorate_pve_requests_total", "counter", "Requests to Proxmox VE.", _pve(pve)),
        ]
        lines += _family(
            "quorate_event_loop_tasks",
            "gauge",
            "Asyncio tasks inside the server; at rest their number stays the same.",
            [({}, len(asyncio.all_tasks()))],
        )
        if pending is not None:
            lines += _family(
                "quorate_approvals_pending", "gauge", "Requests that wait for an operator.", [({}, pending)]
            )
        return "\n".join(lines) + "\n"

    def _calls(self) -> list[tuple[Labels, float]]:
        return [({"tool": tool, "outcome": outcome}, n) for (tool, outcome), n in sorted(self.calls.items())]

    def _histogram(self) -> Iterator[str]:
        name = "quorate_call_seconds"
        yield from _head(name, "histogram", "How long tool calls take.")
        for tool, durations in sorted(self.durations.items()):
            for bound, count in zip((*BOUNDS, "+Inf"), (*durations.buckets, durations.count), strict=True):
                yield _sample(f"{name}_bucket", {"tool": tool, "le": str(bound)}, count)
            yield _sample(f"{name}_sum", {"tool": tool}, durations.total)
            yield _sample(f"{name}_count", {"tool": tool}, durations.count)


def _pve(pve: Mapping[str, Counter[tuple[str, str]]]) -> list[tuple[Labels, float]]:
    return [
        ({"cluster": cluster, "method": method, "answer": answer}, count)
        for cluster, counted in sorted(pve.items())
        for (method, answer), count in sorted(counted.items())
    ]


def _family(name: str, kind: str, says: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield from _head(name, kind, says)
    for labels, value in samples:
        yield _sample(name, labels, value)


def _head(name: str, kind: str, says: str) -> Iterator[str]:
    yield f"# HELP {name} {says}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{'{' + inside + '}' if inside else ''} {round(value, 6):g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
