"""Tables and pages as Markdown text."""

import re
from collections.abc import Iterable, Sequence

SOURCES = "in the CRD or in api/ddpjob_api"
"""Of most pages."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def marked(head: str, source: str) -> str:
    """The head of a page, which says after its title who writes the page from what."""
    title, _, body = head.partition("\n\n")
    return f"{title}\n\n<!-- written by docs/generate.py (make docs); change it there, {source} -->\n\n{body}"


def page(parts: Sequence[str]) -> str:
    """The parts below each other."""
    return "\n".join(parts)


def filled(text: str, **parts: str) -> str:
    """A page written by hand, with each part anew between its marks `<!-- NAME: … -->` and `<!-- end -->`.

    Raises:
        ValueError: the page has no such marks.
    """
    for name, part in parts.items():
        between = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
        text, times = between.subn(lambda found, part=part: f"{found[1]}\n{part}\n{found[2]}", text)
        if times != 1:
            raise ValueError(f"{name}: {times} places are marked for it, not one")
    return text
