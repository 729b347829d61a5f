"""Real servers for tests: each is a process of its own on a free port of 127.0.0.1."""
