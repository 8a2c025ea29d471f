"""Records of the log become streams: which belongs to which, and when a stream is over."""
