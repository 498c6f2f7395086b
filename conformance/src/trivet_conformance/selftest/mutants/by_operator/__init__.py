"""Variants of one kind of operator: what it gets wrong, and what looks wrong and is legal."""
