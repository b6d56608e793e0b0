"""The bridge: receives samples from clients and puts them into the ring."""
