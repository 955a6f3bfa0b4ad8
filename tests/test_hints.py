"""Texts refer to tools and arguments by hints, so that each surface can name them; no text spells a name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorate
from quorate.hints import (
    NAMED,
    OMITTED,
    Advice,
    ArgumentHint,
    CalledTool,
    Hint,
    Sentence,
    ToolHint,
    append_advice,
    either,
    resolve,
    see,
    tools,
)
from quorate.operations.registry import operations
from quorate.problems import Conflict
from tests.rigs.advice_texts import literal_texts

SOURCE = Path(quorate.__file__).parent


def without(*arguments: str):
    """The names of a surface that lacks these arguments and every tool."""

    def name(hint: Hint) -> str | None:
        if isinstance(hint, ToolHint):
            return None
        return None if isinstance(hint, ArgumentHint) and hint.name in arguments else str(hint)

    return name


def test_an_argument_is_written_with_its_value_empty_or_by_its_name():
    advice = Advice("Give {stop}, {file} or {size}, and leave {vmid} out", stop=True, file="", size=NAMED, vmid=OMITTED)
    assert str(advice) == "Give stop=true, file= or size, and leave vmid out"


def test_only_placeholders_of_hints_are_replaced():
    assert str(Sentence("The guest {stop} has {notes}", notes=NAMED)) == "The guest {stop} has notes"
    assert str(Sentence("{a} {b}", a="{b}", b=1)) == "a={b} b=1"


def test_calls_follow_their_alternative():
    advice = either(Advice("Shut it down", tools.guest_power(action="shutdown")), Advice("give {stop}", stop=True))
    assert str(advice) == "Shut it down (guest_power action=shutdown), or give stop=true"


def test_an_alternative_is_left_out_where_its_argument_does_not_exist():
    advice = either(Advice("Give {stop}", stop=True), "wait", Advice("use {force}", force=True))
    assert advice.render(without("stop")) == "Wait, or use force=true"
    assert advice.render(without("force")) == "Give stop=true, or wait"
    assert Advice("Give {stop}", tools.guest_delete, stop=True).render(without("stop")) == ""


def test_sentences_are_left_out_one_by_one():
    advice = append_advice(Advice("Give {stop}", stop=True), "Then {force} works", force=True)
    assert str(advice) == "Give stop=true. Then force=true works"
    assert advice.render(without("stop")) == "Then force=true works"
    joined = Advice("Give {stop}", stop=True).then(Advice("{force} works, too", force=True), "; ")
    assert str(joined) == "Give stop=true; force=true works, too"
    assert joined.render(without("force")) == "Give stop=true"


def test_where_to_look_is_left_out_where_no_such_tool_exists():
    facts = {
        "next": see("See what exists", tools.guest_list),
        "warnings": [see("See it", tools.guest_list), "It is full"],
    }
    assert resolve(facts) == {"next": "See what exists: guest_list", "warnings": ["See it: guest_list", "It is full"]}
    assert resolve(facts, without()) == {"warnings": ["It is full"]}


def test_a_statement_keeps_what_cannot_be_named():
    assert (
        Sentence("{action} needs {size}", action="grow", size=NAMED).render(without("size")) == "action=grow needs size"
    )


def test_a_problem_takes_the_names_of_the_surface():
    problem = Conflict(
        Sentence("{tool} failed", tool=CalledTool("guest_delete")), next_step=Advice("Give {stop}", stop=True)
    )
    assert str(problem) == "guest_delete failed. Give stop=true."
    problem.translate(lambda hint: "delete_vm" if isinstance(hint, CalledTool) else None)
    assert str(problem) == "delete_vm failed."


def test_values_are_passed_through_a_change_and_names_are_not():
    advice = Advice("Give {password} to web01", tools.guest_list(name="web01"), password="web01")
    hidden = advice.transform(lambda part: dict.fromkeys(part, "***") if isinstance(part, dict) else part.upper())
    assert str(hidden) == "GIVE password=*** TO WEB01: guest_list name=***"
    kept = Sentence("{name} is {other}", name=ArgumentHint("of", "sdn"), other=NAMED)
    assert str(kept.transform(lambda part: part)) == "of=sdn is other"


# -- the texts of the product ------------------------------------------------------------------------------------------


def test_every_tool_hint_names_an_operation() -> None:
    named = {
        (str(path), node.attr)
        for path in SOURCE.rglob("*.py")
        if _imports_tools(tree := ast.parse(path.read_text()))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tools"
    }
    assert named
    assert not {place for place in named if place[1] not in operations()}


def _imports_tools(tree: ast.Module) -> bool:
    """Whether `tools` is the one of the hints there, and not a local of that name."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "quorate.hints"
        and "tools" in {alias.name for alias in node.names}
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("package", ["pve", "inside", "homelab", "ssh"])
def test_no_layer_below_the_operations_spells_the_name_of_a_tool(package: str) -> None:
    name = re.compile(rf"(?<![\w-])({'|'.join(operations())})(?![\w-])")
    modules = list((SOURCE / package).rglob("*.py"))
    assert modules
    assert not [f"{module}:{line}: {text}" for module in modules for line, text in _texts(module) if name.search(text)]


def _texts(module: Path) -> Iterator[tuple[int, str]]:
    """Every text in a module that is not documentation."""
    tree = ast.parse(module.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def test_no_text_for_a_caller_spells_a_tool_or_an_argument():
    arguments = {name for operation in operations().values() for name in operation.arguments.__struct_fields__}
    several_words = [name for name in arguments if "_" in name]
    spelled = re.compile(
        rf"(?<![\w-])(?:(?:{'|'.join(arguments)})=|(?:{'|'.join([*several_words, *operations()])})(?![\w-]))"
    )
    texts = list(literal_texts())
    assert len(texts) > 1000
    assert not [f"{place}: {text}" for place, text in texts if spelled.search(text)]
