"""A new vendor package: a whole one, which passes what it claims before its author changes it."""
