"""Community scripts: an index of facts read from their texts, download, and running one unattended."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import re
import ssl
import tarfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from quorate.config.files import write_private
from quorate.documents import ACCEPTED, BodyRefused, Unreadable, read_body, read_json
from quorate.hints import Advice, tools
from quorate.problems import BadArgument, Conflict, NotConfigured, NotFound, TimedOut, Unreachable
from quorate.pve.errors import connection_failure
from quorate.suggestions import similar

Category = Literal["ct", "vm", "misc", "addon"]
FOLDERS: dict[str, Category] = {"ct": "ct", "vm": "vm", "tools/pve": "misc", "tools/addon": "addon"}
"""The project's folders. Scripts for nodes moved from misc/, but people still use that name."""
PATH = re.compile(rf"(?P<folder>{'|'.join(FOLDERS)})/(?P<slug>[A-Za-z0-9][A-Za-z0-9._-]*)\.sh")
_APP = re.compile(r'^APP="([^"$`]{1,80})"', re.M)
# var_cpu="2" or var_cpu="${var_cpu:-2}" at the start of a line: indented ones are conditional.
_DEFAULT = re.compile(r'^var_(\w+)="?(?:\$\{var_\w+:-)?([^"}$`\n]*)\}?"?\s*$', re.M)
_PORT = re.compile(r"\$\{IP\}:(\d{1,5})\b")


class Script(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    path: str
    name: str
    about: str = ""
    cpu: int | None = None
    ram: int | None = None
    """MB"""
    disk: int | None = None
    """GB"""
    os: str = ""
    version: str = ""
    unprivileged: bool | None = None
    tags: tuple[str, ...] = ()
    port: int | None = None

    @property
    def slug(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".sh")

    @property
    def category(self) -> Category:
        return FOLDERS[self.path.rpartition("/")[0]]


def parse_script(path: str, text: str) -> Script:
    """The defaults that the script sets, and the port of the address that it shows at its end."""
    defaults = dict(reversed(_DEFAULT.findall(text)))  # the first one counts
    app, port = _APP.search(text), _PORT.search(text)
    slug = path.rpartition("/")[2].removesuffix(".sh")
    tags = re.split(r"[;,\s]+", defaults.get("tags", "").lower())
    return Script(
        path,
        app[1] if app else slug,
        cpu=_number(defaults.get("cpu")),
        ram=_number(defaults.get("ram")),
        disk=_number(defaults.get("disk")),
        os=defaults.get("os", ""),
        version=defaults.get("version", ""),
        unprivileged={"1": True, "0": False}.get(defaults.get("unprivileged", "")),
        tags=tuple(tag for tag in tags if tag),
        port=int(port[1]) if port else None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


REFRESH = "Download the current index with `quorate scripts refresh`"


class Index(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    scripts: tuple[Script, ...]
    taken: float | None = None
    """When it was downloaded; None for the packaged one."""
    source: str = ""
    commit: str = ""

    def get(self, name: str, category: Category | None = None) -> Script:
        """Find a script by name (`jellyfin`) or path (`ct/jellyfin.sh`)."""
        key = name.strip().lower()
        matches = [
            script
            for script in self.scripts
            if key in (script.slug.lower(), script.path.lower()) and category in (None, script.category)
        ]
        if len(matches) > 1:
            raise BadArgument(
                f"There are several scripts {name!r}",
                why=f"They are {', '.join(script.path for script in matches)}",
                next_step="Choose one with category",
            )
        if not matches:
            near = similar(key, [script.slug for script in self.scripts], 3)
            raise NotFound(
                f"The index has no script {name!r}" + (f" of the category {category}" if category else ""),
                why=f"Similar names: {', '.join(near)}" if near else None,
                next_step=Advice("Search for it", tools.script_search).then(Advice(REFRESH)),
            )
        return matches[0]

    def matching(self, words: str, category: Category | None = None) -> list[Script]:
        """Scripts that contain all the words, best first."""
        terms = words.lower().split()
        ranked = [
            (rank, script.slug, script)
            for script in self.scripts
            if category in (None, script.category) and (rank := _rank(script, terms)) is not None
        ]
        return [script for *_, script in sorted(ranked, key=lambda entry: entry[:2])]


def _rank(script: Script, words: Iterable[str]) -> int | None:
    """The total distance of the words from the name; None if one is missing."""
    title = f"{script.slug} {script.name}".lower()
    rest = f"{script.about} {' '.join(script.tags)} {script.os}".lower()
    places = ({script.slug.lower(), script.name.lower()}, {*re.split(r"[\s-]+", title), *script.tags}, title, rest)
    total = 0
    for word in words:
        distance = next((n for n, place in enumerate(places) if word in place), None)
        if distance is None:
            return None
        total += distance
    return total


def current(fetched: Path) -> Index:
    """The downloaded index, else the packaged one."""
    try:
        data = fetched.read_bytes()
    except FileNotFoundError:
        return load_packaged_index()
    except OSError as error:
        raise NotConfigured(f"The index {fetched} cannot be read", why=error.strerror, next_step=REFRESH) from None
    try:
        index: Index = read_json(data, Index)
        return index
    except Unreadable as fault:
        raise NotConfigured(f"The index {fetched} cannot be used", why=f"It {fault}", next_step=REFRESH) from None


@cache
def load_packaged_index() -> Index:
    return msgspec.json.decode((resources.files(__package__) / "scripts.json").read_bytes(), type=Index)


# -- from their project ------------------------------------------------------------------------------------------------


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


async def fetch(address: str, limit: int, *, seconds: float = SECONDS, redirects: bool = False) -> bytes:
    """The content of an address, bounded in time and size. By default, redirects are not followed."""
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=ACCEPTED, auto_decompress=False) as session,
            session.get(
                address, allow_redirects=redirects, max_redirects=3, ssl=ssl.create_default_context()
            ) as answer,
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
            f"{address} cannot be read",
            why=connection_failure(error),
            next_step="Check the network connection of this server",
        ) from None


MOST_ARCHIVE = 128 * 1024 * 1024
MOST_UNPACKED = 1024 * 1024 * 1024
REFRESH_SECONDS = 300.0
_RAW = re.compile(r"https://raw\.githubusercontent\.com/(?P<owner>[^/]+)/(?P<repo>[^/]+)/(?P<ref>.+)")


def archive_of(base: str) -> str:
    """The address of all files at once: GitHub's archive, or archive.tar.gz of a mirror."""
    if match := _RAW.fullmatch(base.rstrip("/")):
        return f"https://codeload.github.com/{match['owner']}/{match['repo']}/tar.gz/{match['ref']}"
    return f"{base.rstrip('/')}/archive.tar.gz"


async def refresh(base: str, into: Path) -> Index:
    address = archive_of(base)
    data = await fetch(address, MOST_ARCHIVE, seconds=REFRESH_SECONDS)
    try:
        scripts, commit = await asyncio.to_thread(_read, data)
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
        raise Conflict(f"{address} is not an archive", why=str(error)) from None
    if not scripts:
        raise Conflict(f"{address} contains no scripts", why="It has no files like ct/NAME.sh")
    index = Index(tuple(sorted(scripts, key=lambda script: script.path)), time.time(), address, commit)
    write_private(into, msgspec.json.encode(index).decode())
    return index


def _read(data: bytes) -> tuple[list[Script], str]:
    known = {script.path: script for script in load_packaged_index().scripts}
    scripts = []
    # As a stream, so that every byte is read and counted once.
    with tarfile.open(fileobj=_BoundedGzip(fileobj=io.BytesIO(data)), mode="r|") as archive:
        commit = archive.pax_headers.get("comment", "")
        for member in archive:
            path = member.name.partition("/")[2]  # everything is in one folder, named after the commit
            if not (member.isreg() and PATH.fullmatch(path) and member.size <= MOST_SCRIPT):
                continue
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            scripts.append(
                _in_our_words(parse_script(path, content.read().decode("utf-8", "replace")), known.get(path))
            )
    return scripts, commit


class _BoundedGzip(gzip.GzipFile):
    """Limits how much a compressed stream may expand to."""

    _left = MOST_UNPACKED

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {MOST_UNPACKED} bytes")
        return data


def _in_our_words(script: Script, known: Script | None) -> Script:
    return msgspec.structs.replace(script, name=known.name, about=known.about) if known else script


# The script arrives on standard input and runs from a file, as its authors intend, without input. Its hash is checked
# again on the node.
RUNNER = """
set -eu; umask 077;
file=$(mktemp); trap "rm -f $file" EXIT; trap "exit 143" TERM HUP INT;
cat > "$file";
set -- "$1" $(sha256sum < "$file");
[ "$1" = "$2" ] || { echo "the script has changed on its way: $2" >&2; exit 120; };
bash "$file" < /dev/null
""".replace("\n", " ").strip()

# Variables that keep the project's functions from asking: default installation, no menus, no update of the node first,
# no telemetry question.
QUIET = {"TERM": "xterm", "mode": "default", "PHS_SILENT": "1", "DISABLE_UPDATE": "yes", "DIAGNOSTICS": "no"}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_VALUE = re.compile(r"(?!-)[A-Za-z0-9_.,:/@+=%~-]{0,1000}")
_MORE = {"tags": ";", "ssh_authorized_key": " "}
"""Additional characters of some settings. Elsewhere, a blank would split an argument, and the rest be an option."""
SECRET = frozenset({"pw", "password"})


def environment(settings: Mapping[str, object], variables: Mapping[str, str]) -> dict[str, str]:
    """Variables for the script: `cpu` becomes `var_cpu`, so that no other shell variable can be set."""
    return {
        **QUIET,
        **variables,
        **{f"var_{name.removeprefix('var_')}": _text(name, settings[name]) for name in settings},
    }


def _text(name: str, value: object) -> str:
    plain = name.removeprefix("var_")
    if not _NAME.fullmatch(plain) or plain == "ctid":
        raise BadArgument(
            f"{name!r} is not a script setting",
            why="ctid is a separate argument"
            if plain == "ctid"
            else "Settings have names like cpu, ram, disk, hostname",
        )
    if plain in SECRET:
        raise BadArgument(
            "Passwords cannot be passed to scripts",
            why="They would be in the environment of everything that the script starts",
            next_step="Omit it; enter the container from its node, or set a key with ssh_authorized_key",
        )
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if not _VALUE.fullmatch(text.replace(_MORE[plain], "") if plain in _MORE else text):
        raise BadArgument(
            f"The setting {name}={text[:60]!r} cannot be used",
            why="Scripts put values into commands: only letters, digits and _.,:/@+=%~- are allowed, "
            "without a leading -",
        )
    return text
