"""Configs that come with warmrank; a package, so that an installed `warmrank launch --demo` finds them."""
