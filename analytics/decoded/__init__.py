"""The result types of decoding, and the interfaces and JSON parsing shared by dialects and decoder."""
