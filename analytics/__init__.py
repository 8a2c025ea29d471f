"""From log records to committed rows. Knows nothing of sockets.

The way the data goes: `consume` polls a log, `assembly` puts each stream back together, `reading` and `dialects` find its
events, `measures` computes its numbers, `storage` (or `lake`) commits rows and log positions at once, `serving` answers SQL.
"""
