"""Find operations by plain words, and suggest one for the name of a tool that does not exist."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from quorate.operations.registry import Operation, Risk
from quorate.suggestions import MAX_TOOLS, suggest_tool
from quorate.surfaces.synonyms import ASKING, EMPTY, PHRASES, SAME

NAME, SEARCH_WORDS, SUMMARY, PARAMETER, ABOUT_PARAMETER = 1.0, 1.0, 0.4, 0.5, 0.15
"""The weight of a word by its place."""
ELSEWHERE = 0.5
"""The additional weight if it occurs in other places as well."""
LIKE = 0.8
"""The weight of a synonym."""
READING = 1.5
"""How much more likely a question means an operation that reads."""
_UNHELPFUL = frozenset({"cluster", "dry_run", "limit", "offset", "safely", "wait", "way"})
"""Parameters that many operations have."""

_ASKING, _EMPTY = frozenset(ASKING.split()), frozenset(EMPTY.split())
_NAME = re.compile(r"[a-z]+(?:_[a-z]+)+")
_WORD = re.compile(r"[a-z][a-z0-9]*|[0-9]+[a-z][a-z0-9]*|403")


class Finder:
    """A ranked index of what operations say about themselves and what people call them, built once."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = list(operations)
        self._terms = [_terms(operation) for operation in self._operations]
        having = Counter(term for terms in self._terms for term in terms)
        self._rarity = {term: _rarity(count, len(self._terms)) for term, count in having.items()}

    def find(self, words: str) -> list[Operation]:
        """All that fit, best first; before them those that are called by their names."""
        wanted = list(dict.fromkeys(words_of(words)))
        called = frozenset(_NAME.findall(words.lower()))
        asking = is_question(words)
        scored = []
        for operation, terms in zip(self._operations, self._terms, strict=True):
            score = sum(self._hit(terms, word) for word in wanted)
            likely = READING if asking and reads(operation) else 1.0
            scored.append((math.inf if operation.name in called else score * likely, operation))
        scored.sort(key=lambda pair: (-pair[0], pair[1].name))
        return [operation for score, operation in scored if score > 0]

    def _hit(self, terms: dict[str, float], word: str) -> float:
        """The score of a word: the weight of the word itself, or of a synonym."""
        others = [LIKE * self._weight(terms, group) for group in _GROUPS.get(word, ())]
        return max(self._weight(terms, word), *others, 0.0)

    def _weight(self, terms: dict[str, float], term: str) -> float:
        return terms[term] * self._rarity[term] if term in terms else 0.0


def reads(operation: Operation) -> bool:
    return operation.least_risk in (Risk.READ, Risk.LOOK_INSIDE)


def is_question(words: str) -> bool:
    first = _WORD.search(words.lower())
    return words.rstrip().endswith("?") or (first is not None and first[0] in _ASKING)


def words_of(text: str) -> Iterator[str]:
    """The significant words of a text, each in its shortest form."""
    text = text.lower().replace("'", "").replace("\N{RIGHT SINGLE QUOTATION MARK}", "")
    text = _PHRASE.sub(lambda found: _MEANT[found.lastindex or 0], text)
    return (stem(word) for word in _WORD.findall(text) if word not in _EMPTY)


def stem(word: str) -> str:
    """`cloning`, `cloned`, `clones` and `clone` as one."""
    if len(word) < 4:
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        stump = word.removesuffix(ending)
        if stump != word and len(stump) > 2 and re.search("[aeiouy]", stump):
            word = stump[:-1] if stump[-1] == stump[-2] and stump[-1] not in "lsz" else stump
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _rarity(count: int, whole: int) -> float:
    """A word that few operations have says more."""
    return math.log(1 + (whole - count + 0.5) / (count + 0.5))


# One pattern with a group for each phrase: a text is gone through once.
_PHRASE = re.compile(rf"(?:\b|(?=/))(?:{'|'.join(f'({phrase})' for phrase in PHRASES)})(?!\w)")
_MEANT = ("", *PHRASES.values())


def _groups() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for group in SAME:
        for word in words_of(group):
            found[word] = (*found.get(word, ()), f"={group}")
    return found


_GROUPS = _groups()


def _terms(operation: Operation) -> dict[str, float]:
    """The words of an operation and the groups they belong to, each with its weight."""
    properties = {name: part for name, part in operation.schema()["properties"].items() if name not in _UNHELPFUL}
    values = (" ".join([name, *map(str, part.get("enum", ()))]) for name, part in properties.items())
    places = (
        (NAME, operation.name),
        (SEARCH_WORDS, operation.search_words),
        (PARAMETER, " ".join(values)),
        (SUMMARY, operation.summary),
        (ABOUT_PARAMETER, " ".join(part.get("description", "") for part in properties.values())),
    )  # the heaviest first
    found: dict[str, float] = {}
    for weight, text in places:
        words = set(words_of(text.replace("_", " ")))
        for term in words.union(*(_GROUPS.get(word, ()) for word in words)):
            found[term] = found[term] + ELSEWHERE * weight if term in found else weight
    return found


def suggest_instead(name: str, among: Iterable[Operation]) -> str:
    """Suggest the tools that the name may mean; empty if none is close."""
    tools = {one.name: one for one in among}
    return suggest_tool(name, tools, "") or _related_tools(name, tools.values())


def _related_tools(name: str, among: Iterable[Operation]) -> str:
    """Tools that match every word of the name, first those that have them all in their own names.

    None that destroys unless its verb is among the words: a guess is taken as advice.
    """
    text = " ".join(re.split(r"[^A-Za-z0-9]+", name))
    wanted = set(words_of(text))
    near = [one for one in Finder(among).find(text) if _matches(one, wanted) and _may_be_guessed(one, wanted)]
    near.sort(key=lambda one: not wanted <= set(_name_words(one)))
    return f"Related tools: {', '.join(one.name for one in near[:MAX_TOOLS])}." if near else ""


def _matches(operation: Operation, wanted: Iterable[str]) -> bool:
    """Whether each word, or a synonym, is in the name or among the search words."""
    words = {*_name_words(operation), *words_of(operation.search_words)}
    groups = {group for word in words for group in _GROUPS.get(word, ())}
    return all(word in words or not groups.isdisjoint(_GROUPS.get(word, ())) for word in wanted)


def _may_be_guessed(operation: Operation, wanted: Iterable[str]) -> bool:
    return operation.least_risk is not Risk.DESTROY or _name_words(operation)[-1] in wanted


def _name_words(operation: Operation) -> list[str]:
    return [stem(word) for word in operation.name.split("_")]


def find_in_other_servers(name: str) -> tuple[list[str], str]:
    """The surfaces that have a tool of this name, and what replaces it in the native one."""
    from quorate.surfaces.compat import SYSTEMS, system

    tools = {one: tool for one in SYSTEMS if (tool := system(one).tools.get(name))}
    return list(tools), " or ".join(dict.fromkeys(tool.native for tool in tools.values()))
