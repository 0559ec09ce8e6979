"""Counts and times as people read them."""


def count_text(count: int, noun: str) -> str:
    """A number of things, such as ``1 launch`` or ``2 launches``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and not noun.endswith("ey"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"


def time_text(created: str) -> str:
    """An ISO 8601 time in UTC, down to the minute."""
    return f"{created[:16].replace('T', ' ')} UTC"
