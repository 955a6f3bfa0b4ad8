"""Numbers that move: load, memory and counters, computed from a seed and the clock when somebody asks.

Nothing runs in the background. The same seed and the same time always give the same numbers, and counters
never fall while a guest runs, because the wobble on them is always slower than their growth.
"""

from __future__ import annotations

import math

_TURN = 2 * math.pi
# PVE's status daemon looks every ten seconds; numbers that the cluster shares change no faster.
SAMPLE_SECONDS = 10.0


def sample_time(now: float) -> float:
    """The time of the latest look of the status daemon."""
    return now - now % SAMPLE_SECONDS


def spread(seed: int, salt: int) -> float:
    """A fixed number in 0..1 for this seed, different for every salt."""
    mixed = (seed * 2654435761 + salt * 40503 + 12345) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    mixed = (mixed * 2246822519) & 0xFFFFFFFF
    mixed ^= mixed >> 13
    return mixed / 0xFFFFFFFF


def wave(seed: int, now: float, period: float) -> float:
    """A smooth 0..1 that moves with the time: a slow swell with a faster ripple on it."""
    phase = (seed % 977) * 0.7919
    slow = math.sin(now / period * _TURN + phase)
    fast = math.sin(now / (period * 0.137) * _TURN + phase * 3)
    return 0.5 + 0.35 * slow + 0.15 * fast


def cpu_load(seed: int, now: float) -> float:
    """The part of its CPUs that a guest uses: mostly little, for some a lot."""
    busy = spread(seed, 1) ** 3
    return (0.01 + 0.55 * busy) * (0.35 + 0.65 * wave(seed, now, 3600.0))


def memory_share(seed: int, now: float) -> float:
    """The part of its memory that a guest uses."""
    return 0.25 + 0.5 * spread(seed, 2) + 0.08 * wave(seed + 7, now, 7200.0)


def counter(seed: int, salt: int, age: float, rate: float) -> int:
    """Bytes counted since the start, `age` seconds ago, at about `rate` bytes a second."""
    own = rate * (0.2 + 1.8 * spread(seed, salt) ** 2)
    # d/dt of the wobble is at most 0.4 * own, so the sum never falls
    wobble = 0.4 * own * 600.0 / _TURN * math.sin(age / 600.0 * _TURN)
    return max(0, int(own * age + wobble))
