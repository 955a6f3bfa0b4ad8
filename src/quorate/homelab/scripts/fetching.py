"""Getting files from the address where the operator's scripts come from."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from quorate.problems import Conflict, NotFound, TimedOut, Unreachable

SECONDS = 30.0
MOST_SCRIPT = 256 * 1024
ADDRESS = re.compile(r"https?://[^\s\"'`<>()|;]+")
_RAN = re.compile(
    r"(?:^|[\s;&|(])(?:source|\.|bash|sh)\s[^\n]*(?:curl|wget)|(?:curl|wget)[^\n|]*\|\s*(?:\$STD\s+)?(?:ba)?sh\b"
)
"""A line that runs what it fetches: `source <(curl …)`, `bash -c "$(curl …)"`, `curl … | bash`."""


@dataclass(frozen=True)
class Fetched:
    """The text of a script, as it was at one moment."""

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
        """Further addresses whose content it runs; what they hold is not known here."""
        lines = [line for line in self.text.splitlines() if _RAN.search(line) and not line.lstrip().startswith("#")]
        return list(dict.fromkeys(_whole(address) for line in lines for address in ADDRESS.findall(line)))


def _whole(address: str) -> str:
    """`${URL:-https://example.org}/a.sh` leads to https://example.org/a.sh unless somebody sets another."""
    return address if "{" in address else address.replace("}", "")


async def fetch_script(base: str, path: str) -> Fetched:
    address = f"{base.rstrip('/')}/{path}"
    data = await fetch(address, MOST_SCRIPT)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("#!"):
        raise Conflict(
            f"{address} holds no script", why="It is no text that begins with #!", next_step="Is scripts_url right?"
        )
    return Fetched(address, data)


async def fetch(address: str, most: int, *, seconds: float = SECONDS) -> bytes:
    """The content of an address, if it is there, in time and not too long. Nobody is followed elsewhere."""
    import aiohttp  # only here is it needed for anything but PVE

    limit = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, trust_env=True) as session,
            session.get(address, allow_redirects=False) as answer,
        ):
            if answer.status == 404:
                raise NotFound(f"There is nothing at {address}", next_step="`quorate scripts refresh` renews the index")
            if answer.status != 200:
                raise Unreachable(f"{address} answered {answer.status}", why=answer.reason)
            data = bytearray()
            async for part in answer.content.iter_chunked(65536):
                data += part
                if len(data) > most:
                    raise Conflict(f"What stands at {address} is longer than {most} bytes")
            return bytes(data)
    except TimeoutError:
        raise TimedOut(f"{address} was not read within {seconds:.0f} seconds") from None
    except aiohttp.ClientError as error:
        raise Unreachable(
            f"{address} cannot be read", why=str(error), next_step="Is there a way to the network?"
        ) from None
