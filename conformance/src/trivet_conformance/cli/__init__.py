"""The command ``trivet-conformance``."""
