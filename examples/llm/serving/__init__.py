"""An HTTP server over one engine thread."""
