"""Opens one SSH connection with strict checks, and explains why it failed."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.problems import (
    REFUSED_LOGIN,
    AuthenticationFailed,
    BadArgument,
    NotConfigured,
    Problem,
    TimedOut,
    Unreachable,
)
from quorate.ssh.host_keys import HostKeys
from quorate.ssh.target import SshTarget

if TYPE_CHECKING:
    import asyncssh

CONNECT_SECONDS = 15.0
KEEPALIVE_SECONDS = 5.0
KEEPALIVES_MISSED = 3
LONGEST_KEY = 64 * 1024
USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk", "id_ed448", "id_dsa")
"""In ~/.ssh, as asyncssh looks for them."""


async def connect(
    target: SshTarget,
    host_keys: HostKeys,
    *,
    through: asyncssh.SSHClientConnection | None = None,
    lost: Callable[[], None] | None = None,
) -> asyncssh.SSHClientConnection:
    """Log in to `target`; `lost` is called when the connection ends, for any reason."""
    import asyncssh

    class Client(asyncssh.SSHClient):
        def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
            shown.append(key)
            return False

        def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
            if lost is not None:
                lost()

    shown: list[asyncssh.SSHKey] = []
    login = _login(target)
    try:
        return await asyncssh.connect(
            target.host,
            target.port,
            tunnel=through or (),
            username=target.user,
            known_hosts=host_keys.match,
            server_host_key_algs=host_keys.key_algorithms(target),
            client_factory=Client,
            config=None,
            gss_host=None,
            x509_trusted_certs=None,
            connect_timeout=CONNECT_SECONDS,
            login_timeout=CONNECT_SECONDS,
            keepalive_interval=KEEPALIVE_SECONDS,
            keepalive_count_max=KEEPALIVES_MISSED,
            encoding=None,
            **login,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise host_keys.refusal(target, shown[0] if shown else None, str(error)) from None
    except asyncssh.KeyExchangeFailed as error:
        if "host key" in str(error):
            raise host_keys.refusal(target, None, str(error)) from None
        raise _unreachable(target, f"The two sides have no encryption algorithm in common: {error}") from None
    except asyncssh.PermissionDenied:
        raise _not_let_in(target, login) from None
    except asyncssh.ChannelOpenError as error:
        raise _unreachable(target, f"The jump host cannot reach it: {error.reason}") from None
    except ConnectionRefusedError:
        raise _unreachable(target, "It refused the connection: nothing listens on that port") from None
    except (asyncssh.Error, ConnectionError) as error:
        raise _unreachable(target, f"The connection broke during the handshake: {error}") from None
    except TimeoutError:
        raise TimedOut(
            f"{target.address} did not answer SSH within {CONNECT_SECONDS:g} s",
            next_step="Check the address and port, that the host is on, and that no firewall drops the connection",
        ) from None
    except socket.gaierror:
        raise _unreachable(target, f"The name {target.host} cannot be resolved on this machine") from None
    except OSError as error:
        raise _unreachable(target, os.strerror(error.errno) if error.errno else str(error)) from None
    except ValueError as error:  # a name or password with control characters, or too long
        raise BadArgument(
            f"Logging in to {target!s} is not possible",
            why=str(error),
            next_step="Check the user, the password and the address",
        ) from None


def has_usual_keys() -> bool:
    """True if a login without a configured key or password has any key to offer."""
    folder = Path("~/.ssh").expanduser()
    return bool(os.environ.get("SSH_AUTH_SOCK")) or any((folder / name).is_file() for name in USUAL_KEYS)


def _login(target: SshTarget) -> dict[str, Any]:
    """Key file, else password, else what `ssh` itself would try: the agent's keys and the default files."""
    agent = os.environ.get("SSH_AUTH_SOCK") or None
    password = target.password.reveal() if target.password else None
    if target.key is not None:
        return {**_key(target.key, agent), "password": password}
    if password is not None:
        return {"client_keys": None, "agent_path": None, "password": password}
    return {"agent_path": agent, "password": None}


def _key(file: Path, agent: str | None) -> dict[str, Any]:
    import asyncssh

    try:
        return {"client_keys": [asyncssh.import_private_key(_plain_file(file))], "agent_path": None}
    except OSError as error:
        raise NotConfigured(
            f"The SSH key {file} cannot be read",
            why=error.strerror,
            next_step="Correct the path or its permissions; the file must belong to the user that Quorate runs as",
        ) from None
    except (asyncssh.KeyEncryptionError, asyncssh.KeyImportError) as error:
        if not isinstance(error, asyncssh.KeyEncryptionError) and "assphrase" not in str(error):
            raise NotConfigured(f"{file} is not a private SSH key", why=str(error)) from None
    public = file.with_name(f"{file.name}.pub")
    if agent is not None and public.is_file():  # the agent has it unlocked
        return {"client_keys": (), "agent_path": agent, "agent_identities": [str(public)]}
    raise NotConfigured(
        f"The SSH key {file} is protected by a passphrase",
        why="Quorate does not ask for passphrases",
        next_step=f"Unlock it with `ssh-add {file}` in the session that starts Quorate (with {public.name} in the same "
        "folder), "
        "or create a separate key for Quorate without a passphrase",
    )


def _plain_file(file: Path) -> bytes:
    """Callers may name a key file: an endless device or an empty pipe must not block the server."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file")
        return opened.read(LONGEST_KEY)


def _not_let_in(target: SshTarget, login: dict[str, Any]) -> AuthenticationFailed:
    if target.key is not None:
        tried = f"the key {target.key}" + (" and the password" if target.password else "")
    elif target.password is not None:
        tried = "the password"
    else:
        tried = "the keys of the SSH agent" if login["agent_path"] else "the default keys of ~/.ssh"
    login_there = shlex.quote(f"{target.user}@{target.host}")
    return AuthenticationFailed(
        f"{target.address} did not let {target.user} in over SSH",
        why=f"It refused {tried}",
        next_step=f"Add the public key to ~/.ssh/authorized_keys of {target.user} there "
        f"(`ssh-copy-id -p {target.port} {login_there}`), or configure another user or key",
        facts={REFUSED_LOGIN: target.user},
    )


def _unreachable(target: SshTarget, why: str) -> Problem:
    return Unreachable(
        f"{target.address} cannot be reached over SSH",
        why=why,
        next_step="Check the address and port, and that an SSH server runs there",
    )
