"""Scripts that run in either tree (`bench.store.trees`), with this folder first on the import path."""
