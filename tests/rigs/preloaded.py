"""Modules that are already imported in the processes that tests fork."""

import quorate.app
import quorate.cli
import quorate.cli.doctor
import quorate.surfaces.server
import quorate.surfaces.stdio
import quorate.surfaces.web.server  # noqa: F401
from pve_simulator.http.routing import all_routes
from quorate.homelab import vault
from quorate.operations.registry import operations
from quorate.state import passphrase

operations()
all_routes()
passphrase.COST = vault.LEAST_COST = 2**4  # as in tests/conftest.py
