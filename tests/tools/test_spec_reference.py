"""The tables of specs/README.md are those that the classes and the plugins give, and the generator notices what differs."""

from tools.spec_reference import PAGE, generated


def test_the_page_is_current():
    text = PAGE.read_text()
    assert generated(text) == text, "run `python -m tools.spec_reference --write`"
