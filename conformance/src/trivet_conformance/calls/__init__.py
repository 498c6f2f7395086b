"""What a call is made of: sizes, values, layouts, both sides of a domain; and making it."""
