"""MCP over streamable HTTP: authentication, limits, health, metrics, and the operator's approvals. Nothing here is
imported for stdio."""
