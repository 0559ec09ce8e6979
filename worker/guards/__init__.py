"""Portable guards: Dynamo's guards as plain conditions that a load checks without Dynamo."""
