"""Reports of what compiling buys: their format, their figures, and how a person reads them.

Written by `serve bench` and by the load test, which share nothing else. Imports neither the server
nor torch.
"""
