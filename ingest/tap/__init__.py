"""The tap: a reverse proxy that forwards every byte unchanged and records what passed."""
