"""The answers of a WebSocket: records of one stream for each, from the bytes that both sides sent."""
