"""The CAs of the system, by which Quorate trusts public servers: those of today, not those of its start."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from aiohttp import web

from quorate.homelab.scripts import fetch
from quorate.problems import NotFound, Unreachable
from tests.rigs.certificates import Authority

pytestmark = pytest.mark.anyio


async def is_trusted(certificate: Path, key: Path) -> bool:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        await fetch(url, 1000)
    except NotFound:  # as this server answers
        return True
    except Unreachable as problem:
        if "CERTIFICATE_VERIFY_FAILED" not in str(problem):
            raise
        return False
    finally:
        await runner.cleanup()
    raise AssertionError("the server has no page")


@pytest.fixture
def authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Authority, Authority]:
    """Two of them, of which the system trusts neither."""
    folders = tmp_path / "old", tmp_path / "new"
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return Authority(folders[0]), Authority(folders[1])


async def test_a_file_of_cas_that_is_renewed_counts_at_once(tmp_path, monkeypatch, authorities):
    old, new = authorities
    file = tmp_path / "cas.pem"
    file.write_bytes(old.file.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert (await is_trusted(*old.issue()), await is_trusted(*new.issue())) == (True, False)
    file.write_bytes(new.file.read_bytes())
    assert (await is_trusted(*old.issue()), await is_trusted(*new.issue())) == (False, True)
    new.file.rename(file)
    assert (await is_trusted(*old.issue()), await is_trusted(*new.issue())) == (False, True)
    file.unlink()
    assert (await is_trusted(*old.issue()), await is_trusted(*new.issue())) == (False, False)


async def test_another_file_of_cas_counts_at_once(monkeypatch, authorities):
    for trusted, other in (authorities, authorities[::-1]):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted.file))
        assert (await is_trusted(*trusted.issue()), await is_trusted(*other.issue())) == (True, False)
