"""What docs/performance.md quotes, reproducible by anyone: `python -m bench NAME`."""
