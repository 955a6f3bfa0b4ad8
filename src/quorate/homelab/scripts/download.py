"""Downloads files from the configured source of scripts."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from quorate.http_body import ACCEPTED, BodyRefused, read_body
from quorate.problems import Conflict, NotFound, TimedOut, Unreachable

SECONDS = 30.0
MOST_SCRIPT = 256 * 1024
ADDRESS = re.compile(r"https?://[^\s\"'`<>()|;]+")
_RAN = re.compile(
    r"(?:^|[\s;&|(])(?:source|\.|bash|sh)\s[^\n]*(?:curl|wget)|(?:curl|wget)[^\n|]*\|\s*(?:\$STD\s+)?(?:ba)?sh\b"
)
"""A line that runs what it downloads: `source <(curl …)`, `bash -c "$(curl …)"`, `curl … | bash`."""


@dataclass(frozen=True)
class ScriptDownload:
    """A script as it was downloaded."""

    address: str
    data: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def text(self) -> str:
        return self.data.decode()

    @property
    def runs_also(self) -> list[str]:
        """Further addresses whose content it runs, which is unknown here."""
        lines = [line for line in self.text.splitlines() if _RAN.search(line) and not line.lstrip().startswith("#")]
        return list(dict.fromkeys(_whole(address) for line in lines for address in ADDRESS.findall(line)))


def _whole(address: str) -> str:
    """`${URL:-https://example.org}/a.sh` is https://example.org/a.sh by default."""
    return address if "{" in address else address.replace("}", "")


async def fetch_script(base: str, path: str) -> ScriptDownload:
    address = f"{base.rstrip('/')}/{path}"
    data = await fetch(address, MOST_SCRIPT)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("#!"):
        raise Conflict(
            f"{address} is not a script", why="It is not a text that starts with #!", next_step="Check scripts_url"
        )
    return ScriptDownload(address, data)


async def fetch(address: str, limit: int, *, seconds: float = SECONDS) -> bytes:
    """The content of an address, bounded in time and size. Redirects are not followed."""
    from quorate.http_client import aiohttp, public_context  # not needed to list the tools

    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=ACCEPTED, auto_decompress=False) as session,
            session.get(address, allow_redirects=False, ssl=public_context()) as answer,
        ):
            if answer.status == 404:
                raise NotFound(f"{address} does not exist", next_step="Update the index: `quorate scripts refresh`")
            if answer.status != 200:
                raise Unreachable(f"{address} answered {answer.status}", why=answer.reason)
            return bytes(await read_body(answer, limit))
    except BodyRefused as fault:
        raise Conflict(f"The content of {address} was not read", why=f"It {fault}") from None
    except TimeoutError:
        raise TimedOut(f"{address} was not read within {seconds:.0f} seconds") from None
    except aiohttp.ClientError as error:
        raise Unreachable(
            f"{address} cannot be read", why=str(error), next_step="Check the network connection of this server"
        ) from None
