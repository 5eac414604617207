"""A real MCP server for tests: one tool that adds, one that fails, one that is slow; over stdio, or HTTP on the port given."""

import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("calculator")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two whole numbers."""
    return str(a + b)


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ToolError("it cannot be done")


@server.tool()
def slow() -> str:
    """Takes long."""
    time.sleep(30)
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run(transport="stdio")
