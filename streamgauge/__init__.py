"""The `streamgauge` command: settings, the supervisor of `up`, the simulator, and the demo."""

__version__ = "0.1.0"
