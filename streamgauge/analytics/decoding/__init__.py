"""Decode response bodies: content coding, framing, dialect selection, and accumulation of the decoded events."""
