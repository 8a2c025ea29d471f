"""What docs/explanation/performance.md quotes, reproducible by anyone: `python -m bench NAME`."""
