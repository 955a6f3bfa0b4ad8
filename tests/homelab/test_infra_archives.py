"""What a machine sends as its files is data from a stranger."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from quorate.homelab.infra.backups import extract_files

ASKED = ["/etc/hostname", "/etc/cron.d/*"]


def archive(*names: str, content: bytes = b"x\n", **changes: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def paths(data: bytes) -> list[str]:
    return [item.piece.name for item in extract_files(data, "network", ASKED)]


def test_only_files_that_were_asked_for_are_taken():
    sent = archive("etc/hostname", "etc/shadow", "etc/cron.d/job", "etc/cron.d/deep/job", "etc/cron.d/../shadow")
    assert paths(sent) == ["/etc/hostname", "/etc/cron.d/job"]


def test_links_are_not_taken():
    assert paths(archive("etc/hostname", type=tarfile.SYMTYPE, linkname="/etc/shadow", size=0)) == []


def test_an_archive_that_unpacks_to_more_than_was_sent_is_refused():
    bomb = gzip.compress(archive("etc/hostname", content=bytes(10_000_000)))
    with pytest.raises(tarfile.TarError):
        paths(bomb)
    claims = archive("etc/hostname", content=b"")
    info = tarfile.TarInfo("etc/hostname")
    info.size = 10**9
    with pytest.raises((tarfile.TarError, ValueError)):
        paths(info.tobuf() + claims[512:])


def test_what_is_no_archive_is_refused():
    with pytest.raises(tarfile.TarError):
        paths(b"Permission denied\n" * 100)
