"""The repository's pages as their readers take them: commands to type, listings to copy, links to follow."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from tests.support import ROOT

VARIABLE = re.compile(r"[A-Z_]+=")
"""A word of a command that sets a variable for it."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@frozen
class Page:
    """A page in markdown."""

    path: Path

    @property
    def name(self) -> str:
        """The path from the repository's root."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without its listings."""
        return FENCE.sub("", self.text)

    def listings(self, *languages: str) -> list[str]:
        return [body for language, body in FENCE.findall(self.text) if language in languages]

    @property
    def commands(self) -> list[tuple[str, ...]]:
        lines = "\n".join(self.listings("sh")).replace("\\\n", " ").splitlines()
        split = ([word for word in shlex.split(line, comments=True) if not VARIABLE.match(word)] for line in lines)
        return [tuple(words) for words in split if words]

    @property
    def anchors(self) -> set[str]:
        """The anchors that GitHub gives to the headings."""
        titles = re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)
        plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}

    @property
    def links(self) -> list[str]:
        """The targets of links that are not to other sites."""
        return [target for target in LINK.findall(self.prose) if not re.match(r"https?:|mailto:", target)]

    def broken_links(self) -> Iterator[str]:
        """Yield the links whose file, or heading in it, does not exist."""
        for target in self.links:
            name, _, anchor = target.partition("#")
            path = (self.path.parent / name).resolve() if name else self.path
            found = path.exists() and path.is_relative_to(ROOT)
            if not found or (anchor and anchor not in Page(path).anchors):
                yield target


def pages() -> list[Page]:
    """Return all pages, README.md first."""
    if (ROOT / ".git").exists():
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    else:  # an unpacked sdist has nothing else
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")]
    return [Page(ROOT / name) for name in sorted(names, key=lambda name: (name.count("/"), name))]


def files_of(*pages: Page) -> dict[str, str]:
    """Return the files that the listings of pages make: a listing's first line names its file, as in `# spec.toml`."""
    files: dict[str, str] = {}
    for listing in (listing for page in pages for listing in page.listings("python", "toml")):
        first, _, rest = listing.partition("\n")
        if re.fullmatch(r"# [\w/.-]+\.(py|toml)", first):
            files[first[2:]] = files.get(first[2:], "") + rest + "\n\n"
    return files


def unnamed_listings(page: Page, language: str) -> list[str]:
    """Return the listings of a language that name no file."""
    return [listing for listing in page.listings(language) if not re.match(r"# [\w/.-]+\.(py|toml)\n", listing)]


def copy_by_links(source: Path, target: Path) -> None:
    """Make a folder in which the files of `source` lie, so that what a command writes stays outside of the repository."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.name not in {"runs", ".git", "build"}:
            (target / entry.name).symlink_to(entry)
