"""Runtime: binds, plans, checks and observation."""
