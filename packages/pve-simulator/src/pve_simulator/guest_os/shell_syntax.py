"""The parser of the guests' shell: words, pipelines, lists, redirections, groups, loops, conditions, functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

Operator = Literal[";", "&&", "||"]

_OPERATORS = (
    "&&", "||", ">>", "2>&1", "2>", ">&2", ">", "<", "|", ";;", ";", "&", "(", ")", "\n",
)  # fmt: skip
_REDIRECTIONS = frozenset({">", ">>", "<", "2>"})
_DUPLICATIONS = {"2>&1": ("err", "out"), ">&2": ("out", "err")}
_RESERVED = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}"})
_NAME = re.compile(r"[A-Za-z_]\w*")


class SyntaxProblem(Exception):
    """A syntax error, in the shell's words."""


@dataclass(slots=True)
class Part:
    """A piece of a word: literal text, a variable, arithmetic, or command substitution."""

    kind: Literal["text", "variable", "arithmetic", "commands"]
    value: str
    quoted: bool


Word = list[Part]


@dataclass(slots=True)
class Redirection:
    operator: str
    target: Word


@dataclass(slots=True)
class If:
    branches: list[tuple[list[Step], list[Step]]]
    otherwise: list[Step]


@dataclass(slots=True)
class While:
    condition: list[Step]
    body: list[Step]


@dataclass(slots=True)
class For:
    name: str
    words: list[Word] | None
    """None iterates over the positional parameters."""
    body: list[Step]


@dataclass(slots=True)
class Case:
    word: Word
    branches: list[tuple[list[Word], list[Step]]]


@dataclass(slots=True)
class Define:
    name: str
    body: Simple


@dataclass(slots=True)
class Simple:
    """A simple command, a group in parentheses or braces, or a compound command."""

    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    group: list[Step] | None = None
    own_shell: bool = False
    compound: If | While | For | Case | Define | None = None


@dataclass(slots=True)
class Step:
    """A pipeline and the operator before it."""

    condition: Operator
    negated: bool
    commands: list[Simple]
    background: bool = False


Piece = str | Word


@lru_cache(256)  # loops substitute the same commands repeatedly, and the result is not modified
def parse(text: str) -> list[Step]:
    """Parse a script."""
    return _Parser(_Lexer(text).pieces()).steps()


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def pieces(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t":
                self._at += 1
            elif char == "#":
                self._at = (self._text + "\n").index("\n", self._at)
            else:
                pieces.append(self._operator() or self._word())
        return pieces

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
                word += self._read_double_quotes()
            elif char == "\\":
                word.append(Part("text", self._text[self._at + 1 : self._at + 2].replace("\n", ""), quoted=True))
                self._at += 2
            elif char == "$":
                word.append(self._expansion(quoted=False))
            else:
                word.append(Part("text", char, quoted=False))
                self._at += 1
        return word

    def _until(self, end: str) -> str:
        """Read a quoted text, from the opening to the closing mark."""
        close = self._text.find(end, self._at + 1)
        if close == -1:
            raise SyntaxProblem("Syntax error: Unterminated quoted string")
        inside = self._text[self._at + 1 : close]
        self._at = close + 1
        return inside

    def _read_double_quotes(self) -> Word:
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
            elif char == "$":
                parts.append(self._expansion(quoted=True))
            else:
                parts.append(Part("text", char, quoted=True))
                self._at += 1

    def _expansion(self, *, quoted: bool) -> Part:
        rest = self._text[self._at + 1 :]
        if rest.startswith("(("):
            return Part("arithmetic", self._read_parentheses()[1:-1], quoted)
        if rest.startswith("("):
            return Part("commands", self._read_parentheses(), quoted)
        if rest.startswith("{"):
            self._at += 1
            return Part("variable", self._until("}"), quoted)
        name = _NAME.match(rest)
        if name is not None:
            self._at += 1 + len(name[0])
            return Part("variable", name[0], quoted)
        if rest[:1] and rest[0] in "?$!#0123456789@":
            self._at += 2
            return Part("variable", rest[0], quoted)
        self._at += 1
        return Part("text", "$", quoted)

    def _read_parentheses(self) -> str:
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

    def steps(self, *ends: str) -> list[Step]:
        """Parse up to one of these words, which is not consumed, or up to the end."""
        steps: list[Step] = []
        condition: Operator = ";"
        while True:
            while self._peek() == "\n" or (self._peek() == ";" and steps):
                self._at += 1
            if self._at_end(ends):
                return steps
            steps.append(self._pipeline(condition))
            piece = self._peek()
            if piece in ("&&", "||"):
                condition = "&&" if piece == "&&" else "||"
                self._at += 1
            elif piece in (";", "\n", "&"):
                steps[-1].background = piece == "&"
                condition = ";"
                self._at += 1
            elif not self._at_end(ends):
                raise self._unexpected_token()

    def _at_end(self, ends: tuple[str, ...]) -> bool:
        piece = self._peek()
        if piece is None and ends:
            raise SyntaxProblem(f'Syntax error: end of file unexpected (expecting "{ends[-1]}")')
        return piece is None or _text(piece) in ends

    def _peek(self) -> Piece | None:
        return self._pieces[self._at] if self._at < len(self._pieces) else None

    def _unexpected_token(self) -> SyntaxProblem:
        return SyntaxProblem(f'Syntax error: "{_text(self._peek()) or "end of file"}" unexpected')

    def _take(self, word: str) -> None:
        if _text(self._peek()) != word:
            raise SyntaxProblem(f'Syntax error: {_text(self._peek()) or "end of file"} unexpected (expecting "{word}")')
        self._at += 1

    def _accept(self, word: str) -> bool:
        if _text(self._peek()) != word:
            return False
        self._at += 1
        return True

    def _word(self) -> Word:
        piece = self._peek()
        if not isinstance(piece, list):
            raise self._unexpected_token()
        self._at += 1
        return piece

    def _pipeline(self, condition: Operator) -> Step:
        negated = self._accept("!")
        commands = [self._simple()]
        while self._accept("|"):
            commands.append(self._simple())
        return Step(condition, negated, commands)

    def _simple(self) -> Simple:
        command = Simple()
        piece = self._peek()
        name = _text(piece)
        if piece == "(" or name == "{":
            self._at += 1
            command.group = self.steps(")" if piece == "(" else "}")
            self._at += 1
            command.own_shell = piece == "("
        elif isinstance(piece, list) and name in ("if", "while", "for", "case"):
            self._at += 1
            command.compound = self._compound(name)
        elif isinstance(piece, list) and self._pieces[self._at + 1 : self._at + 3] == ["(", ")"]:
            self._at += 3
            command.compound = Define(name, self._simple())
            return command
        elif (not isinstance(piece, list) and piece not in _REDIRECTIONS) or name in _RESERVED:
            raise self._unexpected_token()
        self._rest(command)
        return command

    def _rest(self, command: Simple) -> None:
        """The words and redirections of a command."""
        plain = command.group is None and command.compound is None
        while True:
            piece = self._peek()
            if isinstance(piece, list):
                if not plain:
                    if _text(piece) in _RESERVED:
                        return
                    raise self._unexpected_token()
                command.words.append(piece)
            elif piece in _REDIRECTIONS:
                self._at += 1
                target = self._word()
                command.redirections.append(Redirection(str(piece), target))
                continue
            elif piece in _DUPLICATIONS:
                command.redirections.append(Redirection(str(piece), []))
            else:
                return
            self._at += 1

    def _compound(self, name: str) -> If | While | For | Case:
        if name == "if":
            return self._if()
        if name == "for":
            return self._for()
        if name == "case":
            return self._case()
        condition = self.steps("do")
        return While(condition, self._body())

    def _body(self) -> list[Step]:
        self._take("do")
        body = self.steps("done")
        self._at += 1
        return body

    def _if(self) -> If:
        branches, otherwise = [], []
        while True:
            condition = self.steps("then")
            self._at += 1
            branches.append((condition, self.steps("elif", "else", "fi")))
            if self._accept("elif"):
                continue
            if self._accept("else"):
                otherwise = self.steps("fi")
            self._take("fi")
            return If(branches, otherwise)

    def _for(self) -> For:
        name = _text(self._word())
        words: list[Word] | None = None
        if self._accept("in"):
            words = []
            while isinstance(self._peek(), list):
                words.append(self._word())
        while self._peek() in (";", "\n"):
            self._at += 1
        return For(name, words, self._body())

    def _case(self) -> Case:
        word = self._word()
        self._take("in")
        branches: list[tuple[list[Word], list[Step]]] = []
        while True:
            while self._peek() == "\n":
                self._at += 1
            if self._accept("esac"):
                return Case(word, branches)
            self._accept("(")
            patterns = [self._word()]
            while self._accept("|"):
                patterns.append(self._word())
            self._take(")")
            branches.append((patterns, self.steps(";;", "esac")))
            self._accept(";;")


def duplication(operator: str) -> tuple[str, str] | None:
    """The streams of a duplication such as `2>&1`: which becomes which."""
    return _DUPLICATIONS.get(operator)


def _text(piece: Piece | None) -> str:
    if piece is None:
        return ""
    if isinstance(piece, str):
        return "newline" if piece == "\n" else piece
    return "".join(part.value for part in piece) if all(not part.quoted for part in piece) else ""
