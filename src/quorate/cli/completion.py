"""quorate completion: what may come next on the command line, for the shell."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from quorate.cli.options import OK, command

CLUSTER_SECONDS = 1.5
SAFE = re.compile(r"[\w.@:/+-]+(=[\w.@:/+-]*)?", re.ASCII)
"""Names come from strangers and end up on a command line: only what no shell takes for anything else is offered."""

BASH = """\
_quorate() {
    local line="${COMP_LINE:0:COMP_POINT}" current
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current="${words[${#words[@]}-1]}"
    mapfile -t COMPREPLY < <("${words[0]}" completion words -- "${words[@]:1}" 2>/dev/null)
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
    local -a found keys
    found=("${(@f)$("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    keys=("${(@M)found:#*=}")
    found=("${(@)found:#*=}")
    (( $#keys )) && compadd -S '' -- "${(@)keys}"
    if (( $#found )) && [[ -n ${found[1]} ]]; then
        compadd -- "${(@)found}"
    elif (( ! $#keys )); then
        _files
    fi
}
compdef _quorate quorate
"""
FISH = """\
function __quorate_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion words -- $words[2..-1] 2>/dev/null
end
complete -c quorate -a '(__quorate_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
HOW = """put one of these into the start-up file of your shell:
  bash   eval "$(quorate completion bash)"
  zsh    eval "$(quorate completion zsh)"      (after compinit)
  fish   quorate completion fish | source"""


def add(commands: Any) -> None:
    completion = command(commands, "completion", _completion, "print the script that completes commands in your shell")
    completion.add_argument("shell", choices=(*SCRIPTS, "words"), help="words: what the scripts ask for")
    completion.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    completion.formatter_class = argparse.RawDescriptionHelpFormatter
    completion.epilog = HOW


def _completion(options: argparse.Namespace) -> int:
    if options.shell in SCRIPTS:
        print(SCRIPTS[options.shell], end="")
        return OK
    with contextlib.suppress(Exception):  # a shell that waits for a word has no use for errors
        words = options.words[1:] if options.words[:1] == ["--"] else options.words
        *before, current = words or [""]
        for one in _candidates(before, current):
            if one.startswith(current) and SAFE.fullmatch(one):
                print(one)
    return OK


def _candidates(before: list[str], current: str) -> Iterable[str]:
    from quorate.cli import parser_of_all

    parser, plain, waits = parser_of_all(), list[str](), None
    for word in before:
        if waits is not None:
            waits = None
        elif word.startswith("-"):
            waits = _taking_value(parser, word)
        elif (below := _below(parser)) and word in below:
            parser, plain = below[word], []
        else:
            plain.append(word)
    if waits is not None:
        return waits.choices or ()
    if current.startswith("-"):
        return [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001
    return _plain(parser, plain, current)


def _taking_value(parser: argparse.ArgumentParser, option: str) -> argparse.Action | None:
    action = parser._option_string_actions.get(option)  # noqa: SLF001
    return None if action is None or action.nargs == 0 else action


def _below(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    return found[0].choices if found else {}


def _plain(parser: argparse.ArgumentParser, given: list[str], current: str) -> Iterable[str]:
    if below := _below(parser):
        return () if given else below
    name = parser.prog.rpartition(" ")[2]
    if name in ("call", "tools") and not given:
        from quorate.operations.registry import operations

        return operations()
    if name == "call":
        return _arguments(given, current)
    places = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    return (places[len(given)].choices or ()) if len(given) < len(places) else ()


def _arguments(given: list[str], current: str) -> Iterable[str]:
    from quorate.operations.registry import operations

    operation = operations().get(given[0])
    if operation is None:
        return ()
    properties = operation.schema()["properties"]
    key, equals, _ = current.partition("=")
    if not equals:
        used = {one.partition("=")[0] for one in given[1:]}
        return [f"{name}=" for name in properties if name not in used]
    return [f"{key}={value}" for value in _values(key, properties.get(key, {}))]


def _values(key: str, part: Mapping[str, Any]) -> Iterable[str]:
    if "enum" in part:
        return [str(one) for one in part["enum"]]
    if part.get("type") == "boolean":
        return ("true", "false")
    kind = _kind(key, part)
    return asyncio.run(_of_cluster(kind)) if kind else ()


def _kind(key: str, part: Mapping[str, Any]) -> str | None:
    if str(part.get("description", "")).startswith("vmid or name"):
        return "guest"
    return next((kind for kind in ("node", "storage") if key in (kind, f"{kind}s") or key.endswith(f"_{kind}")), None)


async def _of_cluster(kind: str) -> list[str]:
    """Names of the configured clusters, as far as they answer quickly."""
    from quorate.config import load
    from quorate.pve.client import PveClient

    async def names(connection: Any) -> list[str]:
        client = PveClient(connection)
        try:
            rows = await client.get("/cluster/resources", type={"guest": "vm"}.get(kind, kind))
        finally:
            await client.close()
        key = {"guest": "name"}.get(kind, kind)
        return sorted({str(row[key]) for row in rows if row.get(key)})

    found: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLUSTER_SECONDS):
            for cluster in load(tolerate=True).clusters:
                found += await names(cluster.connection)
    return found
