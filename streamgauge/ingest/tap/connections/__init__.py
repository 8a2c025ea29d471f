"""Connections of clients and to upstreams, and TLS."""
