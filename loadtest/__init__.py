"""Load over HTTP, and what it shows. Imports nothing of the server: it is started as by anybody."""
