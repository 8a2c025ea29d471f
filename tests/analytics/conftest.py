"""Property tests assert behaviour, never time: no deadline for a single example, on however busy a machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no-deadline")
