"""A seeded generator of hostile SQL, and clients that send it to a running store.

`generator` draws statements: one module for each kind (`calls`, `nesting`, `sizes`, `plans`, …). `client` is a process that
sends a range of them over the SQL port or the SQL page's query pool. `verdict` judges each reply. `minimise` shortens a
failing statement.
"""
