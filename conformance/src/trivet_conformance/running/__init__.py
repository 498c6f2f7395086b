"""Running families over a subject."""
