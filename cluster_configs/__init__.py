"""Configs that come with warmrank; a package, so that an installed `warmrank demo` finds them."""
