"""quorate policy: the rules in effect, and how they apply to a call."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import fields
from typing import Any

from quorate.app import build
from quorate.cli.options import (
    FAILED,
    OK,
    actions_of,
    add_command,
    choice_options,
    config_option,
    gate_options,
    reach_all_tools,
    settings_from,
    with_demo_cluster,
)
from quorate.cli.tools import find_native
from quorate.config import Settings, load
from quorate.config.policy import Limits, Policy, Rule
from quorate.pipeline.caller import Caller
from quorate.pipeline.explanation import explain
from quorate.pipeline.sites import refuse_mistakes
from quorate.problems import Problem
from quorate.surfaces import rendering
from quorate.surfaces.arguments import parse_pairs
from quorate.surfaces.rendering import readable


def add(commands: Any) -> None:
    policy = add_command(commands, "policy", _show)
    policy.epilog = (
        "`quorate policy explain TOOL key=value ...` takes --access, --approval, --toolsets, --cluster, --demo and "
        "--json, as `quorate call` does; `quorate policy explain --help` lists them all."
    )
    add_action = actions_of(policy, config_option)
    add_action("show", _show, "show access levels, rules and limits (the default action)")
    explain = add_action("explain", _explain, "show what would happen to a call, and why; nothing is changed")
    explain.add_argument("tool", metavar="TOOL", help="name of the tool; `quorate tools` lists them")
    explain.add_argument("arguments", metavar="key=value", nargs="*", help="arguments; repeat a key for a list")
    explain.add_argument("--json", action="store_true", help="print JSON")
    gate_options(explain)
    choice_options(explain)


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
    refuse_mistakes([*settings.policy.rules, *(rule for cluster in settings.clusters for rule in cluster.policy.rules)])


def _print_policy(policy: Policy) -> None:
    for rule in policy.rules:
        print(f"  {_describe(rule)}")
    for limit in _limits(policy.limits):
        print(f"  limit {limit}")


def _describe(rule: Rule) -> str:
    return f"{rule.name}: {rule}" + (f" ({rule.because})" if rule.because else "")


def _limits(limits: Limits) -> list[str]:
    numbers = ((field.name, getattr(limits, field.name)) for field in fields(limits))
    return [f"{name} {value}" for name, value in numbers if value is not None]


# -- explain -----------------------------------------------------------------------------------------------------------


def _explain(options: argparse.Namespace) -> int:
    arguments = parse_pairs(options.arguments, find_native(options.tool).schema())
    settings = reach_all_tools(settings_from(options))
    return asyncio.run(_print_explanation(settings, options, arguments))


async def _print_explanation(settings: Settings, options: argparse.Namespace, arguments: dict[str, Any]) -> int:
    async with with_demo_cluster(settings, options.demo) as ready:
        app = build(ready)
        try:
            explanation = await explain(app.pipeline, options.tool, arguments, Caller("quorate policy", "cli"))
        except Problem as problem:
            print(f"quorate: {rendering.problem_text(problem)}")
            return FAILED
        finally:
            await app.close()
    print(json.dumps(explanation, ensure_ascii=False) if options.json else readable(explanation))
    return OK
