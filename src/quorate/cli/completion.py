"""quorate completion: candidates for the next word on the command line."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from quorate.cli import name_candidates
from quorate.cli.options import OK, command

if TYPE_CHECKING:
    from quorate.operations.registry import Operation

SAFE = re.compile(r"[\w.@:/,+-]+(=[\w.@:/,+-]*)?", re.ASCII)
"""Names are untrusted and end up on a command line: only characters that no shell interprets are offered."""

BASH = """\
_quorate() {
    local line="${COMP_LINE:0:COMP_POINT}" current
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current="${words[${#words[@]}-1]}"
    local IFS=$'\\n'
    COMPREPLY=($("${words[0]/#\\~/$HOME}" completion words -- "${words[@]:1}" 2>/dev/null))
    if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#*=}")
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _quorate quorate
"""
ZSH = """\
#compdef quorate
_quorate() {
    local line word
    local -a keys shown_keys others shown_others
    for line in "${(@f)$("${words[1]/#\\~/$HOME}" completion described -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        word="${line%%$'\\t'*}"
        printf -v line '%-20s  %s' "$word" "${line#*$'\\t'}"
        case "$word" in
            '') ;;
            *=) keys+=("$word"); shown_keys+=("$line") ;;
            *) others+=("$word"); shown_others+=("$line") ;;
        esac
    done
    if (( $#keys || $#others )); then
        (( $#keys )) && compadd -S '' -l -d shown_keys -- "${(@)keys}"
        (( $#others )) && compadd -l -d shown_others -- "${(@)others}"
    else
        compset -P '*='
        _files
    fi
}
compdef _quorate quorate
"""
FISH = """\
function __quorate_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    type -q $program; or return
    set -l found ($program completion described -- $words[2..-1] 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
        return
    end
    set -l key (string match -r '^[^=]*=' -- $words[-1]; or echo)
    for file in (__fish_complete_path (string replace -r '^[^=]*=' '' -- $words[-1]))
        echo -- $key$file
    end
end
complete -c quorate -f -a '(__quorate_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
FOR_SCRIPTS = ("words", "described")
"""Modes for the scripts: plain words, or words with a tab and a description."""
SUMMARY = 70
NAMED = {"quorate trust": lambda: name_candidates.names("host"), "quorate secrets remove": name_candidates.secret_names}
"""Commands whose first argument is the name of a stored object."""
HOW = """add one of these to the start-up file of your shell:
  bash   eval "$(quorate completion bash)"
  zsh    eval "$(quorate completion zsh)"      (after compinit)
  fish   quorate completion fish | source"""


def add(commands: Any) -> None:
    completion = command(commands, "completion", _completion, "print the completion script for your shell")
    completion.add_argument("shell", metavar="{bash,zsh,fish}", choices=(*SCRIPTS, *FOR_SCRIPTS))
    completion.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    completion.formatter_class = argparse.RawDescriptionHelpFormatter
    completion.epilog = HOW


def _completion(options: argparse.Namespace) -> int:
    if options.shell in SCRIPTS:
        print(SCRIPTS[options.shell], end="")
        return OK
    with contextlib.suppress(Exception):  # errors are of no use to a shell that completes a word
        words = options.words[1:] if options.words[:1] == ["--"] else options.words
        *before, current = words or [""]
        for word, summary in _candidates(before, current).items():
            if word.startswith(current) and SAFE.fullmatch(word):
                print(f"{word}\t{_shorten(summary)}" if options.shell == "described" else word)
    return OK


def _shorten(summary: str | None) -> str:
    line = " ".join((summary or "").split())
    return line if len(line) <= SUMMARY else line[: SUMMARY - 1] + "…"


def _candidates(before: list[str], current: str) -> Mapping[str, str | None]:
    """Candidates for the current word, with descriptions."""
    from quorate.cli import build_parser

    parser, plain, waits = build_parser(), list[str](), None
    for word in before:
        if waits is not None:
            waits = None
        elif word.startswith("-"):
            waits = _option_with_value(parser, word)
        elif (below := _subcommands(parser)) and word in below.choices:
            parser, plain = below.choices[word], []
        else:
            plain.append(word)
    if waits is not None:
        return dict.fromkeys(_option_values(waits, current))
    if current.startswith("-"):
        return {name: action.help for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    return _positional(parser, plain, current)


def _option_with_value(parser: argparse.ArgumentParser, option: str) -> argparse.Action | None:
    action = parser._option_string_actions.get(option)  # noqa: SLF001
    return None if action is None or action.nargs == 0 else action


def _subcommands(parser: argparse.ArgumentParser) -> Any:
    """The subcommands of a command, if any."""
    found = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    return next(found, None)


def _positional(parser: argparse.ArgumentParser, given: list[str], current: str) -> Mapping[str, str | None]:
    if below := _subcommands(parser):
        about = {one.dest: one.help for one in below._choices_actions}  # noqa: SLF001
        return {} if given else {name: about.get(name) for name in below.choices}
    name = parser.prog.rpartition(" ")[2]
    if name in ("call", "explain", "tools") and not given:
        from quorate.operations.registry import operations

        return {one.name: one.summary for one in operations().values()}
    if name in ("call", "explain"):
        return _arguments(given, current)
    if not given and parser.prog in NAMED:
        return dict.fromkeys(NAMED[parser.prog]())
    places = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    return dict.fromkeys((places[len(given)].choices or ()) if len(given) < len(places) else ())


def _arguments(given: list[str], current: str) -> Mapping[str, str | None]:
    from quorate.operations.registry import find_operation

    operation = find_operation(given[0])
    if operation is None:
        return {}
    properties = operation.schema()["properties"]
    key, equals, _ = current.partition("=")
    if not equals:
        used = {one.partition("=")[0] for one in given[1:]}
        return {f"{name}=": part.get("description") for name, part in properties.items() if name not in used}
    return dict.fromkeys(f"{key}={value}" for value in _values(operation, key, properties.get(key, {})))


def _values(operation: Operation, key: str, part: Mapping[str, Any]) -> Iterable[str]:
    if "enum" in part:
        return [str(one) for one in part["enum"]]
    if part.get("type") == "boolean":
        return ("true", "false")
    return name_candidates.names(*name_candidates.kinds_of(operation, key))


def _option_values(option: argparse.Action, current: str) -> Iterable[str]:
    """Values for an option; in a comma-separated list, those after the last comma."""
    from quorate.operations.registry import EVERY
    from quorate.surfaces.compat import SYSTEMS

    lists = {"toolsets": (*EVERY, "all", "homelab"), "surface": ("native", "lean", *SYSTEMS)}
    if option.dest not in lists:
        return option.choices or ()
    before = current.rpartition(",")[0]
    taken = before.split(",")
    return [f"{before},{one}" if before else one for one in lists[option.dest] if one not in taken]
