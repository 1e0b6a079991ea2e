"""Text from anywhere, made safe to show."""


def plain(text, limit=1000):
    """Text from anywhere as a short, real str: a subclass could lie, and megabytes would freeze the page."""
    text = str.encode(str.__getitem__(text, slice(limit + 1)), "utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit] + " […]"
