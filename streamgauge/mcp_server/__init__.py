"""`streamgauge mcp`: tools with which agents read the tables, over the Model Context Protocol.

`tools` has the functions, `server` registers them with the official SDK and serves them over HTTP, `command` runs it.
"""
