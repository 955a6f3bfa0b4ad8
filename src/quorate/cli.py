"""The `quorate` command."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import math
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from quorate import __version__
from quorate.config import ConfigError, Settings, load

OK, FAILED, USAGE, STILL_RUNNING = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    options = _parse(_parser(), arguments)
    try:
        code = options.run(options)
    except ConfigError as error:
        print(f"quorate: {error}", file=sys.stderr)
        code = USAGE
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = FAILED
    sys.exit(code)


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """As usual, but `key=value` pairs of a call may also stand after options."""
    options, rest = parser.parse_known_args(arguments)
    stray = [one for one in rest if one.startswith("-") or not hasattr(options, "arguments")]
    if stray:
        parser.error(f"unrecognized arguments: {' '.join(stray)}")
    if rest:
        options.arguments += rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quorate", description="An MCP server for Proxmox VE clusters.")
    parser.add_argument("--version", action="version", version=f"quorate {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = _command(commands, "serve", _serve, "run the MCP server (stdio unless --http is given)")
    serve.add_argument("--http", metavar="HOST:PORT", help="streamable HTTP at /mcp instead of stdio; loopback only")
    _gate_options(serve)
    _cluster_options(serve)

    call = _command(commands, "call", _call, "run one tool from the shell")
    call.add_argument("tool", metavar="TOOL", help="its name; `quorate tools` lists them")
    call.add_argument("arguments", metavar="key=value", nargs="*", help="arguments; repeat a key for a list")
    call.add_argument("--json", action="store_true", help="print the structured answer")
    call.add_argument("--output", metavar="FILE", type=Path, help="where a picture goes (default: a new TOOL.png)")
    _gate_options(call)
    _cluster_options(call)

    tools = _command(commands, "tools", _tools, "show the tools that would be listed; needs no cluster")
    tools.add_argument("--json", action="store_true", help="print the MCP `tools` array")
    _gate_options(tools)
    tools.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")

    sim = _command(commands, "sim", _sim, "run a simulated Proxmox VE cluster until ended")
    sim.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default: a free port on loopback")
    sim.add_argument("--nodes", metavar="N", type=int, help="a cluster of this many nodes instead of the small homelab")
    sim.add_argument("--guests", metavar="N", type=int, help="and this many guests")
    sim.add_argument("--seed", metavar="N", type=int, default=0, help="which of the possible clusters (default 0)")
    sim.add_argument("--pve", metavar="VERSION", default="9.1.8", help="the PVE version to behave as (default 9.1.8)")
    sim.add_argument("--endpoints", metavar="N", type=int, default=1, help="addresses of the cluster (default 1)")
    sim.add_argument("--speed", metavar="X", type=float, default=1.0, help="how much faster time goes (default 1)")
    sim.add_argument("--ssh", action="store_true", help="let the nodes answer SSH as well, on loopback")
    sim.add_argument("--fault", metavar="FAULT", action="append", default=[], help="a fault to inject; may be repeated")

    _command(commands, "demo", _demo, "a guided tour on a simulated cluster; needs nothing, ends by itself")
    return parser


def _command(commands: Any, name: str, run: Any, summary: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[:1].upper() + summary[1:] + "."
    )
    command.set_defaults(run=run)
    return command


def _gate_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--access", choices=("read", "operate", "admin"), help="how much may be done (default: read)")
    command.add_argument("--toolsets", metavar="A,B", help="which groups of tools, or all")
    command.add_argument("--surface", choices=("native",), default="native", help="how the tools are shown")


def _cluster_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    command.add_argument("--demo", action="store_true", help="use a simulated cluster instead of a real one")


# -- serve ---------------------------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    address = _loopback(options.http) if options.http else None
    settings = _settings(options)
    asyncio.run(_run_server(settings, options.demo, address))
    return OK


async def _run_server(settings: Settings, demo: bool, address: tuple[str, int] | None) -> None:
    from quorate.app import build

    async with _on_cluster(settings, demo) as ready:
        app = build(ready)
        try:
            if address is None:
                await app.server().run_stdio_async()
            else:
                from quorate.surfaces.http import serve

                try:
                    await serve(app.server("http"), *address)
                except OSError as error:
                    raise ConfigError(
                        f"Quorate cannot listen on {address[0]}:{address[1]}: {error.strerror}."
                    ) from None
        finally:
            await app.close()


def _loopback(text: str) -> tuple[str, int]:
    """Without authentication, only this machine may connect."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--http wants HOST:PORT, not {text!r}.")
    if host != "localhost":
        try:
            inside = ipaddress.ip_address(host).is_loopback
        except ValueError:
            inside = False
        if not inside:
            raise ConfigError(f"Quorate does not listen on {host!r}: without authentication it serves loopback only.")
    return host, int(port)


# -- call ----------------------------------------------------------------------------------------------------------


def _call(options: argparse.Namespace) -> int:
    arguments = _key_values(options.arguments)
    settings = _settings(options)
    if settings.toolsets is None:
        settings = replace(settings, toolsets=("all",))  # the default set spares a model's tokens, not a person's
    if "wait" not in arguments:
        settings = replace(settings, wait_seconds=math.inf)  # a person at a shell wants the end of it
    return asyncio.run(_call_once(settings, options, arguments))


async def _call_once(settings: Settings, options: argparse.Namespace, arguments: dict[str, Any]) -> int:
    from quorate.app import build
    from quorate.pipeline.record import Caller
    from quorate.pve.errors import Problem
    from quorate.surfaces import rendering, terminal

    async with _on_cluster(settings, options.demo) as ready:
        app = build(ready)
        bar = terminal.ProgressBar(sys.stderr)
        try:
            result = await app.pipeline.run(options.tool, arguments, Caller("quorate call", "cli"), bar.show)
        except Problem as problem:
            bar.clear()
            if options.json:
                print(json.dumps({"error": {"kind": problem.kind, "message": str(problem), **problem.facts}}))
            else:
                print(f"quorate: {rendering.problem_text(problem)}", file=sys.stderr)
            return FAILED
        finally:
            await app.close()
    bar.clear()
    print(
        json.dumps(rendering.structured(result.data), ensure_ascii=False)
        if options.json
        else terminal.readable(result.data)
    )
    if not _save(result.pictures, options.output, options.tool):
        return FAILED
    if result.failed:
        return FAILED
    running = isinstance(result.data, dict) and result.data.get("result") == "running"
    return STILL_RUNNING if running else OK


def _save(pictures: Sequence[bytes], wanted: Path | None, tool: str) -> bool:
    """Write pictures to files and say where; a file is only written over if its name was given."""
    if wanted is not None and not pictures:
        print(f"quorate: {tool} drew no picture; {wanted} is not written", file=sys.stderr)
    for number, picture in enumerate(pictures):
        file = wanted.with_stem(f"{wanted.stem}-{number + 1}") if wanted and number else wanted or _unused(tool)
        try:
            file.write_bytes(picture)
        except OSError as error:
            print(f"quorate: the picture cannot be written to {file}: {error.strerror}", file=sys.stderr)
            return False
        print(f"quorate: picture written to {file}", file=sys.stderr)
    return True


def _unused(tool: str) -> Path:
    names = (Path(f"{tool}.png"), *(Path(f"{tool}-{number}.png") for number in range(2, 10_000)))
    return next(name for name in names if not name.exists())


def _key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` as strings; JSON lists and objects as such; a repeated key becomes a list."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"Arguments are key=value pairs; {pair!r} has no '='.")
        value = _value(text)
        if key in found:
            found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
        else:
            found[key] = value
    return found


def _value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
    return text


# -- tools, sim, demo ----------------------------------------------------------------------------------------------


def _tools(options: argparse.Namespace) -> int:
    from quorate.app import build

    settings = load(file=options.config, access=options.access, toolsets=options.toolsets, tolerate=True)
    visible = build(settings).pipeline.visible()
    if options.json:
        from quorate.surfaces.native import as_json, describe

        print(json.dumps(as_json([describe(operation) for operation in visible]), ensure_ascii=False))
        return OK
    width = max((len(operation.name) for operation in visible), default=0)
    for operation in visible:
        print(f"{operation.name:<{width}}  {operation.risk.value:<8}  {operation.summary}")
    return OK


def _sim(options: argparse.Namespace) -> int:
    from quorate.sim.cluster import RunOptions, run

    chosen = RunOptions(
        listen=options.listen,
        nodes=options.nodes,
        guests=options.guests,
        seed=options.seed,
        faults=options.fault,
        version=options.pve,
        endpoints=options.endpoints,
        speed=options.speed,
        ssh=options.ssh,
    )
    try:
        asyncio.run(run(chosen))
    except (ValueError, OSError) as error:  # an address, size or fault that cannot be
        raise ConfigError(f"The simulated cluster cannot start: {error}.") from None
    return OK


def _demo(_: argparse.Namespace) -> int:
    from quorate.demo import tour

    return asyncio.run(tour())


# -- settings ------------------------------------------------------------------------------------------------------


def _settings(options: argparse.Namespace) -> Settings:
    settings = load(file=options.config, access=options.access, toolsets=options.toolsets, tolerate=options.demo)
    if settings.problem and not options.demo:
        raise ConfigError(settings.problem)
    for warning in settings.warnings if not options.demo else ():
        print(f"quorate: warning: {warning}", file=sys.stderr)
    return settings


@contextlib.asynccontextmanager
async def _on_cluster(settings: Settings, demo: bool) -> AsyncIterator[Settings]:
    if not demo:
        yield settings
        return
    from quorate.app import demo_settings

    async with demo_settings(settings) as ready:
        yield ready
