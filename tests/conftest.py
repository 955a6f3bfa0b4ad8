"""Fixtures and hooks shared by all tests."""

import contextlib
import gc
import importlib
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from quorate.homelab import vault
from quorate.state import passphrase
from tests.rigs.mcp_session import Rig, StartQuorate, rig

# The duration of examples depends on the machine, not on the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Far more than Python's 700: collecting garbage after every few calls takes a twentieth of the time.
gc.set_threshold(50_000)

MEMORY = "/dev/shm"
ROOM = 4 << 30

_homes = itertools.count()


def _use_memory() -> None:
    """Keep temporary files in memory: every change of state is synced, which takes milliseconds on a disk."""
    if os.environ.get("TMPDIR") or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ROOM and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


_use_memory()

# Started in the background of a shell, pytest and all its processes would ignore Ctrl-C, which tests send to commands.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each of several workers import another part of the tests first.

    To rewrite the asserts of all tests takes seconds. This way the workers of a fresh clone share that, and each finds
    in the bytecode cache what the others have rewritten.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    asked = [session.config.invocation_params.dir / argument.partition("::")[0] for argument in session.config.args]
    files = sorted({file for path in asked for file in ([path] if path.is_file() else path.rglob("test_*.py"))})
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in files[len(files) * number // count : len(files) * (number + 1) // count]:
        _import(file)


def _import(file: Path) -> None:
    folder = next(folder for folder in file.parents if not (folder / "__init__.py").exists())
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # as pytest does when it collects the file
    with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection tries again and reports it
        importlib.import_module(".".join(file.relative_to(folder).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before `-m` asks for the marks."""
    _take_share(config, items)


def _take_share(config: pytest.Config, items: list[pytest.Item]) -> None:
    """SHARE=2/4 runs every fourth thorough test, starting with the second."""
    if not (share := os.environ.get("SHARE")):
        return
    numbers = [int(number) if number.isdecimal() else 0 for number in share.split("/")]
    if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1]:
        raise pytest.UsageError(f"SHARE={share} is not a share such as 2/4")
    first, step = numbers
    thorough = [item for item in items if item.get_closest_marker("thorough")]
    others = set(thorough) - set(thorough[first - 1 :: step])
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    """Thousands of tests and their imports live until the end, so the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """pytest collects garbage several more times at the end; only what the last tests left is worth a look."""
    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """For the whole session, so that the tests of a module can share an asynchronous fixture."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The machine's own settings must not reach a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("PROXMOX_", "QUORATE_")):
                patch.delenv(name)
        _move_home(patch, tmp_path_factory)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_name_server() -> Iterator[None]:
    """Names of simulated nodes are unknown at once; a name server may take five seconds to say so."""
    resolve = socket.getaddrinfo
    local = {None, "", "localhost", socket.gethostname()}

    def resolve_locally(
        host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        return resolve(host, port, family, type, proto, flags if name in local else flags | socket.AI_NUMERICHOST)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", resolve_locally)
        yield


@pytest.fixture(autouse=True)
def _home_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    _move_home(monkeypatch, tmp_path_factory)


@pytest.fixture(autouse=True)
def _quick_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking a passphrase takes tenths of a second on purpose (tests/state/test_passphrase.py)."""
    monkeypatch.setattr(passphrase, "COST", 2**4)
    monkeypatch.setattr(vault, "LEAST_COST", 2**4)


def _move_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """To a folder that is not there yet."""
    home = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home))


@pytest.fixture
async def start_quorate(tmp_path: Path) -> AsyncIterator[StartQuorate]:
    """Start a server in front of a cluster of its own, with the options of `rig`; it stops when the test ends."""
    async with AsyncExitStack() as stack:

        async def start(folder: Path = tmp_path, /, **options: Any) -> Rig:
            return await stack.enter_async_context(rig(folder, **options))

        yield start


@pytest.fixture
async def quorate(request: pytest.FixtureRequest, start_quorate: StartQuorate) -> Rig:
    """A server in front of a simulated cluster; `@pytest.mark.quorate(ssh=True)` gives it options of `rig`."""
    marker = request.node.get_closest_marker("quorate")
    return await start_quorate(**(marker.kwargs if marker else {}))
