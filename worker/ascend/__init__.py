"""Ascend's software and devices on this machine, read from files and ``npu-smi``: nothing of it is imported.

Nothing here touches a device: no context is made, and a machine without NPUs starts no process.
"""
