"""The server: an HTTP front and an engine, each in a process of its own, joined by messages."""
