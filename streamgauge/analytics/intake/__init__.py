"""What other programs send to analytics over HTTP, and what is answered after the commit that stores it: spans and markers."""
