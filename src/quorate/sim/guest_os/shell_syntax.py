"""The syntax of the guests' shell: words, pipelines, lists, redirections, groups. No loops and no conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Operator = Literal[";", "&&", "||"]

_OPERATORS = (
    "&&", "||", "&>>", "&>", ">>", "2>>", "2>&1", "2>", ">&2", "1>&2", ">", "<", "|", ";", "&", "(", ")", "\n",
)  # fmt: skip
_REDIRECTIONS = frozenset({">", ">>", "<", "2>", "2>>", "&>", "&>>"})
_DUPLICATIONS = {"2>&1": ("err", "out"), ">&2": ("out", "err"), "1>&2": ("out", "err")}
_RESERVED = frozenset({"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac"})
_NAME = re.compile(r"[A-Za-z_]\w*")


class SyntaxProblem(Exception):
    """What the shell says about a text that it cannot read."""


@dataclass(slots=True)
class Part:
    """A piece of a word: literal text, a variable, or the output of commands."""

    kind: Literal["text", "variable", "commands"]
    value: str
    quoted: bool


Word = list[Part]


@dataclass(slots=True)
class Redirection:
    operator: str
    target: Word


@dataclass(slots=True)
class Simple:
    """A command with its words, or a group in parentheses or braces."""

    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    group: list[Step] | None = None
    own_shell: bool = False


@dataclass(slots=True)
class Step:
    """A pipeline and what decides whether it runs."""

    condition: Operator
    negated: bool
    commands: list[Simple]


Piece = str | Word


def parse(text: str) -> list[Step]:
    """The steps of a script."""
    return _Parser(_Lexer(text).pieces()).steps(until=None)


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def pieces(self) -> list[Piece]:
        found: list[Piece] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t":
                self._at += 1
            elif char == "#":
                self._at = (self._text + "\n").index("\n", self._at)
            else:
                found.append(self._operator() or self._word())
        return found

    def _operator(self) -> str | None:
        for operator in _OPERATORS:
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                return operator
        return None

    def _word(self) -> Word:
        word: Word = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\n;|&<>()":
                break
            if char == "'":
                word.append(Part("text", self._until("'"), quoted=True))
            elif char == '"':
                self._at += 1
                word += self._double_quoted()
            elif char == "\\":
                word.append(Part("text", self._text[self._at + 1 : self._at + 2].replace("\n", ""), quoted=True))
                self._at += 2
            elif char in "$`":
                word.append(self._expansion(quoted=False))
            else:
                word.append(Part("text", char, quoted=False))
                self._at += 1
        return word

    def _until(self, end: str) -> str:
        """The text up to an end mark; the position is before the opening one."""
        close = self._text.find(end, self._at + 1)
        if close == -1:
            raise SyntaxProblem("Syntax error: Unterminated quoted string")
        inside = self._text[self._at + 1 : close]
        self._at = close + 1
        return inside

    def _double_quoted(self) -> Word:
        parts: Word = [Part("text", "", quoted=True)]
        while True:
            if self._at >= len(self._text):
                raise SyntaxProblem("Syntax error: Unterminated quoted string")
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return parts
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in tuple('"\\$`'):
                parts.append(Part("text", self._text[self._at + 1], quoted=True))
                self._at += 2
            elif char in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                parts.append(Part("text", char, quoted=True))
                self._at += 1

    def _expansion(self, *, quoted: bool) -> Part:
        if self._text[self._at] == "`":
            return Part("commands", self._until("`"), quoted)
        rest = self._text[self._at + 1 :]
        if rest.startswith("("):
            return Part("commands", self._parenthesised(), quoted)
        if rest.startswith("{"):
            self._at += 1
            return Part("variable", self._until("}"), quoted)
        name = _NAME.match(rest)
        if name is not None:
            self._at += 1 + len(name[0])
            return Part("variable", name[0], quoted)
        if rest[:1] and rest[0] in "?$#0123456789@*":
            self._at += 2
            return Part("variable", rest[0], quoted)
        self._at += 1
        return Part("text", "$", quoted)

    def _parenthesised(self) -> str:
        depth, start = 0, self._at + 2
        for position in range(self._at + 1, len(self._text)):
            depth += {"(": 1, ")": -1}.get(self._text[position], 0)
            if depth == 0:
                self._at = position + 1
                return self._text[start:position]
        raise SyntaxProblem("Syntax error: end of file unexpected")


class _Parser:
    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces
        self._at = 0

    def steps(self, until: str | None) -> list[Step]:
        found: list[Step] = []
        condition: Operator = ";"
        while True:
            while self._peek() == "\n" or (self._peek() == ";" and found):
                self._at += 1
            if self._ends(until):
                return found
            found.append(self._pipeline(condition))
            piece = self._peek()
            if piece in ("&&", "||"):
                condition = "&&" if piece == "&&" else "||"
                self._at += 1
            elif piece in (";", "\n", "&"):
                condition = ";"
                self._at += 1
            elif not self._ends(until, consume=False):
                raise SyntaxProblem(f'Syntax error: "{_shown(piece)}" unexpected')

    def _ends(self, until: str | None, *, consume: bool = True) -> bool:
        piece = self._peek()
        if piece is None:
            if until is not None:
                raise SyntaxProblem(f'Syntax error: end of file unexpected (expecting "{until}")')
            return True
        if until is not None and _shown(piece) == until:
            self._at += 1 if consume else 0
            return True
        return False

    def _peek(self) -> Piece | None:
        return self._pieces[self._at] if self._at < len(self._pieces) else None

    def _pipeline(self, condition: Operator) -> Step:
        negated = _shown(self._peek()) == "!"
        self._at += 1 if negated else 0
        commands = [self._simple()]
        while self._peek() == "|":
            self._at += 1
            commands.append(self._simple())
        return Step(condition, negated, commands)

    def _simple(self) -> Simple:
        command = Simple()
        piece = self._peek()
        if piece == "(" or _shown(piece) == "{":
            self._at += 1
            command.group = self.steps(until=")" if piece == "(" else "}")
            command.own_shell = piece == "("
        elif not isinstance(piece, list) and piece not in _REDIRECTIONS:
            raise SyntaxProblem(f'Syntax error: "{_shown(piece) or "end of file"}" unexpected')
        elif _shown(piece) in _RESERVED:
            raise SyntaxProblem(f'Syntax error: "{_shown(piece)}" unexpected')
        while True:
            piece = self._peek()
            if isinstance(piece, list) and command.group is None:
                command.words.append(piece)
            elif isinstance(piece, list):
                raise SyntaxProblem(f'Syntax error: "{_shown(piece)}" unexpected')
            elif piece in _REDIRECTIONS:
                self._at += 1
                target = self._peek()
                if not isinstance(target, list):
                    raise SyntaxProblem(f'Syntax error: "{_shown(target) or "end of file"}" unexpected')
                command.redirections.append(Redirection(str(piece), target))
            elif piece in _DUPLICATIONS:
                command.redirections.append(Redirection(str(piece), []))
            else:
                return command
            self._at += 1


def duplication(operator: str) -> tuple[str, str] | None:
    """Which stream becomes which other, for `2>&1` and its like."""
    return _DUPLICATIONS.get(operator)


def _shown(piece: Piece | None) -> str:
    if piece is None:
        return ""
    if isinstance(piece, str):
        return "newline" if piece == "\n" else piece
    return "".join(part.value for part in piece) if all(not part.quoted for part in piece) else ""
