"""The kit judges itself: mutants, legal variants, hostile plugins."""
