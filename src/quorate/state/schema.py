"""The tables, by version. A database is brought to the newest version when it is opened; a version is never edited."""

from __future__ import annotations

from quorate.state.database import StateUnavailable

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS quorate_schema (version BIGINT PRIMARY KEY)"
READ_VERSION = "SELECT max(version) AS version FROM quorate_schema"
WRITE_VERSION = "INSERT INTO quorate_schema (version) VALUES ($1)"

# Times are seconds since the epoch, lists are JSON, so that one schema serves both databases.
_VERSIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE quorate_approvals (
            id TEXT PRIMARY KEY,
            created DOUBLE PRECISION NOT NULL,
            expires DOUBLE PRECISION NOT NULL,
            caller TEXT NOT NULL,
            cluster TEXT NOT NULL,
            tool TEXT NOT NULL,
            risk TEXT NOT NULL,
            digest TEXT NOT NULL,
            identity TEXT NOT NULL,
            summary TEXT NOT NULL,
            plan TEXT NOT NULL,
            state TEXT NOT NULL,
            answered_by TEXT,
            answered_at DOUBLE PRECISION,
            reason TEXT
        )""",
        # One open request for the same thing by the same caller, however many ask at once.
        """CREATE UNIQUE INDEX quorate_approvals_open ON quorate_approvals (caller, digest)
            WHERE state IN ('pending', 'approved')""",
        "CREATE INDEX quorate_approvals_created ON quorate_approvals (created)",
        """CREATE TABLE quorate_operator (
            name TEXT PRIMARY KEY,
            passphrase TEXT NOT NULL,
            tries BIGINT NOT NULL,
            last_try DOUBLE PRECISION NOT NULL
        )""",
        """CREATE TABLE quorate_tokens (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            secret_sha256 TEXT NOT NULL,
            access TEXT NOT NULL,
            toolsets TEXT,
            clusters TEXT,
            created DOUBLE PRECISION NOT NULL,
            expires DOUBLE PRECISION,
            last_used DOUBLE PRECISION,
            revoked DOUBLE PRECISION
        )""",
        "CREATE UNIQUE INDEX quorate_tokens_name ON quorate_tokens (name) WHERE revoked IS NULL",
        "CREATE TABLE quorate_audit (seq BIGINT PRIMARY KEY, entry TEXT NOT NULL)",
        "CREATE TABLE quorate_audit_head (name TEXT PRIMARY KEY, seq BIGINT NOT NULL, hash TEXT NOT NULL)",
    ),
    ("CREATE TABLE quorate_keys (name TEXT PRIMARY KEY, key TEXT NOT NULL)",),
    (
        "CREATE TABLE quorate_hosts (name TEXT PRIMARY KEY, entry TEXT NOT NULL)",
        """CREATE TABLE quorate_devices (
            id BIGINT PRIMARY KEY,
            identity TEXT NOT NULL,
            entry TEXT NOT NULL,
            first_seen DOUBLE PRECISION NOT NULL,
            last_seen DOUBLE PRECISION NOT NULL
        )""",
        "CREATE UNIQUE INDEX quorate_devices_identity ON quorate_devices (identity)",
        """CREATE TABLE quorate_device_changes (
            id TEXT PRIMARY KEY,
            device BIGINT NOT NULL,
            time DOUBLE PRECISION NOT NULL,
            changes TEXT NOT NULL
        )""",
        "CREATE INDEX quorate_device_changes_time ON quorate_device_changes (time)",
        # Installed services, runs of plans and backups: whatever has an id, an owner and a history.
        """CREATE TABLE quorate_records (
            kind TEXT NOT NULL,
            id TEXT NOT NULL,
            entry TEXT NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            changed DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (kind, id)
        )""",
    ),
    ("ALTER TABLE quorate_approvals ADD COLUMN remarks TEXT NOT NULL DEFAULT '[]'",),
)
NEWEST = len(_VERSIONS)


def statements_since(version: int, place: str) -> list[str]:
    """What brings a database of this version (0: an empty one) to the newest."""
    if version > NEWEST:
        raise StateUnavailable(
            f"The state in {place} was made by a newer Quorate (schema {version}, this one knows {NEWEST})",
            next_step="Use that version, or another place for the state",
        )
    return [statement for statements in _VERSIONS[version:] for statement in statements]
