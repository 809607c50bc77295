"""The device side: everything that touches torch. Knows nothing of HTTP."""
