"""An MCP server with 500 tools, over stdio: `python -m bench.many_tools`. Their names and descriptions differ."""

from mcp.server.mcpserver import MCPServer

TOOLS = 500
VERBS = ("find", "read", "list", "count", "compare", "sort", "check", "convert", "measure", "translate")
NOUNS = ("mail", "invoice", "meeting", "contact", "parcel", "photo", "recipe", "train", "hotel", "song")


def look_up(query: str, limit: int = 10) -> str:
    return f"{limit} of {query}"


def server() -> MCPServer:
    made = MCPServer("many")
    for number in range(TOOLS):
        verb, noun = VERBS[number % 10], NOUNS[number // 10 % 10]
        about = f"Can {verb} any {noun} of department {number // 100}. Takes words and gives what fits them best."
        made.add_tool(look_up, name=f"{verb}_{noun}_{number // 100}", description=about)
    return made


if __name__ == "__main__":
    server().run()
