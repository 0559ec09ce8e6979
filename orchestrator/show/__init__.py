"""What people and programs see of a launch: events, live views, reports."""
