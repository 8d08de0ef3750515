"""A page taken apart, for tests: its elements, its texts, and what it would fetch."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta"}
FETCHING = {"src", "srcset", "action", "formaction", "poster", "data", "background", "ping"}


class Page(HTMLParser):
    """A page taken apart: elements with their attributes and texts; closing tags must fit."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), "an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str, kind: str | None = None) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag and (kind is None or attrs.get("class") == kind)]


def assert_fetches_nothing(text: str, page: Page) -> None:
    """No element, attribute or style of a page names another file."""
    for _, attributes in page.elements:
        assert not FETCHING & attributes.keys()
        assert all(not name.startswith("on") for name in attributes)
        assert all((attributes.get(name) or "#").startswith("#") for name in ("href", "xlink:href"))
        assert not any(re.search(r"//|url\((?!#)", value or "") for value in attributes.values())
    assert {name for name, _ in page.elements}.isdisjoint({"link", "img", "iframe", "object", "embed", "base"})
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert not re.search(r"url\(|@import|//", style)
