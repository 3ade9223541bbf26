"""`ddpjob explain NAME --stacks`: what each rank did when the job hung last, and who kept the others waiting."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ddpjob_cli.commands.common import chosen, console
from ddpjob_cli.errors import Unusable
from ddpjob_cli.hangs import put_together
from ddpjob_cli.local.look import LocalRun
from ddpjob_cli.output import tell

if TYPE_CHECKING:
    from ddpjob_cli.cluster.kubeconfig import Target


def show(name: str | None, directory: Path | None, target: "Target", *, as_json: bool) -> None:
    """Print the newest hang.

    Raises:
        Unusable: none is known.
        CommandError: the job, or its logs, cannot be read.
    """
    source = chosen(name, directory, target)
    gaps: list[str] = []
    if isinstance(source, LocalRun):
        from ddpjob_cli.local.hangs import collect as kept_here

        called, parts = source.name, kept_here(source)
    else:
        from ddpjob_cli.cluster.hangs import collect

        assert name is not None  # `needed` and `chosen` saw to it
        called = name
        parts, gaps = collect(source, name)
    hang = put_together(parts)
    if hang is None:
        seen = f" in what can be read (not seen: {'; '.join(gaps)})" if gaps else ""
        raise Unusable(
            f"{called}: no hang is known{seen}. Stacks are kept when no rank makes a step for "
            "recovery.progressTimeoutSeconds, or a collective times out; with a shared checkpoint claim also in its "
            "folder post-mortem, where the pod is gone"
        )
    if as_json:
        tell({"name": called, **hang.json(), "notSeen": gaps}, indent=1)
        return
    out = console()
    for line in hang.lines():
        out.print(Text(line, "bold" if line and not line.startswith(" ") else ""), soft_wrap=True)
    for sentence in gaps:
        out.print(Text(f"not seen: {sentence}", "yellow"), soft_wrap=True)
