"""Captured graphs: from a shape's second call on, replayed at fixed addresses by `worker.runtime.runner`."""
