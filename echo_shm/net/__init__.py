"""Samples from other hosts: the wire, the bridge that receives, the client that sends."""
