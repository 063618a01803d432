"""Measures a device once: which workloads, how, and the files that it writes."""
