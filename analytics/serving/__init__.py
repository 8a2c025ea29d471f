"""SQL answered to other processes, read-only and bounded; and how they ask."""
