"""The connection to a cluster in every common spelling: its addresses, its login, and trust in its certificate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from quorate.config.sources import (
    ConfigError,
    Option,
    Rank,
    RawSetting,
    RawSettings,
    Source,
    Table,
    highest_rank,
    in_variables,
    strongest,
    table,
)
from quorate.config.values import (
    as_flag,
    as_path,
    as_port,
    as_secret,
    as_text,
    as_texts,
    contradiction,
    require_agreement,
)
from quorate.pve.connection import PVE, Password, Product, Token, Trust

API_TOKEN = "PROXMOX_API_TOKEN"  # noqa: S105 - the name of a variable
"""Token and secret in one: user@realm!name=secret."""

# If a setting has several names, the first belongs to the PROXMOX_URL family and the last to the PROXMOX_HOST family.
ADDRESS = table(
    address=Option(
        "a host name, `host:port`, an IPv4 or IPv6 address, or a URL with or without `/api2/json`; several nodes of "
        "the same cluster separated by commas (a list in TOML), tried in this order",
        variables=("PROXMOX_URL", "PROXMOX_API_URL", "PROXMOX_HOST"),
        keys=("url", "host"),
        usual="required",
    ),
    port=Option(
        "the port for addresses that do not include one", as_port, variables=("PROXMOX_PORT",), default=PVE.port
    ),
)
LOGIN = table(
    user=Option(
        "`user@realm`; the realm defaults to `PROXMOX_REALM`, otherwise `@pam`",
        variables=("PROXMOX_USER", "PROXMOX_USERNAME"),
    ),
    realm=Option("the realm for users without one", variables=("PROXMOX_REALM",), default="pam"),
    token=Option(
        "the token as `user@realm!name`, or only its name if the user is set separately; with its secret as "
        f"`user@realm!name=secret` in `{API_TOKEN}`",
        variables=("PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_NAME"),
        keys=("token_id", "token_name"),
    ),
    token_secret=Option(
        "the token's secret",
        as_secret,
        variables=("PROXMOX_TOKEN_SECRET", "PROXMOX_TOKEN_VALUE"),
        keys=("token_secret", "token_value"),
        secret=True,
    ),
    password=Option("the user's password", as_secret, variables=("PROXMOX_PASSWORD",), secret=True),
)
TRUST = table(
    verify=Option(
        "`false` disables the check of the certificate, `true` in `PROXMOX_TLS_INSECURE` does the same; a path is "
        "taken as the CA file",
        variables=("PROXMOX_VERIFY", "PROXMOX_VERIFY_SSL", "PROXMOX_TLS_INSECURE"),
        default=True,
    ),
    ca_file=Option("the CA that signed the certificate", variables=("PROXMOX_CA_FILE",), usual="the system's CAs"),
    fingerprint=Option(
        "SHA-256 fingerprint of the certificate, 64 hexadecimal digits with or without colons",
        variables=("PROXMOX_FINGERPRINT",),
    ),
)
CONNECTION: Table = {**ADDRESS, **LOGIN, **TRUST}
JSON_KEYS: Mapping[str, str] = {
    "address": "host",
    "port": "port",
    "user": "username",
    "realm": "realm",
    "password": "password",
    "token": "tokenId",
    "token_secret": "tokenSecret",
    "verify": "verifySsl",
    "request_seconds": "timeout",
}
"""Connection settings in brynnjocelyn's .proxmox-mcp.json."""
_HOST_FAMILY = ("host", "port", "token_name", "token_value")
_ALSO_HOST_FAMILY = ("username", "realm", "api_token", "verify_ssl")
"""Names used by operators who write an address as `host` and a token as `token_id`, or both of its parts in one."""


def connection_in_variables(options: Table, source: Source) -> RawSettings:
    """The options in the variables of a source, and both parts of a token that is written in one."""
    raw = in_variables(options, source)
    if API_TOKEN in source.variables:
        token, equals, secret = source.variables[API_TOKEN].strip().removeprefix("PVEAPIToken=").partition("=")
        if not equals or "!" not in token or not secret:
            raise ConfigError(f"{API_TOKEN}{source.suffix} must look like user@realm!name=secret.")
        for name, part in (("token", token), ("token_secret", secret)):
            raw.setdefault(name, []).append(RawSetting(API_TOKEN, part, source))
    return {name: raw[name] for name in options if name in raw}


def _sibling(setting: RawSetting, name: str) -> str:
    """The name of another setting in the family of names that this operator uses."""
    if setting.source.file is not None and setting.source.file.suffix == ".json":
        return JSON_KEYS[name] + setting.source.suffix
    names = CONNECTION[name].keys if setting.rank is Rank.TOML else CONNECTION[name].variables
    assert names
    family = (*_HOST_FAMILY, *_ALSO_HOST_FAMILY) if name == "address" else _HOST_FAMILY
    of_host = setting.spelling.lower().removeprefix("proxmox_").removesuffix("_file") in family and name != "user"
    return names[-1 if of_host else 0] + setting.source.suffix


# -- addresses ---------------------------------------------------------------------------------------------------------


def read_endpoints(raw: RawSettings, product: Product = PVE) -> tuple[str, ...]:
    if "address" not in raw:
        some = next(iter(raw.values()))[0]
        machine = "a Proxmox VE node" if product is PVE else "the Proxmox Backup Server"
        raise ConfigError(f"{_sibling(some, 'address')} is missing: set it to the address of {machine}.")
    port = raw["port"][0] if "port" in raw else None
    return require_agreement(raw["address"], lambda address: _endpoints(address, port, product))


def _endpoints(address: RawSetting, port: RawSetting | None, product: Product) -> tuple[str, ...]:
    parts = (_split_address(text, address.label, product) for text in as_texts(address))
    ports = ((host, _resolve_port(address, own, port) or product.port) for host, own in parts)
    return tuple(dict.fromkeys(f"https://{host}:{number}" for host, number in ports))


def _resolve_port(address: RawSetting, own_port: int | None, port: RawSetting | None) -> int | None:
    if port is None:
        return own_port
    number = as_port(port)
    if own_port is None or port.rank > address.rank:
        return number
    if own_port != number and port.rank == address.rank:
        contradiction(address, port)
    return own_port


def _split_address(text: str, label: str, product: Product = PVE) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, an IPv6 address or a URL."""
    # No message repeats the text, because it may contain a login.
    scheme, has_scheme, rest = text.partition("://")
    if has_scheme and scheme.lower() == "http":
        speaker = "Proxmox VE" if product is PVE else product.name
        raise ConfigError(f"{label} starts with http://, but {speaker} speaks https only: write https:// instead.")
    if has_scheme and scheme.lower() != "https":
        raise ConfigError(f"{label} must be a host name, an IP address or an https:// URL.")
    address = rest if has_scheme else text
    if _is_ipv6(address):
        return f"[{address.lower()}]", None
    try:
        parts = urlsplit(f"https://{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(
            f"{label} has a host or port that is not valid: write it as https://host:{product.port}."
        ) from None
    if "@" in parts.netloc:
        raise ConfigError(f"{label} must not contain a login: set user and password or token separately.")
    if parts.path.strip("/") not in ("", "api2", "api2/json"):
        raise ConfigError(f"{label} has a path that is not Proxmox VE's: write only https://host:port.")
    if port == 0 or not (_is_ipv6(host) or re.fullmatch(r"[\w.-]+", host)):
        raise ConfigError(f"{label} has a host or port that is not valid: write it as https://host:{product.port}.")
    return (f"[{host}]" if _is_ipv6(host) else host), port


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


# -- login -------------------------------------------------------------------------------------------------------------

_USER = re.compile(r"[^\s:/@!]+(?:@[^\s:/@!]+)*@[A-Za-z][\w.-]+", re.ASCII)
_TOKEN_NAME = re.compile(r"[A-Za-z][\w.-]+", re.ASCII)
TOKEN_NAME_RULE = "The name has two or more characters in Proxmox VE: a letter, then letters, digits, '.', '-' or '_'."  # noqa: S105


def read_credentials(raw: RawSettings) -> Token | Password:
    token = [*raw.get("token", []), *raw.get("token_secret", [])]
    password = raw.get("password", [])
    if not token and not password:
        raise _no_login(raw)
    if highest_rank(token) == highest_rank(password):
        contradiction(strongest(token)[0], password[0], "use a token or a password")
    # The source with precedence chooses the kind of login; the other kind in a weaker source is ignored.
    return _token(raw) if highest_rank(token) > highest_rank(password) else _login(raw)


def _no_login(raw: RawSettings) -> ConfigError:
    some = raw.get("user", next(iter(raw.values())))[0]
    needed = f"{_sibling(some, 'token')} and {_sibling(some, 'token_secret')}"
    if "user" in raw:
        return ConfigError(f"{_sibling(some, 'password')} is missing: set it, or set {needed}.")
    return ConfigError(f"{needed} are missing: set them to an API token (user@realm!name and its secret).")


def _token(raw: RawSettings) -> Token:
    if "token" not in raw:
        secret = raw["token_secret"][0]
        raise ConfigError(f"{_sibling(secret, 'token')} is missing: {secret.label} needs the token it belongs to.")
    if "token_secret" not in raw:
        token = raw["token"][0]
        raise ConfigError(f"{_sibling(token, 'token_secret')} is missing: {token.label} needs its secret.")
    user = raw["user"][0] if "user" in raw else None
    realm = raw["realm"][0] if "realm" in raw else None
    if len(raw.get("user", ())) > 1:
        require_agreement(raw["user"], lambda spelling: _user(spelling, realm))
    token_id = require_agreement(raw["token"], lambda spelling: _token_id(spelling, user, realm))
    token_secret = require_agreement(raw["token_secret"], as_secret)
    if not token_secret.reveal().isprintable():  # it goes into a header
        raise ConfigError(f"{raw['token_secret'][0].label} contains a line break: it must be the secret alone.")
    return Token(token_id, token_secret)


def _token_id(token: RawSetting, user: RawSetting | None, realm: RawSetting | None) -> str:
    owner, is_full, name = as_text(token).rpartition("!")
    if not _TOKEN_NAME.fullmatch(name):
        raise ConfigError(f"{token.label} must look like user@realm!name, as Proxmox VE shows it. {TOKEN_NAME_RULE}")
    if not is_full:
        if user is None:
            raise ConfigError(
                f"{_sibling(token, 'user')} is missing: {token.label} gives only the token's name, so set "
                "the user (user@realm) or write the name as user@realm!name."
            )
        return f"{_user(user, realm)}!{name}"
    full_owner = _with_realm(owner, token, realm)
    if user is not None and user.rank == token.rank and _user(user, realm) != full_owner:
        contradiction(user, token)
    return f"{full_owner}!{name}"


def _login(raw: RawSettings) -> Password:
    if "user" not in raw:
        password = raw["password"][0]
        raise ConfigError(f"{_sibling(password, 'user')} is missing: {password.label} needs the user (user@realm).")
    realm = raw["realm"][0] if "realm" in raw else None
    user = require_agreement(raw["user"], lambda spelling: _user(spelling, realm))
    return Password(user, require_agreement(raw["password"], as_secret))


def _user(user: RawSetting, realm: RawSetting | None) -> str:
    return _with_realm(as_text(user), user, realm)


def _with_realm(user: str, written_in: RawSetting, realm: RawSetting | None) -> str:
    """Add the realm: its own, the one set separately, or pam."""
    apart = as_text(realm) if realm is not None else "pam"
    full = user if "@" in user else f"{user}@{apart}"
    if not _USER.fullmatch(full):
        raise ConfigError(f"{written_in.label} must name the user as user@realm, such as root@pam.")
    if realm is not None and realm.rank == written_in.rank and full.rpartition("@")[2] != apart:
        contradiction(written_in, realm)
    return full


# -- trust -------------------------------------------------------------------------------------------------------------


def read_trust(raw: RawSettings) -> Trust:
    """By the system's CAs, a CA file, a fingerprint, or not checked."""
    verify = raw.get("verify", [])
    ca_files = [*raw.get("ca_file", []), *(spelling for spelling in verify if _is_path(spelling))]
    pins = strongest([*ca_files, *raw.get("fingerprint", [])])
    if verify and not require_agreement(verify, _verifies):
        if highest_rank(pins) < highest_rank(verify):
            return Trust(verify=False)
        if highest_rank(pins) == highest_rank(verify):
            raise ConfigError(
                f"{verify[0].label} disables certificate checks, but {pins[0].label} requires one: "
                "keep only one of them."
            )
    ca_files = [pin for pin in pins if pin in ca_files]
    fingerprints = [pin for pin in pins if pin not in ca_files]
    return Trust(
        ca_file=require_agreement(ca_files, _existing_file) if ca_files else None,
        fingerprint=require_agreement(fingerprints, _fingerprint) if fingerprints else None,
    )


def _is_path(verify: RawSetting) -> bool:
    return verify.spelling != "PROXMOX_TLS_INSECURE" and as_flag(verify) is None


def _verifies(verify: RawSetting) -> bool:
    flag = as_flag(verify)
    if verify.spelling != "PROXMOX_TLS_INSECURE":
        return flag is not False
    if flag is None:
        raise ConfigError(f"{verify.label} must be true or false.")
    return not flag


def _existing_file(raw: RawSetting) -> str:
    path = as_path(raw)
    if not path.is_file():
        names_a_file = raw.spelling.lower().endswith("ca_file")
        what = "the path of a CA file" if names_a_file else "true, false or a CA file"
        raise ConfigError(f"{raw.label} must be {what}, but {path} does not exist.")
    return str(path)


def _fingerprint(raw: RawSetting) -> str:
    return as_fingerprint(as_text(raw), raw.label)


def as_fingerprint(text: str, label: str) -> str:
    # The output of openssl may be pasted whole: "sha256 Fingerprint=AB:CD:..."
    digits = text.strip().rpartition("=")[2].replace(":", "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ConfigError(f"{label} must be a SHA-256 fingerprint, 64 hexadecimal digits with or without colons.")
    return digits
