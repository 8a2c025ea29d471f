"""One request and its response: states, forwarding, time limits."""
