"""Planning: in the making."""
