"""Text that refers to tools and arguments, so that each surface can name them in its own words.

    raise NotFound(f"No guest {name!r}", next_step=see("See what exists", tools.guest_list))
    raise Conflict(
        f"{guest} runs",
        next_step=either(
            Advice("Shut it down first", tools.guest_power(guest=105, action="shutdown")),
            Advice("give {stop} to cut its power", stop=True),
        ),
    )

`str()` gives the native wording: "Shut it down first (guest_power guest=105 action=shutdown), or give stop=true to cut
its power". A surface leaves out the alternatives whose arguments it does not have. Layers below the operations
do the same.
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
        """The same tool with arguments: `tools.guest_power(guest=105, action="start")`."""
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
        return self._placeholders.sub(lambda match: shown[match[1]], self.text)

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
        texts = [text for part in self.parts if (text := part.render(name))]
        line_break = "\n" if texts and "\n- " in texts[0] else " "  # what follows a list starts a line of its own
        return line_break.join(map(end_sentence, texts))

    def transform(self, change: Callable[[Any], Any]) -> Paragraph:
        return Paragraph(tuple(part.transform(change) for part in self.parts))


def end_sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":", "`")) else text + "."


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One thing to do, and the tools that help."""

    sentence: Sentence
    tools: tuple[ToolHint, ...] = ()
    only_with_tools: bool = False
    """Left out where none of the tools exist; see `see`."""

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
        return tuple(tool for suggestion in self.suggestions for tool in suggestion.tools)

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        return tuple(suggestion for choice in self.choices for suggestion in choice.alternatives)

    def render(self, name: Naming) -> str:
        """The alternatives that are possible there, each with its calls; empty if nothing is."""
        text, calls = "", ""
        for choice in self.choices:
            possible = [suggestion for suggestion in choice.alternatives if suggestion.is_possible(name)]
            for number, suggestion in enumerate(possible):
                if calls:  # those of the last suggestion follow a colon
                    text, calls = f"{text} ({calls})", ""
                separator = choice.between(number, len(possible)) if number or text else ""
                if text.endswith("?") and not number:
                    separator = " "
                is_start = suggestion is not self.suggestions[0] and separator in ("", " ", ". ")
                sentence = suggestion.sentence.capitalize() if is_start else suggestion.sentence
                text += separator + sentence.render(name)
                calls = ", ".join(dict.fromkeys(shown for tool in suggestion.tools if (shown := name(tool))))
        return ": ".join(part for part in (text, calls) if part)

    def transform(self, change: Callable[[Any], Any]) -> Advice:
        return self._map(
            lambda suggestion: replace(
                suggestion,
                sentence=suggestion.sentence.transform(change),
                tools=tuple(ToolHint(tool.tool, change(dict(tool.arguments))) for tool in suggestion.tools),
            )
        )

    def with_arguments(self, **arguments: Any) -> Advice:
        """The same advice with more arguments for each of its tools."""
        return self._map(
            lambda suggestion: replace(suggestion, tools=tuple(tool(**arguments) for tool in suggestion.tools))
        )

    def then(self, other: Advice, separator: str = ". ") -> Advice:
        """This advice, followed by another."""
        first, *rest = other.choices
        return Advice.of(*self.choices, replace(first, separator=separator), *rest)

    def _map(self, change: Callable[[Suggestion], Suggestion]) -> Advice:
        return Advice.of(
            *(replace(choice, alternatives=tuple(map(change, choice.alternatives))) for choice in self.choices),
        )


def see(text: str, /, *tools: ToolHint, **arguments: Any) -> Advice:
    """Where to look: `see("List the nodes", tools.node_list)`. A surface without these tools leaves it out."""
    suggestion = Suggestion(Sentence(text, **arguments), tools, only_with_tools=bool(tools))
    return Advice.of(Choice((suggestion,)))


def either(*alternatives: Advice | str, conjunction: str = ", or ") -> Advice:
    """Advice of which one part is enough: `either("Choose another name", Advice("give {force}", force=True))`."""
    first, *others = (suggestion for each in alternatives for suggestion in to_advice(each).suggestions)
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
        return value if all(isinstance(item, _PLAIN) for item in value) else [resolve(item, name) for item in value]
    if isinstance(value, Mapping):
        resolved = {key: _resolve_entry(item, name) for key, item in value.items()}
        return {key: item for key, item in resolved.items() if item is not _NOTHING}
    return value


_NOTHING: Final = object()


def _resolve_entry(value: Any, name: Naming) -> Any:
    if isinstance(value, Wording):
        return value.render(name) or _NOTHING
    if isinstance(value, (list, tuple)) and any(isinstance(item, Wording) for item in value):
        return [text for item in value if (text := resolve(item, name))] or _NOTHING
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


class _Tools:
    """Every tool as an attribute: `tools.guest_list`, or `tools.guest_power(guest=105, action="start")`."""

    def __getattr__(self, name: str) -> ToolHint:
        return ToolHint(name)


tools: Final = _Tools()
"""A test checks that each attribute that the product uses is a tool."""
