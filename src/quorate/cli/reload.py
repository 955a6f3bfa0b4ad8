"""Settings that change while the server runs: what is taken at once, and what needs a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quorate import log
from quorate.config import ClusterSettings, ConfigError, Settings
from quorate.config.policy import NO_POLICY
from quorate.config.settings import GENERAL

if TYPE_CHECKING:
    from quorate.app import App

LOOK_SECONDS = 2.0
TAKEN = (
    "access", "toolsets", "look_inside", "approval", "approve_changes", "opt_ins", "policy", "log_format", "log_level"
)  # fmt: skip
"""What the server takes at once; access and rules of a cluster, too."""
UNRELATED = ("clusters", "warnings", "notes", "config_file", "problem", "gate_chosen")
"""Compared in another way, or follows from the rest."""
NAMES = {
    "policy": "rules and limits",
    "command_rules": "[inside]",
    "guest_defaults": "[defaults]",
    "upload_dirs": "[images]",
    "image_catalog": "[images.catalog]",
}
TABLES = ("homelab", "http", "watch")
_LOG = logging.getLogger(__name__)


class FileChanges:
    """Whether a file has changed since it was last looked at."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: tuple[int, int, int] | None = None
        self._known = self._state()

    def look(self) -> bool:
        before, self._known = self._known, self._state()
        return before != self._known

    def _state(self) -> tuple[int, int, int] | None:
        try:
            now = self._file.stat() if self._file else None
        except OSError:  # it is being written
            return self._known
        return (now.st_mtime_ns, now.st_size, now.st_ino) if now else None


class Reloader:
    """Reloads the settings on SIGHUP, or when their file has changed."""

    def __init__(self, app: App, settings: Settings, changes: FileChanges, read: Callable[[], Settings]) -> None:
        self._app = app
        self._started_with = settings
        self._last = settings
        self._changes = changes
        self._read = read

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """While the server runs: SIGHUP, a look at the file every other second, and one before every call."""
        self._app.pipeline.sites.refresh = self.if_changed
        loop, hangup = asyncio.get_running_loop(), getattr(signal, "SIGHUP", None)  # not on Windows
        if hangup is not None:
            loop.add_signal_handler(hangup, self.reload)
        looking = asyncio.create_task(self._keep_looking())
        try:
            yield
        finally:
            looking.cancel()
            if hangup is not None:
                loop.remove_signal_handler(hangup)

    async def _keep_looking(self) -> None:
        """So that a mistake is reported when the file is saved, not at the next call."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.if_changed()

    def if_changed(self) -> None:
        if self._changes.look():
            self._adopt()

    def reload(self) -> None:
        self._changes.look()
        self._adopt()

    def _adopt(self) -> None:
        """An error in the new settings keeps the old ones: a mistake never loosens anything."""
        try:
            settings = self._read()
            self._app.adopt(settings)
        except ConfigError as error:
            _LOG.error("settings not reloaded, the old ones remain in effect: %s", error)
            return
        log.set_up(settings.log_format, settings.log_level)
        log.sanitize_lines(self._app.pipeline.sanitize)
        before, self._last = self._last, settings
        taken, waiting = list(taken_at_once(before, settings)), list(needing_restart(self._started_with, settings))
        _LOG.info("settings reloaded; in effect now: %s", ", ".join(taken) or "nothing new")
        if waiting:
            _LOG.warning("not in effect until Quorate is restarted (over stdio: the client): %s", ", ".join(waiting))


def taken_at_once(before: Settings, after: Settings) -> Iterator[str]:
    for name in TAKEN:
        if getattr(before, name) != getattr(after, name):
            yield _name(name)
    old = {cluster.name: cluster for cluster in before.clusters}
    for cluster in after.clusters:
        if (known := old.get(cluster.name)) is not None:
            if known.access != cluster.access:
                yield f"access of [clusters.{cluster.name}]"
            if known.policy != cluster.policy:
                yield f"rules and limits of [clusters.{cluster.name}]"


def needing_restart(before: Settings, after: Settings) -> Iterator[str]:
    """`before`: the settings with which the server was started."""
    old, new = (
        {cluster.name: _connection_of(cluster) for cluster in settings.clusters} for settings in (before, after)
    )
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            change = "new" if name not in old else "removed" if name not in new else "changed"
            yield f"[clusters.{name}] ({change})"
    for field in fields(Settings):
        if field.name not in (*TAKEN, *UNRELATED) and getattr(before, field.name) != getattr(after, field.name):
            yield _name(field.name)


def _connection_of(cluster: ClusterSettings) -> ClusterSettings:
    return replace(cluster, access=None, policy=NO_POLICY)


def _name(name: str) -> str:
    """As the operator writes it."""
    if name in TABLES:
        return f"[{name}]"
    keys = GENERAL[name].keys if name in GENERAL else ()
    return NAMES.get(name) or next(iter(keys or ()), name)
