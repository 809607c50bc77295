"""The API process: HTTP in, HTTP out. Imports no torch."""
