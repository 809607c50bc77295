"""Gearshift: serve PyTorch models eager or compiled, and show the difference."""

__version__ = "0.1.0"
