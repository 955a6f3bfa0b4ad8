"""Care of hosts beyond the daily: administration accounts, terminals, hardware, export."""
