"""Plan the whole response to a request before its first byte is sent."""
