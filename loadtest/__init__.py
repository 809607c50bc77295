"""What measures a server from outside, over HTTP. Imports nothing of `server`."""
