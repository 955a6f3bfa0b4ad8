"""A real PostgreSQL for replicas, where its binaries are there."""

from tests.rigs.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]
