"""Measured devices: a folder each. See README.md for the format."""
