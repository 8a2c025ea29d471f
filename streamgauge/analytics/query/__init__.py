"""Read-only SQL over the store: in this process, in limited child processes, and over the network."""
