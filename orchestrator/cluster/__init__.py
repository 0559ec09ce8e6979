"""A Ray cluster on plain hosts: `warmrank up`, `warmrank down`, and what each host is told to do."""
