"""Devices that this machine does not have."""
