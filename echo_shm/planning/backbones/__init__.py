"""Models that write text: our own transformer, Hugging Face's, and servers of others."""
