"""What can be completed, such as guests, nodes and storages of the clusters, hosts, and ids of runs and findings."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import OK, add_command
from quorate.config import load
from quorate.operations.registry import DEFAULT, EVERY, find_operation, operations
from quorate.pve.connection import SystemClock
from quorate.state.store import open_store

if TYPE_CHECKING:
    from quorate.config import Settings
    from quorate.operations.registry import Operation
    from quorate.state.store import Store

CLUSTER_SECONDS = 1.5
Candidates = Mapping[str, str | None]
"""Words with their descriptions."""


def kinds_of(operation: Operation, argument: str) -> tuple[str, ...]:
    """The kinds of object that an argument names: as its type says, else by its name."""
    kinds = (kind for kind in ("node", "storage") if argument in (kind, f"{kind}s") or argument.endswith(f"_{kind}"))
    stored = (kind for kind in ("run", "finding") if argument == kind)
    return operation.names_in(argument) or (*kinds, *stored)


def names(*kinds: str) -> Candidates:
    """The candidates that are available quickly."""

    if not kinds:
        return {}
    settings = load(tolerate=True)
    has_state = "://" in settings.state or Path(settings.state).expanduser().exists()  # opening it would create it
    return asyncio.run(_names(settings, kinds, has_state))


def secret_names() -> Candidates:
    from quorate.homelab.vault import Vault

    return dict.fromkeys(Vault(load(tolerate=True).homelab.secrets_file, None).names())


def cluster_names() -> Candidates:

    return dict.fromkeys(cluster.name for cluster in load(tolerate=True).clusters)


async def _names(settings: Settings, kinds: tuple[str, ...], has_state: bool) -> Candidates:
    stored = await _load_candidates(settings, [kind for kind in kinds if kind in STORED]) if has_state else {}
    names: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLUSTER_SECONDS):
            for kind in kinds:
                names += await _names_in_clusters(settings, kind) if kind not in STORED else []
    return {**stored, **dict.fromkeys(names)}


async def _load_candidates(settings: Settings, kinds: Sequence[str]) -> Candidates:
    from quorate.pipeline.redaction import one_line

    candidates: dict[str, str | None] = {}
    if kinds:
        async with open_store(settings.state, clock=SystemClock()) as store:
            for kind in kinds:
                async for name, about in STORED[kind](store):
                    candidates[name] = one_line(about)
    return candidates


async def _hosts(store: Store) -> AsyncIterator[tuple[str, str]]:
    from quorate.homelab.host import Hosts

    for host in await Hosts(store).all():
        yield host.name, ""


async def _runs(store: Store) -> AsyncIterator[tuple[str, str]]:
    from quorate.runs.store import RunStore

    for run in await RunStore(store, _no_entry).list():
        yield run.id, f"{run.state.value}: {run.title}"


async def _no_entry(_: str) -> None:
    """Nothing about changes is asked here."""


async def _findings(store: Store) -> AsyncIterator[tuple[str, str]]:
    from quorate.watch.finding_store import Findings

    for finding in await Findings(store).open():
        yield finding.id, finding.seen_as.what


async def _approvals(store: Store) -> AsyncIterator[tuple[str, str]]:
    from quorate.state.approvals import Approvals

    for request in await Approvals(store).list():
        yield request.id, request.summary


async def _tokens(store: Store) -> AsyncIterator[tuple[str, str]]:
    from quorate.state.tokens import Tokens

    for token in await Tokens(store).list():
        yield token.name, token.access


STORED = {"host": _hosts, "run": _runs, "finding": _findings, "approval": _approvals, "token": _tokens}
"""What the state holds -> names or ids with a description, newest first."""


async def _names_in_clusters(settings: Settings, kind: str) -> list[str]:
    from quorate.pve.client import PveClient

    key, names = {"guest": "name"}.get(kind, kind), list[str]()
    for cluster in settings.clusters:
        client = PveClient(cluster.connection)
        with contextlib.suppress(Exception):  # another cluster may answer
            rows = await client.get("/cluster/resources", type={"guest": "vm"}.get(kind, kind))
            names += sorted({str(row[key]) for row in rows if row.get(key)})
        await client.close()
    return names


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
NAMED: Mapping[str, Callable[[], Candidates]] = {
    "quorate trust": partial(names, "host"),
    "quorate secrets remove": secret_names,
    "quorate tokens revoke": partial(names, "token"),
}
"""Commands whose first argument is the name of a stored object."""
IDS = {"runs": "run", "watch": "finding", "approvals": "approval"}
"""Commands whose actions take an ID -> the kind of object."""
HOW = """add one of these to the start-up file of your shell:
  bash   eval "$(quorate completion bash)"
  zsh    eval "$(quorate completion zsh)"      (after compinit)
  fish   quorate completion fish | source"""


def add(commands: Any) -> None:
    completion = add_command(commands, "completion", _completion)
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


def _candidates(before: list[str], current: str) -> Candidates:
    """Candidates for the current word, with descriptions."""
    from quorate.cli import build_parser

    parser, plain, waits = build_parser(before[0] if before else ""), list[str](), None
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
        return _option_values(waits, current)
    if current.startswith("-"):
        return {name: action.help for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    return _positional(parser, plain, current)


def _option_with_value(parser: argparse.ArgumentParser, option: str) -> argparse.Action | None:
    action = parser._option_string_actions.get(option)  # noqa: SLF001
    return None if action is None or action.nargs == 0 else action


def _subcommands(parser: argparse.ArgumentParser) -> Any:
    """The subcommands of a command, if any."""
    subcommands = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    return next(subcommands, None)


def _positional(parser: argparse.ArgumentParser, words: list[str], current: str) -> Candidates:
    if below := _subcommands(parser):
        about = {action.dest: action.help for action in below._choices_actions}  # noqa: SLF001
        return {} if words else {name: about.get(name) for name in below.choices}
    name = parser.prog.rpartition(" ")[2]
    if name in ("call", "explain", "tools") and not words:
        return {operation.name: operation.summary for operation in operations().values()}
    if name in ("call", "explain"):
        return _arguments(words, current)
    if not words and parser.prog in NAMED:
        return NAMED[parser.prog]()
    places = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    if not words and places and places[0].metavar == "ID":
        return names(IDS[parser.prog.split()[1]])
    return dict.fromkeys((places[len(words)].choices or ()) if len(words) < len(places) else ())


def _arguments(words: list[str], current: str) -> Candidates:

    operation = find_operation(words[0])
    if operation is None:
        return {}
    properties = operation.schema()["properties"]
    key, equals, _ = current.partition("=")
    if not equals:
        used = {word.partition("=")[0] for word in words[1:]}
        return {f"{name}=": part.get("description") for name, part in properties.items() if name not in used}
    values = _values(operation, key, properties.get(key, {}))
    return {f"{key}={value}": about for value, about in values.items()}


def _values(operation: Operation, key: str, part: Mapping[str, Any]) -> Candidates:
    if "enum" in part:
        return dict.fromkeys(str(value) for value in part["enum"])
    if part.get("type") == "boolean":
        return dict.fromkeys(("true", "false"))
    return names(*kinds_of(operation, key))


def _option_values(option: argparse.Action, current: str) -> Candidates:
    """Values for an option; in a comma-separated list, those after the last comma."""
    from quorate.surfaces.compat import SYSTEMS

    before, _, word = current.rpartition(",")
    toolsets = [f"+{name}" for name in EVERY] if word.startswith("+") else [*EVERY, "all", "homelab", DEFAULT]
    lists = {"toolsets": toolsets, "surface": ("native", "lean", *SYSTEMS)}
    if option.dest in ("cluster", "clusters"):
        lists[option.dest] = [*cluster_names()]
    if option.dest == "approval" and not option.choices:
        return names("approval")
    if option.dest not in lists:
        return dict.fromkeys(option.choices or ())
    taken = before.split(",")
    return dict.fromkeys(f"{before},{name}" if before else name for name in lists[option.dest] if name not in taken)
