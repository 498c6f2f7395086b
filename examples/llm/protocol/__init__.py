"""Requests and replies as OpenAI's interface writes them; shared by server and batch files."""
