"""The Proxmox VE API: facts, client, tasks, inventory. Knows nothing of MCP."""
