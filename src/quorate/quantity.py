"""Texts for people that carry their values for programs."""

from __future__ import annotations

import datetime
from typing import Any


class Quantity(str):
    """A text for people that carries its value for programs: bytes, seconds, a fraction, an ISO time."""

    __slots__ = ("value",)
    value: Any

    def __new__(cls, text: str, value: Any) -> Quantity:
        made = super().__new__(cls, text)
        made.value = value
        return made


def moment(epoch: float) -> Quantity:
    """A time in UTC, to the second."""
    text = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return Quantity(text, text.replace(" ", "T"))
