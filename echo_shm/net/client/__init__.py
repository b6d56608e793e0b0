"""The client: it sends samples to a server on another host."""
