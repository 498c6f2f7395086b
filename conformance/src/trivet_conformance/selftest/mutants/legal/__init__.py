"""Legal variants: they differ from the reference and every family accepts them."""
