"""Where the state lives: opened when needed, private, the same for one file and one PostgreSQL."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

import pytest

from quorate.runs.store import RunStore
from quorate.state.postgres import safe_address
from quorate.state.store import StateUnavailable, Store, open_store
from tests.rigs import races
from tests.rigs.manual_clock import HandClock
from tests.rigs.postgres import PostgresServer
from tests.rigs.processes import FORKED

pytestmark = pytest.mark.anyio


async def test_nothing_is_touched_before_the_first_use(tmp_path, clock):
    async with open_store(str(tmp_path / "state" / "quorate.db"), clock=clock) as store:
        assert list(tmp_path.iterdir()) == []
        await store.ready()
        assert (tmp_path / "state" / "quorate.db").exists()


def test_importing_the_store_loads_no_database_driver():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, quorate.state.store; print([*sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "'quorate.state.store'" in loaded
    assert "'sqlite3'" not in loaded
    assert "'asyncpg'" not in loaded


async def test_file_and_folder_are_private(tmp_path, clock):
    file = tmp_path / "state" / "quorate.db"
    async with open_store(str(file), clock=clock) as store:
        await store.execute("DELETE FROM quorate_tokens")
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in file.parent.iterdir()} == {0o600}


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path, clock):
    file = tmp_path / "quorate.db"
    file.touch(0o644)
    async with open_store(str(file), clock=clock) as store:
        await store.ready()
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_place_that_cannot_even_be_looked_at_is_not_taken_for_an_empty_one(tmp_path, clock):
    async with open_store(str(tmp_path / ("x" * 300) / "quorate.db"), clock=clock) as store:
        with pytest.raises(StateUnavailable, match="cannot be used"):
            await RunStore(store).list()


async def test_a_tilde_is_the_home_folder(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    async with open_store("~/quorate.db", clock=clock) as store:
        await store.ready()
        assert store.place == str(tmp_path / "quorate.db")


async def test_what_is_written_by_one_is_read_by_the_other(store: Store, replica: Store):
    written = await store.execute(
        "INSERT INTO quorate_audit_head (name, seq, hash) VALUES ($1, $2, $3)", "näme", 2**40, "x'; DROP TABLE y; --"
    )
    assert written == 1
    assert await replica.fetch("SELECT * FROM quorate_audit_head") == [
        {"name": "näme", "seq": 2**40, "hash": "x'; DROP TABLE y; --"}
    ]
    assert await replica.execute("UPDATE quorate_audit_head SET seq = 0 WHERE name = $1", "another") == 0


async def test_text_that_databases_refuse_can_be_stored(store: Store):
    await store.execute("INSERT INTO quorate_audit_head (name, seq, hash) VALUES ($1, 1, $2)", "nul \0", "half \ud800")
    assert await store.fetch("SELECT seq FROM quorate_audit_head WHERE name = $1", "nul \0") == [{"seq": 1}]


async def test_the_tables_are_made_once_when_many_processes_start_together(location: str):
    with ProcessPoolExecutor(4, mp_context=FORKED) as processes:
        loop = asyncio.get_running_loop()
        started = [loop.run_in_executor(processes, races.start, location, 5) for _ in range(4)]
        assert await asyncio.gather(*started) == [[1] * 5] * 4


async def test_state_of_a_newer_version_is_left_alone(location: str, store: Store, replica: Store):
    await store.execute("INSERT INTO quorate_schema (version) VALUES (99)")
    with pytest.raises(StateUnavailable, match="newer Quorate"):
        await replica.ready()


async def test_a_file_that_is_no_database_is_named(tmp_path, clock):
    file = tmp_path / "quorate.db"
    file.write_text("a shopping list, long enough to be no database header at all" * 20)
    async with open_store(str(file), clock=clock) as store:
        with pytest.raises(StateUnavailable, match=r"quorate\.db cannot be used\. file is not a database"):
            await store.ready()


async def test_a_place_where_no_file_can_be_is_named_and_tried_again(tmp_path, clock):
    (tmp_path / "state").write_text("in the way")
    async with open_store(str(tmp_path / "state" / "quorate.db"), clock=clock) as store:
        with pytest.raises(StateUnavailable, match="cannot be used"):
            await store.ready()
        (tmp_path / "state").unlink()
        await store.ready()


def test_other_databases_are_refused_at_once(clock):
    with pytest.raises(StateUnavailable, match=r"mysql://.*postgresql://"):
        open_store("mysql://user:word@host/name", clock=clock)


async def test_without_the_driver_the_extra_is_named(clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    async with open_store("postgresql://ada:hunter2@db.example/quorate", clock=clock) as store:
        with pytest.raises(StateUnavailable) as refusal:
            await store.ready()
    assert "quorate[postgres]" in str(refusal.value)
    assert "db.example/quorate" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


async def test_a_server_that_is_away_is_named_without_the_password(clock, unused_port):
    pytest.importorskip("asyncpg")
    async with open_store(f"postgresql://ada:hunter2@127.0.0.1:{unused_port}/quorate", clock=clock) as store:
        with pytest.raises(StateUnavailable) as refusal:
            await store.ready()
    assert f"127.0.0.1:{unused_port}/quorate cannot be reached" in str(refusal.value)
    assert "hunter2" not in repr(refusal.value) + str(refusal.value)
    assert refusal.value.__suppress_context__


async def test_a_wrong_password_is_reported_without_showing_it(postgres_server: PostgresServer, clock: HandClock):
    async with open_store(postgres_server.location("postgres", "wr0ng-word"), clock=clock) as store:
        with pytest.raises(StateUnavailable, match="password authentication failed") as refusal:
            await store.ready()
    assert "wr0ng-word" not in str(refusal.value)


async def test_a_connection_that_the_server_ends_is_replaced(postgres: str, clock: HandClock):
    async with open_store(postgres, clock=clock) as store, open_store(postgres, clock=clock) as other:
        await store.ready()
        ended = await other.fetch(
            "SELECT count(pg_terminate_backend(pid)) AS n FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'quorate'"
        )
        assert ended[0]["n"] >= 1
        with suppress(StateUnavailable):  # the connection that was ended may say so, once
            await store.ready()
        await store.ready()


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("postgresql://ada:word@db.example:5433/quorate?sslmode=require", "PostgreSQL db.example:5433/quorate"),
        ("postgres://db.example/quorate?password=word", "PostgreSQL db.example/quorate"),
        ("postgresql://ada:word@[::1]:5432/quorate", "PostgreSQL [::1]:5432/quorate"),
        ("postgresql://ada:word@one,two:5433/quorate", "PostgreSQL one,two:5433/quorate"),
        ("postgresql://ada:word@/quorate?host=/run/postgresql", "PostgreSQL /quorate"),
        ("postgresql://ada:wo@rd@db.example/quorate", "PostgreSQL"),
        ("postgresql://ada:wo/rd@db.example/quorate", "PostgreSQL"),
        ("postgresql://ada:wo?rd@db.example/quorate", "PostgreSQL"),
        ("postgresql://ada:wo#rd@db.example/quorate", "PostgreSQL"),
        ("postgresql://db.example/quorate?password=w@rd", "PostgreSQL"),
    ],
)
def test_the_place_is_shown_without_user_and_password(location, place, clock):
    assert safe_address(location) == place
    assert open_store(location, clock=clock).place == place


@pytest.mark.parametrize("address", ["ada:hunter2/x@db.example/quorate", "ada:hunter2@db.example:five/quorate"])
async def test_an_address_that_cannot_be_read_is_not_repeated(address, clock):
    pytest.importorskip("asyncpg")
    async with open_store(f"postgresql://{address}", clock=clock) as store:
        with pytest.raises(StateUnavailable, match="The address cannot be read") as refusal:
            await store.ready()
    assert "hunter2" not in str(refusal.value)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def test_closing_one_store_leaves_another_on_the_same_file_alone(tmp_path, clock):
    first, second = (open_store(str(tmp_path / "quorate.db"), clock=clock) for _ in range(2))
    await asyncio.gather(first.ready(), second.ready())
    await first.close()
    assert await second.execute("DELETE FROM quorate_tokens") == 0
    await second.close()
