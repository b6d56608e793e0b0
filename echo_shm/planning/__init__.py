"""Planning: agents that plan, and what they play in."""
