"""The client: sends samples to a server on another host."""
