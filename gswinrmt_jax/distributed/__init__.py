"""Devices, processes, compilation."""
