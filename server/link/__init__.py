"""Where the API process and the worker meet: frames on a socket."""
