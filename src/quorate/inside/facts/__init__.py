"""Facts about POSIX machines, guests and hosts alike: one script, one round trip, a parser for each source."""
