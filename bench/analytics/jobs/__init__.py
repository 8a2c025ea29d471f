"""The same job by three programs, each a process of its own: a full topic of Kafka into committed rows of DuckDB.

Each is called with BROKERS TOPIC DATABASE STREAMS and prints one line of JSON: CPU seconds (all threads) and wall seconds from
where it is ready to read to where the last row is committed, and its peak of memory. What it takes to start is not in them.
"""
