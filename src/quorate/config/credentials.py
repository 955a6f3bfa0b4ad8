"""Credentials for a cluster: an API token, or a user with a password."""

from __future__ import annotations

import os
import re
from pathlib import Path

from quorate.config.raw import RawSetting, RawSettings, highest_rank, strongest
from quorate.config.settings import ConfigError
from quorate.config.sources import text_of
from quorate.config.values import as_text, contradiction, require_agreement
from quorate.pve.connection import Password, Secret, Token

_USER = re.compile(r"[^\s:/@!]+(?:@[^\s:/@!]+)*@[A-Za-z][\w.-]+", re.ASCII)
_TOKEN_NAME = re.compile(r"[A-Za-z][\w.-]+", re.ASCII)
TOKEN_NAME_RULE = "The name has two or more characters in Proxmox VE: a letter, then letters, digits, '.', '-' or '_'."  # noqa: S105


def read_credentials(found: RawSettings, warnings: list[str]) -> Token | Password:
    token = [*found.get("token", []), *found.get("token_secret", [])]
    password = found.get("password", [])
    if not token and not password:
        raise _no_login(found)
    if highest_rank(token) == highest_rank(password):
        contradiction(strongest(token)[0], password[0], "use a token or a password")
    # The source with precedence chooses the kind of login; the other kind in a weaker source is ignored.
    return _token(found, warnings) if highest_rank(token) > highest_rank(password) else _login(found, warnings)


def _no_login(found: RawSettings) -> ConfigError:
    some = found.get("user", next(iter(found.values())))[0]
    needed = f"{some.sibling('token')} and {some.sibling('token_secret')}"
    if "user" in found:
        return ConfigError(f"{some.sibling('password')} is missing: set it, or set {needed}.")
    return ConfigError(f"{needed} are missing: set them to an API token (user@realm!name and its secret).")


def _token(found: RawSettings, warnings: list[str]) -> Token:
    if "token" not in found:
        given = found["token_secret"][0]
        raise ConfigError(f"{given.sibling('token')} is missing: {given.label} needs the token it belongs to.")
    if "token_secret" not in found:
        given = found["token"][0]
        raise ConfigError(f"{given.sibling('token_secret')} is missing: {given.label} needs its secret.")
    user = found["user"][0] if "user" in found else None
    realm = found["realm"][0] if "realm" in found else None
    if len(found.get("user", ())) > 1:
        require_agreement(found["user"], lambda given: _user(given, realm))
    token_id = require_agreement(found["token"], lambda given: _token_id(given, user, realm))
    secret = read_secret(found["token_secret"], warnings)
    if not secret.reveal().isprintable():  # it goes into a header
        raise ConfigError(f"{found['token_secret'][0].label} contains a line break: it must be the secret alone.")
    return Token(token_id, secret)


def _token_id(given: RawSetting, user: RawSetting | None, realm: RawSetting | None) -> str:
    owner, is_full, name = as_text(given).rpartition("!")
    if not _TOKEN_NAME.fullmatch(name):
        raise ConfigError(f"{given.label} must look like user@realm!name, as Proxmox VE shows it. {TOKEN_NAME_RULE}")
    if not is_full:
        if user is None:
            raise ConfigError(
                f"{given.sibling('user')} is missing: {given.label} gives only the token's name, so set "
                "the user (user@realm) or write the name as user@realm!name."
            )
        return f"{_user(user, realm)}!{name}"
    full_owner = _with_realm(owner, given, realm)
    if user is not None and user.rank == given.rank and _user(user, realm) != full_owner:
        contradiction(user, given)
    return f"{full_owner}!{name}"


def _login(found: RawSettings, warnings: list[str]) -> Password:
    if "user" not in found:
        given = found["password"][0]
        raise ConfigError(f"{given.sibling('user')} is missing: {given.label} needs the user (user@realm).")
    realm = found["realm"][0] if "realm" in found else None
    return Password(
        require_agreement(found["user"], lambda given: _user(given, realm)), read_secret(found["password"], warnings)
    )


def _user(given: RawSetting, realm: RawSetting | None) -> str:
    return _with_realm(as_text(given), given, realm)


def _with_realm(user: str, given: RawSetting, realm: RawSetting | None) -> str:
    """Add the realm: its own, the one set separately, or pam."""
    apart = as_text(realm) if realm is not None else "pam"
    full = user if "@" in user else f"{user}@{apart}"
    if not _USER.fullmatch(full):
        raise ConfigError(f"{given.label} must name the user as user@realm, such as root@pam.")
    if realm is not None and realm.rank == given.rank and full.rpartition("@")[2] != apart:
        contradiction(given, realm)
    return full


def read_secret(givens: list[RawSetting], warnings: list[str]) -> Secret:
    secret = require_agreement(givens, lambda given: Secret(_secret_text(given)))
    holder = next((given.source.file for given in givens if isinstance(given.value, str)), None)
    if holder and _is_open_to_others(holder):
        warnings.append(f"{holder} contains a secret and other users can read it: run `chmod 600 {holder}`.")
    return secret


def _secret_text(given: RawSetting) -> str:
    match given.value:
        case str(text):
            pass
        case {"file": str(file), **rest} if not rest:
            text = text_of(given.source.path(file), f"file of {given.label},").strip("\r\n")
        case {"env": str(name), **rest} if not rest:
            if name not in given.source.variables:
                raise ConfigError(f"{given.label} refers to the variable {name}, which is not set: set it.")
            text = given.source.variables[name]
        case _:
            raise ConfigError(f'{given.label} must be a string, {{ file = "PATH" }} or {{ env = "NAME" }}.')
    if not text.strip():
        raise ConfigError(f"{given.label} is empty: set it to the secret.")
    return text


def _is_open_to_others(file: Path) -> bool:
    # Windows stores permissions elsewhere and always reports these bits.
    return os.name == "posix" and bool(file.stat().st_mode & 0o044)
