"""Forward response bodies in a thread without the interpreter lock."""
