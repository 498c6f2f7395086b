"""Measures the configs of tuned kernels on a device; only ``trivet tune`` and tests load it."""
