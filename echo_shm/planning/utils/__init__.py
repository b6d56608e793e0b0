"""What watches a run: EchoRL's names."""
