"""The tables, by version. Opening a database upgrades it to the newest version; released versions never change."""

from __future__ import annotations

from quorate.state.store import StateUnavailable

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
        # One open request for the same call by the same caller, even under concurrency.
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
        # Installed services, runs of plans and backups.
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
    # Changes without a final outcome, and the process that runs each; '' if that process gave it up.
    (
        """CREATE TABLE quorate_changes (
            id TEXT PRIMARY KEY,
            trail TEXT NOT NULL,
            owner TEXT NOT NULL,
            begun DOUBLE PRECISION NOT NULL
        )""",
    ),
    # Durable runs, each one JSON document; the columns are what is searched for.
    (
        """CREATE TABLE quorate_runs (
            id TEXT PRIMARY KEY,
            kind TEXT NOT NULL,
            cluster TEXT NOT NULL,
            state TEXT NOT NULL,
            owner TEXT NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            version BIGINT NOT NULL,
            entry TEXT NOT NULL
        )""",
        "CREATE INDEX quorate_runs_state ON quorate_runs (state, created)",
    ),
    # What the watch has found and noticed, and the messages about it.
    (
        """CREATE TABLE quorate_findings (
            id TEXT PRIMARY KEY,
            cluster TEXT NOT NULL,
            kind TEXT NOT NULL,
            finding_key TEXT NOT NULL,
            source TEXT NOT NULL,
            severity TEXT NOT NULL,
            entry TEXT NOT NULL,
            state TEXT NOT NULL,
            opened DOUBLE PRECISION NOT NULL,
            last_seen DOUBLE PRECISION NOT NULL,
            seen BIGINT NOT NULL,
            acknowledged_by TEXT,
            acknowledged_at DOUBLE PRECISION,
            note TEXT NOT NULL DEFAULT '',
            silenced_until DOUBLE PRECISION,
            resolved DOUBLE PRECISION,
            event TEXT NOT NULL,
            revision BIGINT NOT NULL,
            notified BIGINT NOT NULL
        )""",
        # One open finding of a key, even if two watchers overlap for a moment.
        "CREATE UNIQUE INDEX quorate_findings_open ON quorate_findings (cluster, finding_key) WHERE resolved IS NULL",
        "CREATE INDEX quorate_findings_opened ON quorate_findings (opened)",
        """CREATE TABLE quorate_events (
            id TEXT PRIMARY KEY,
            cluster TEXT NOT NULL,
            time DOUBLE PRECISION NOT NULL,
            kind TEXT NOT NULL,
            target TEXT NOT NULL,
            says TEXT NOT NULL
        )""",
        "CREATE INDEX quorate_events_time ON quorate_events (time)",
        """CREATE TABLE quorate_deliveries (
            id TEXT PRIMARY KEY,
            channel TEXT NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            due DOUBLE PRECISION NOT NULL,
            together BIGINT NOT NULL,
            finding TEXT NOT NULL,
            event TEXT NOT NULL,
            notice TEXT NOT NULL,
            state TEXT NOT NULL,
            batch TEXT NOT NULL DEFAULT '',
            owner TEXT NOT NULL DEFAULT '',
            attempts BIGINT NOT NULL DEFAULT 0,
            tried DOUBLE PRECISION,
            error TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX quorate_deliveries_open ON quorate_deliveries (channel, due) WHERE state <> 'sent'",
        "CREATE INDEX quorate_deliveries_created ON quorate_deliveries (created)",
    ),
    (
        "ALTER TABLE quorate_approvals ADD COLUMN word TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE quorate_approvals ADD COLUMN differences TEXT NOT NULL DEFAULT '[]'",
        # People in a browser; `sealed` is their token, encrypted with a key that only their cookie has.
        """CREATE TABLE quorate_browser_sessions (
            id TEXT PRIMARY KEY,
            sealed TEXT NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            used DOUBLE PRECISION NOT NULL
        )""",
    ),
    # What limits count, in each place: changes of the last hour and those in progress, as one JSON document.
    (
        """CREATE TABLE quorate_tallies (
            place TEXT PRIMARY KEY,
            version BIGINT NOT NULL,
            entry TEXT NOT NULL
        )""",
    ),
    # What a request acts on, so that a denial is remembered; the change that used an approval, and how that ended.
    (
        "ALTER TABLE quorate_approvals ADD COLUMN targets TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE quorate_approvals ADD COLUMN change_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE quorate_approvals ADD COLUMN outcome TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE quorate_approvals ADD COLUMN ended DOUBLE PRECISION",
    ),
)
NEWEST = len(_VERSIONS)


def statements_since(version: int, place: str) -> list[str]:
    """The statements that upgrade a database of this version (0: an empty one)."""
    if version > NEWEST:
        raise StateUnavailable(
            f"The state in {place} was written by a newer Quorate (schema {version}, this one knows {NEWEST})",
            next_step="Use that version, or another place for the state",
        )
    return [statement for statements in _VERSIONS[version:] for statement in statements]
