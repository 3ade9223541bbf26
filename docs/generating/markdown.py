"""Tables and pages as Markdown text."""

from collections.abc import Iterable, Sequence

MARK = "<!-- written by docs/generate.py (make docs); change it there, in the CRD or in api/ddpjob_api -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def page(parts: Sequence[str]) -> str:
    """The parts below each other; the first begins with the title, and says after it who writes the page."""
    head, *rest = parts
    title, _, body = head.partition("\n\n")
    return "\n".join([f"{title}\n\n{MARK}\n{body}", *rest])
