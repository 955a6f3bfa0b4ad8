"""quorate secrets: manage the encrypted file with host passwords."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, actions_of, add_command, config_option
from quorate.cli.prompts import read_hidden
from quorate.config import ConfigError, load
from quorate.homelab.vault import Vault, ensure_long
from quorate.problems import Problem
from quorate.secret import Secret

if TYPE_CHECKING:
    from quorate.config.homelab import HomelabSettings


def add(commands: Any) -> None:
    secrets = add_command(commands, "secrets", _list)
    add_action = actions_of(secrets, config_option)
    put = add_action("set", _set, "store a secret, typed at a terminal or read as one line from standard input")
    put.add_argument("name", metavar="NAME", help="name for references: vault:NAME")
    add_action("list", _list, "list the names, never the secrets")
    remove = add_action("remove", _remove, "delete a secret")
    remove.add_argument("name", metavar="NAME", help="name of the secret")
    add_action("passphrase", _passphrase, "change the passphrase of the file; needs a terminal")


def _set(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        vault = _open(settings)
        replaced = vault.put(options.name, _secret(options.name))
        print(f"{'Replaced' if replaced else 'Stored'} in {vault.file}; refer to it as vault:{options.name}")
        return OK

    return _with_homelab_settings(options, run)


def _list(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        vault = _vault(settings, None)
        names = vault.names()
        for name in names:
            print(name)
        if not names:
            print(f"There are no secrets in {vault.file}; `quorate secrets set NAME` stores one.", file=sys.stderr)
        return OK

    return _with_homelab_settings(options, run)


def _remove(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        if options.name not in _vault(settings, None).names():
            print(f"quorate: there is no secret {options.name!r}; `quorate secrets list` shows them", file=sys.stderr)
            return FAILED
        _open(settings).remove(options.name)
        print(f"Deleted {options.name}.")
        return OK

    return _with_homelab_settings(options, run)


def _passphrase(options: argparse.Namespace) -> int:
    def run(settings: HomelabSettings) -> int:
        if not settings.secrets_file.exists():
            print("quorate: there is no file yet; `quorate secrets set NAME` creates it", file=sys.stderr)
            return FAILED
        vault = _open(settings)
        vault.change_passphrase(_new_passphrase())
        print(f"The passphrase of {vault.file} is changed.")
        if settings.passphrase is not None:
            print("Replace the old one in the settings, and restart Quorate.")
        return OK

    return _with_homelab_settings(options, run)


def _with_homelab_settings(options: argparse.Namespace, run: Callable[[HomelabSettings], int]) -> int:
    try:
        return run(load(file=options.config, tolerate=True).homelab)
    except Problem as problem:
        print(f"quorate: {problem}", file=sys.stderr)
        return FAILED


def _vault(settings: HomelabSettings, passphrase: Secret | None) -> Vault:
    return Vault(settings.secrets_file, passphrase)


def _open(settings: HomelabSettings) -> Vault:
    """Open it with the configured passphrase, otherwise a typed one; a new file gets a new passphrase."""
    passphrase = settings.passphrase
    if passphrase is None and settings.secrets_file.exists():
        passphrase = Secret(read_hidden(f"Passphrase of {settings.secrets_file}: "))
    elif passphrase is None:
        passphrase = _new_passphrase()
    if not settings.secrets_file.exists():
        ensure_long(passphrase)
    vault = _vault(settings, passphrase)
    vault.check_passphrase()
    return vault


def _new_passphrase() -> Secret:
    new = Secret(read_hidden("New passphrase: "))
    ensure_long(new)
    if read_hidden("Repeat it: ") != new.reveal():
        raise ConfigError("The two differ. Nothing was changed.")
    return new


def _secret(name: str) -> Secret:
    """Never an argument: every user of the machine can see those, and shells store them."""
    if sys.stdin.isatty():
        text = read_hidden(f"Secret for {name}: ")
    else:
        text = sys.stdin.read(2**16).removesuffix("\n").removesuffix("\r")
        if "\n" in text:
            raise ConfigError("Standard input has more than one line; a secret is one line.")
    if not text:
        raise ConfigError("The secret is empty. Nothing was changed.")
    return Secret(text)
