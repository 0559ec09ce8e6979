"""The driver's side of warmrank: cluster config, plan, launchers, report and command line.

Importing this package, or its command line, imports neither torch nor ray.
"""
