"""Whether a service is healthy, checked on its own host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.homelab.machines import Machine
from quorate.homelab.services.template import Health, Template
from quorate.inside.transport import Command
from quorate.problems import Problem
from quorate.pve.clock import Clock
from quorate.pve.tasks import Report

EVERY = 3.0
WORDS = 200
# A page that requires a login counts as healthy. The certificate is self-signed, so it is not checked.
_ASK = """
if command -v curl > /dev/null 2>&1; then
code=$(curl -sSk --noproxy '*' --max-time 5 --output /dev/null --write-out '%{http_code}' "$1")
case $code in 2??|3??|401|403) exit 0;; esac; echo "it answers $code" >&2; exit 1
elif command -v wget > /dev/null 2>&1; then exec wget -q -T 5 -O /dev/null "$1"
else exit 127; fi
"""


async def find_health_problem(machine: Machine, template: Template, values: Mapping[str, Any]) -> str | None:
    """What is wrong with it; None if it is healthy, or has no health check."""
    health = template.health
    if health is None:
        return None
    try:
        if health.command:
            return await _run_check(machine, machine.as_root(Command(health.command)))
        port = template.port(health.port, values)
        return await (_http(machine, health, port) if health.http else _tcp(machine, port))
    except Problem as problem:
        return str(problem)


async def wait_until_healthy(
    machine: Machine, template: Template, values: Mapping[str, Any], clock: Clock, report: Report | None = None
) -> str | None:
    """Wait until it is healthy; returns what is wrong when the time is up."""
    seconds = template.health.seconds if template.health else 0
    end = clock.monotonic() + seconds
    while wrong := await find_health_problem(machine, template, values):
        if clock.monotonic() >= end:
            return wrong
        if report is not None:
            await report(90.0, 100.0, f"Waiting for {template.title}: {wrong}")
        await clock.sleep(EVERY)
    return None


async def _http(machine: Machine, health: Health, port: int) -> str | None:
    url = f"{'https' if health.tls else 'http'}://127.0.0.1:{port}{health.http}"
    output = await machine.transport.run(Command(("/bin/sh", "-c", _ASK, "sh", url)), seconds=20)
    if output.exit_code == 0:
        return None
    if output.exit_code == 127:  # neither curl nor wget is installed
        return await _tcp(machine, port)
    return f"{url}: {_words(output.stderr) or 'no answer'}"


async def _tcp(machine: Machine, port: int) -> str | None:
    facts = await machine.collect_facts(sections=("ports",), seconds=15)
    if any((one.protocol, one.port) == ("tcp", port) for one in facts.ports or ()):
        return None
    return f"Nothing listens on port {port}"


async def _run_check(machine: Machine, command: Command) -> str | None:
    output = await machine.transport.run(command, seconds=20)
    if output.exit_code == 0:
        return None
    return f"{command.argv[0]} ended with {output.exit_code}: {_words(output.stderr or output.stdout)}"


def _words(said: bytes) -> str:
    return " ".join(said.decode("utf-8", "replace").split())[-WORDS:]
