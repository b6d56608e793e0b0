"""Samples from other hosts: the wire protocol, the client that sends, and the bridge that receives."""
