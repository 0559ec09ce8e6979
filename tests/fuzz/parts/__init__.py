"""Parts of programs that are no value in a place, each with what may change."""
