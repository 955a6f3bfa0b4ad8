"""Quorate uses Python as it is: no command patches TLS or changes when garbage is collected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio.sslproto, gc, json, ssl, sys

def state():
    return {
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "patches": ["set_default_verify_paths" in vars(ssl.SSLContext), asyncio.sslproto.SSLProtocol.max_size],
    }

before = state()
from quorate.cli import main
try:
    main(sys.argv[1:])
except SystemExit as exit:
    assert exit.code == 0, exit.code
import aiohttp.connector
trusted = aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats() == ssl.create_default_context().cert_store_stats()
print(json.dumps([before, state(), trusted]), file=sys.stderr)
"""


@pytest.mark.parametrize("command", [["call", "node_list", "--demo"], ["serve", "--demo"], ["tools"]], ids=" ".join)
def test_a_command_leaves_tls_and_the_garbage_collector_as_python_has_them(tmp_path: Path, command: list[str]):
    environ = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    before, after, trusted = json.loads(done.stderr.splitlines()[-1])
    assert after == before
    assert trusted, "aiohttp trusts the CAs of the system where nothing else is said"
