"""What people and programs see: live view, report, page, trace, metrics, tables; it only renders."""
