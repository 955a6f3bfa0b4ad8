"""quorate policy: the rules in force, and what they make of a call."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from quorate.cli.key_values import key_values
from quorate.cli.options import (
    EVERYTHING,
    FAILED,
    OK,
    cluster_options,
    command,
    gate_options,
    on_cluster,
    settings_from,
)
from quorate.cli.reference import found
from quorate.config import Settings, load
from quorate.config.rules import Limits, Policy, Rule


def add(commands: Any) -> None:
    policy = command(commands, "policy", _show, "the rules in force, and what they make of a call")
    policy.epilog = (
        "`quorate policy explain TOOL key=value ...` takes --access, --approval, --toolsets, --cluster, --demo and "
        "--json, as `quorate call` does; `quorate policy explain --help` has them all."
    )
    actions = policy.add_subparsers(title="actions", metavar="ACTION")
    show = command(actions, "show", _show, "access levels, rules and limits (also without an action)")
    for one in (policy, show):
        one.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    explain = command(actions, "explain", _explain, "what would become of a call, and why; nothing is done")
    explain.add_argument("tool", metavar="TOOL", help="its name; `quorate tools` lists them")
    explain.add_argument("arguments", metavar="key=value", nargs="*", help="arguments; repeat a key for a list")
    explain.add_argument("--json", action="store_true", help="print JSON")
    gate_options(explain)
    cluster_options(explain)


# -- show --------------------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    settings = load(file=options.config, tolerate=True)
    _refuse_mistakes(settings)
    print(f"access: {settings.access.value}")
    _print_policy(settings.policy)
    for cluster in settings.clusters:
        level = f"access {cluster.access.value}" if cluster.access else "access as above"
        print(f"\ncluster {cluster.name}: {level}")
        _print_policy(cluster.policy)
    return OK


def _refuse_mistakes(settings: Settings) -> None:
    from quorate.pipeline.governing import refuse_mistakes

    refuse_mistakes([*settings.policy.rules, *(rule for one in settings.clusters for rule in one.policy.rules)])


def _print_policy(policy: Policy) -> None:
    for rule in policy.rules:
        print(f"  {_described(rule)}")
    for limit in _limits(policy.limits):
        print(f"  limit {limit}")


def _described(rule: Rule) -> str:
    return f"{rule.name}: {rule}" + (f" ({rule.because})" if rule.because else "")


def _limits(limits: Limits) -> list[str]:
    given = ((one.name, getattr(limits, one.name)) for one in fields(limits))
    return [f"{name} {value}" for name, value in given if value is not None]


# -- explain -----------------------------------------------------------------------------------------------------------


def _explain(options: argparse.Namespace) -> int:
    arguments = key_values(options.arguments, found(options.tool).schema())
    settings = settings_from(options)
    if settings.toolsets is None:
        settings = replace(settings, toolsets=EVERYTHING)  # the question is about rules, not about what is listed
    return asyncio.run(_explained(settings, options, arguments))


async def _explained(settings: Settings, options: argparse.Namespace, arguments: dict[str, Any]) -> int:
    from quorate.app import build
    from quorate.pipeline.caller import Caller
    from quorate.pipeline.explaining import explain
    from quorate.pve.errors import Problem
    from quorate.surfaces import rendering, terminal

    async with on_cluster(settings, options.demo) as ready:
        app = build(ready)
        try:
            told = await explain(app.pipeline, options.tool, arguments, Caller("quorate policy", "cli"))
        except Problem as problem:
            print(f"quorate: {rendering.problem_text(problem)}")
            return FAILED
        finally:
            await app.close()
    print(json.dumps(told, ensure_ascii=False) if options.json else terminal.readable(told))
    return OK
