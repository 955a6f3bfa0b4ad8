"""Care of hosts beyond daily work: administration accounts, terminals, hardware, export."""
