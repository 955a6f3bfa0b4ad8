"""Problems as errors of the protocol, where there is no answer that could carry them: resources, prompts."""

from __future__ import annotations

from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS

from quorate.pve.errors import BadArgument, NotFound, Problem, Refused
from quorate.surfaces import rendering


def as_error(problem: Problem, *, not_found: int = INVALID_PARAMS, data: dict[str, Any] | None = None) -> MCPError:
    """What the caller can put right is told apart from what failed here or in PVE."""
    if isinstance(problem, NotFound):
        code = not_found
    elif isinstance(problem, (BadArgument, Refused)):
        code = INVALID_PARAMS
    else:
        code = INTERNAL_ERROR
    return MCPError(code=code, message=rendering.problem_text(problem), data=data)


def defect(error: Exception) -> MCPError:
    what = f"This failed inside Quorate ({type(error).__name__}); it is a defect, not your mistake."
    return MCPError(code=INTERNAL_ERROR, message=f"{what} The server's log has the details.")
