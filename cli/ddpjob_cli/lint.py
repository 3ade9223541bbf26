"""What is wrong with a resource, with file, line and field: `ddpjob lint`, and the first thing `ddpjob run` does.

Why apart: the parser and the rules are the api's; this puts lines to their paths and words to their verdicts.
Must not: judge anything itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ddpjob_api.codec import Invalid, dotted, parse
from ddpjob_api.rules import Verdict, facts_of, judge
from ddpjob_api.spec import DDPJob
from ddpjob_cli.document import Document

SCHEMA = "schema"
"""In place of a rule's id: an unknown field, a wrong type, a value out of bounds."""

WORDS = {Verdict.REFUSE: "", Verdict.WARN: "warning: ", Verdict.HANDLE: "note: "}
STYLES = {Verdict.REFUSE: "red", Verdict.WARN: "yellow", Verdict.HANDLE: "cyan"}


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One thing to say about a resource."""

    file: str
    line: int | None
    """None where no line is to blame: the field came from an option."""
    where: str
    """`ddpjob.yaml:14`, or the option."""
    field: str
    verdict: Verdict
    rule: str
    message: str

    def __str__(self) -> str:
        return str(self.text())

    def text(self) -> Text:
        """`ddpjob.yaml:14 spec.ddp.bucketCapMb: unknown field; did you mean bucketCapMB?`."""
        subject = f"{self.where} {self.field}:" if self.field else f"{self.where}:"
        return Text.assemble(
            (subject, "bold"), " ", (WORDS[self.verdict], STYLES[self.verdict]), (self.message, "default")
        )

    def json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "field": self.field,
            "verdict": self.verdict.value,
            "rule": self.rule,
            "message": self.message,
        }


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A document and what there is to say about it."""

    document: Document
    job: DDPJob | None
    """None where it is no DDPJob at all."""
    remarks: tuple[Remark, ...]

    @property
    def refused(self) -> bool:
        return any(remark.verdict is Verdict.REFUSE for remark in self.remarks)


def examine(document: Document) -> Examined:
    """Schema first; rules only where that holds, since they need typed values."""

    def remark(path: tuple[str | int, ...], verdict: Verdict, rule: str, message: str) -> Remark:
        given = path in document.options
        return Remark(
            file=document.file,
            line=None if given else document.line(path),
            where=document.where(path),
            field=dotted(path),
            verdict=verdict,
            rule=rule,
            message=message,
        )

    try:
        job = parse(document.value)
    except Invalid as invalid:
        problems = [remark(p.path, Verdict.REFUSE, SCHEMA, p.message) for p in invalid.problems]
        return Examined(document=document, job=None, remarks=tuple(sorted(problems, key=order)))
    findings = judge(facts_of(job))
    remarks = tuple(remark(f.path, f.verdict, f.rule, f.message) for f in findings)
    return Examined(document=document, job=job, remarks=remarks)


def sentences(document: Document, remarks: Iterable[Remark], verb: str) -> str:
    """All remarks, and that nothing was `run` (or sent) for them."""
    every = list(remarks)
    return "\n".join([*map(str, every), f"{document.file}: not {verb}: {count(every)}"])


def order(remark: Remark) -> int:
    return remark.line or 0


def count(remarks: Iterable[Remark]) -> str:
    """`fine`, or `2 problems, 1 warning`."""
    nouns = {Verdict.REFUSE: "problem", Verdict.WARN: "warning", Verdict.HANDLE: "note"}
    verdicts = [remark.verdict for remark in remarks]
    counts = [(verdicts.count(verdict), noun) for verdict, noun in nouns.items()]
    words = [f"{number} {noun}{'s' if number > 1 else ''}" for number, noun in counts if number]
    return ", ".join(words) or "fine"
