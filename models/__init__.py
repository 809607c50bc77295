"""The models that can be served. Plain modules with declared inputs; never imports server."""
