"""What the processes that tests fork have imported already."""

import quorate.app
import quorate.cli
import quorate.doctor
import quorate.surfaces.server
import quorate.surfaces.stdio
import quorate.surfaces.web.server  # noqa: F401
from quorate.operations.registry import operations
from quorate.sim.http.routing import all_routes

operations()
all_routes()
