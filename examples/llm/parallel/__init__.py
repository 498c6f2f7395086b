"""One model on several ranks: its parts, what ranks tell each other, and who they are."""
