"""From log records to committed rows. Knows nothing of sockets.

The way the data goes: `consume` polls a log, `assemble` puts each stream back together, `sse` and `dialects` read
its events, `measure` computes its numbers, `store` commits rows and log positions at once, `serve` answers SQL.
"""
