"""The bridge: it receives samples from clients and puts them into the ring."""
