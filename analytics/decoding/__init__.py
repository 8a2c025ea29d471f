"""Bytes of a body become events: content coding, framing, SSE, and what a dialect says of each (`analytics.dialects`)."""
