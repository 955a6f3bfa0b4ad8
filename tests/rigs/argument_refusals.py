"""The refusal of wrong arguments, without a server: arguments are checked before any request is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from quorate.operations.arguments import decode, with_known_names
from quorate.operations.registry import find_operation
from quorate.problems import Problem


def refusal_of(tool: str, arguments: Mapping[str, Any]) -> str:
    operation = find_operation(tool)
    assert operation is not None
    with pytest.raises(Problem) as refused:
        decode(operation, with_known_names(operation, arguments))
    return str(refused.value)
