"""A small language model engine, written on the public API of trivet alone."""
