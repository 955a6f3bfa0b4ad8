"""Plain hosts: the registry, commands, hardware and administration accounts."""
