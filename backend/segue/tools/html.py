"""The readable text of a page. Pure, and slow: call it in a thread or another process."""

from typing import Any

MAX_TITLE_CHARS = 300
# Extraction costs up to 100 µs an element, in a thread that cannot be stopped; very large articles have 20,000.
MAX_ELEMENTS = 30_000


def from_html(source: str) -> tuple[str, str]:
    """Returns the title and the text of a page, as readers want it: the article, if one is found."""
    import trafilatura  # noqa: PLC0415 (with lxml; most processes read no page, and this runs in a thread)

    # Text, not bytes: given bytes trafilatura looks for compression and guesses encodings.
    tree = trafilatura.load_html(source)
    if tree is None:  # a fragment, which it takes for no HTML at all
        tree = trafilatura.load_html(f"<html><body>{source}")
    if tree is None:
        return "", source
    title = " ".join((tree.findtext(".//title") or "").split())[:MAX_TITLE_CHARS]
    small = tree.xpath("count(//*)") <= MAX_ELEMENTS
    # Fast: the slow way ends in jusText, whose time grows with the square of the paragraphs.
    article = trafilatura.extract(tree, fast=True, include_comments=False) if small else None
    return title, article or _all_text(tree)


def _all_text(tree: Any) -> str:
    unseen = {"head", "script", "style", "noscript", "template"}
    for element in [element for element in tree.iter(*unseen) if element.getparent() is not None]:
        element.drop_tree()
    lines = (" ".join(text.split()) for text in tree.itertext())
    return "\n".join(line for line in lines if line)
