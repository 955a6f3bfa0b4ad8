"""The smallest server that the MCP SDK can start: one tool. The floor for a cold start."""

from mcp.server import MCPServer

server = MCPServer("bare", log_level="WARNING")


@server.tool()
def ping() -> str:
    """Answer."""
    return "pong"


if __name__ == "__main__":
    server.run()
