"""Selection: which implementation, and why."""
