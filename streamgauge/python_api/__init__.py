"""What `import streamgauge` offers."""
