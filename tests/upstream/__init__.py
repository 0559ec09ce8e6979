"""Runs TorchAir's own test suites, from a checkout of it, against warmrank or against TorchAir itself.

The suites are not part of this repository: `tests.upstream.__main__` reads them from the checkout that it
is given, and answers what they import. Nothing in them is changed but that.
"""
