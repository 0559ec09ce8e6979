"""`warmrank exec`: the user's own command on warm nodes, and what it added back to the store."""
