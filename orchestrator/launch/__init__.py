"""The driver of a launch: plan, stages, commit."""
