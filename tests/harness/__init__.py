"""What several tests need, written once: accounts, waiting, processes, stamped samples, peers and links."""
