"""Wrong variants, each file for the family that must kill them."""
