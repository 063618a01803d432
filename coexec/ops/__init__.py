"""Descriptions of the layers that coexec runs, one file an op or family."""
