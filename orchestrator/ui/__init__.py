"""Live view, report, page, trace, metrics, tables; it only renders."""
