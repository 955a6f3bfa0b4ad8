"""quorate secrets: the encrypted file that hosts' passwords are kept in."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, command
from quorate.config import ConfigError, load

if TYPE_CHECKING:
    from quorate.homelab.settings import HomelabSettings
    from quorate.homelab.vault import Vault
    from quorate.secret import Secret


def add(commands: Any) -> None:
    secrets = command(commands, "secrets", _list, "keep passwords of hosts in an encrypted file, for vault:NAME")
    secrets.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    actions = secrets.add_subparsers(title="actions", metavar="ACTION")
    put = command(actions, "set", _set, "keep a secret: typed unseen at a terminal, or one line of standard input")
    put.add_argument("name", metavar="NAME", help="by which hosts refer to it: vault:NAME")
    command(actions, "list", _list, "show the names, never the secrets")
    remove = command(actions, "remove", _remove, "forget a secret")
    remove.add_argument("name", metavar="NAME", help="its name")
    command(actions, "passphrase", _passphrase, "give the file another passphrase; only at a terminal")


def _set(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        vault = _opened(settings)
        replaced = vault.put(options.name, _secret(options.name))
        print(f"{'Replaced' if replaced else 'Kept'} in {vault.file}; hosts refer to it by vault:{options.name}")
        return OK

    return _told(options, run)


def _list(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        vault = _vault(settings, None)
        names = vault.names()
        for name in names:
            print(name)
        if not names:
            print(f"There are no secrets in {vault.file}; `quorate secrets set NAME` keeps one.", file=sys.stderr)
        return OK

    return _told(options, run)


def _remove(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        if options.name not in _vault(settings, None).names():
            print(f"quorate: there is no secret {options.name!r}; `quorate secrets list` shows them", file=sys.stderr)
            return FAILED
        _opened(settings).remove(options.name)
        print(f"{options.name} is forgotten.")
        return OK

    return _told(options, run)


def _passphrase(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        if not settings.secrets_file.exists():
            print("quorate: there is nothing to lock yet; `quorate secrets set NAME` makes the file", file=sys.stderr)
            return FAILED
        vault = _opened(settings)
        vault.lock_anew(_new_passphrase())
        print(f"{vault.file} has another passphrase now.")
        if settings.passphrase is not None:
            print("Put it where the settings have the old one, and start Quorate anew.")
        return OK

    return _told(options, run)


def _told(options: argparse.Namespace, run: Callable[[HomelabSettings], int]) -> int:
    from quorate.problems import Problem

    try:
        return run(load(file=options.config, tolerate=True).homelab)
    except Problem as problem:
        print(f"quorate: {problem}", file=sys.stderr)
        return FAILED


def _vault(settings: HomelabSettings, passphrase: Secret | None) -> Vault:
    from quorate.homelab.vault import Vault

    return Vault(settings.secrets_file, passphrase)


def _opened(settings: HomelabSettings) -> Vault:
    """With the passphrase of the settings, else with one that is typed; a new file gets a new one."""
    from quorate.cli.operator import typed
    from quorate.homelab.vault import ensure_long
    from quorate.secret import Secret

    passphrase = settings.passphrase
    if passphrase is None and settings.secrets_file.exists():
        passphrase = Secret(typed(f"Passphrase of {settings.secrets_file}: "))
    elif passphrase is None:
        passphrase = _new_passphrase()
    if not settings.secrets_file.exists():
        ensure_long(passphrase)
    vault = _vault(settings, passphrase)
    vault.check_passphrase()
    return vault


def _new_passphrase() -> Secret:
    from quorate.cli.operator import typed
    from quorate.homelab.vault import ensure_long
    from quorate.secret import Secret

    new = Secret(typed("New passphrase: "))
    ensure_long(new)
    if typed("The same again: ") != new.reveal():
        raise ConfigError("The two are not the same, so nothing was changed.")
    return new


def _secret(name: str) -> Secret:
    """Never an argument: those are seen by every user of the machine and kept by the shell."""
    from quorate.cli.operator import typed
    from quorate.secret import Secret

    if sys.stdin.isatty():
        text = typed(f"Secret for {name}: ")
    else:
        text = sys.stdin.read(2**16).removesuffix("\n").removesuffix("\r")
        if "\n" in text:
            raise ConfigError("Standard input holds more than one line, and a secret is one.")
    if not text:
        raise ConfigError("Nothing was given, so nothing was changed.")
    return Secret(text)
