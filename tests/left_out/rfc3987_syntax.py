"""Python imports this file instead of the package, which builds a grammar for 1.4 s in each process with a dashboard.

`jsonschema` imports it if it is installed. Only tools of the development environment require it, so users do not have it.
"""

raise ImportError("left out")
