"""Read-only SQL over the store: in this process, in a limited child process, and over the network."""
