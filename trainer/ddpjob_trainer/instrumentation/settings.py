"""Which value torch gets: the resource's where it has one, else the script's; and what is reported about it.

Why apart: the precedence stands here once, for frameworks, process group and DDP alike. A value set in the resource wins, an empty
one touches nothing. Must not: patch, or judge combinations (`verdicts.py`).

torch 2.13 renamed `broadcast_buffers` to `forward_sync_buffers` and changed what False means: the old name also skips
the broadcast of buffers when DDP is built, the new one does not. The resource's `broadcastBuffers` sets the new one
where torch has it; where script and resource both say False, the script's old name stays, with its old meaning.
"""

from datetime import timedelta
from inspect import BoundArguments
from typing import Any

from ddpjob_api.spec import DDP, Backend, Overrides
from ddpjob_trainer.instrumentation import where
from ddpjob_trainer.instrumentation.notices import Notices

ABSENT = object()
"""The script passed nothing; torch's own default applies."""

PLAIN = (
    # resource, torch's argument of DistributedDataParallel, field of spec.ddp, torch's default in words
    ("findUnusedParameters", "find_unused_parameters", "find_unused_parameters", "false"),
    ("staticGraph", "static_graph", "static_graph", "false"),
    ("gradientAsBucketView", "gradient_as_bucket_view", "gradient_as_bucket_view", "false"),
)


FIELDS = {
    "gradientAccumulationSteps": "gradient_accumulation_steps",
    "bucketCapMB": "bucket_cap_mb",
    "broadcastBuffers": "broadcast_buffers",
    "findUnusedParameters": "find_unused_parameters",
    "staticGraph": "static_graph",
    "gradientAsBucketView": "gradient_as_bucket_view",
    "timeoutSeconds": "timeout",
}
"""The resource's names, and the fields of `spec.DDP` that hold them."""


class Settings:
    """The resource's wishes, laid over what a script passes to a framework or to torch."""

    def __init__(self, wanted: DDP, notices: Notices) -> None:
        self.wanted = wanted
        self._notices = notices
        self.apply = wanted.overrides is Overrides.APPLY
        self._handed: dict[str, str] = {}
        """What a framework hands down to torch against the resource's wish; said already."""
        self._ours: set[str] = set()
        """What a framework hands down to torch because we put it there, not because the script asked."""

    def wish(self, setting: str) -> Any:
        """The resource's value of a setting, as torch takes it; ABSENT where it is silent."""
        if setting == "backend":
            backend = self.wanted.backend
            return ABSENT if backend is Backend.AUTO else backend.torch_name
        value = getattr(self.wanted, FIELDS[setting])
        return ABSENT if value is None else value

    def over_framework(self, setting: str, asked: Any) -> Any:
        """The value that a framework's own argument gets; ABSENT where it stays as it is.

        `asked` is the program's; ABSENT where it passed nothing and the framework's default applies. What is said here
        is not said again when the framework hands the value down to torch.
        """
        wanted = self.wish(setting)
        if wanted is ABSENT:
            return ABSENT
        if asked is not ABSENT and show(asked) != show(wanted):
            self._notices.override(
                setting=setting,
                asked=show(asked),
                resource=show(wanted),
                where=where.caller(),
                applied=self.apply,
            )
        if not self.apply:
            if asked is not ABSENT:
                self._handed[setting] = show(asked)
            return ABSENT
        if asked is ABSENT or show(asked) != show(wanted):
            self._ours.add(setting)
        return wanted

    @property
    def default_timeout(self) -> timedelta | None:
        """What groups get whose creator names no time-out."""
        return self.wanted.timeout if self.apply else None

    def over_process_group(self, call: BoundArguments) -> None:
        """Change a call of `init_process_group`."""
        arguments = call.arguments
        if self.wanted.backend is not Backend.AUTO:
            name = self.wanted.backend.torch_name
            asked = given(arguments, "backend")
            if asked is ABSENT or not carried_by(str(asked), name):
                self._put(arguments, "backend", "backend", asked, name, "chosen by torch")
        if self.wanted.timeout is not None:
            asked = given(arguments, "timeout")
            self._put(arguments, "timeout", "timeoutSeconds", asked, self.wanted.timeout, "torch's default")

    def over_ddp(self, call: BoundArguments) -> None:
        """Change a call of `DistributedDataParallel.__init__`."""
        arguments = call.arguments
        for setting, argument, field, default in PLAIN:
            wanted = getattr(self.wanted, field)
            if wanted is not None:
                self._put(arguments, argument, setting, given(arguments, argument), wanted, default)
        if self.wanted.bucket_cap_mb is not None:
            self._put_bucket_cap(arguments, self.wanted.bucket_cap_mb)
        if self.wanted.broadcast_buffers is not None:
            self._put_buffers(call, self.wanted.broadcast_buffers)

    def _put_bucket_cap(self, arguments: dict[str, Any], wanted: int) -> None:
        # A list of caps would win over the single one inside torch.
        sizes = given(arguments, "bucket_cap_mb_list")
        name = "bucket_cap_mb" if sizes is ABSENT else "bucket_cap_mb_list"
        self._put(arguments, name, "bucketCapMB", given(arguments, name), wanted, "torch's default")
        if name == "bucket_cap_mb_list" and self.apply:
            arguments["bucket_cap_mb"] = arguments.pop(name)

    def _put_buffers(self, call: BoundArguments, wanted: bool) -> None:
        arguments = call.arguments
        old, new = given(arguments, "broadcast_buffers"), given(arguments, "forward_sync_buffers")
        asked = old if new is ABSENT else new
        renamed = "forward_sync_buffers" in call.signature.parameters
        if "broadcastBuffers" in self._ours and asked == wanted:
            asked = ABSENT
        if asked is False and new is ABSENT and wanted is False:
            return
        name = "forward_sync_buffers" if renamed else "broadcast_buffers"
        if self._put(arguments, name, "broadcastBuffers", asked, wanted, "true") and renamed:
            arguments.pop("broadcast_buffers", None)

    def _put(
        self, arguments: dict[str, Any], name: str, setting: str, asked: Any, wanted: Any, default: str
    ) -> bool:
        """Put `wanted` where the precedence says so; True where it is in the call now."""
        if asked != wanted and (asked is not ABSENT or not self.apply):
            shown = default if asked is ABSENT else show(asked)
            if shown != show(wanted) and shown != self._handed.get(setting):
                self._notices.override(
                    setting=setting,
                    asked=shown,
                    resource=show(wanted),
                    where=where.caller(),
                    applied=self.apply,
                )
        if self.apply:
            arguments[name] = wanted
        return self.apply


def given(arguments: dict[str, Any], name: str) -> Any:
    """What the script passed; None means torch's default there, so it counts as nothing."""
    value = arguments.get(name)
    return ABSENT if value is None else value


def carried_by(asked: str, wanted: str) -> bool:
    """Whether a script's backend (`gloo`, or `cpu:gloo,cuda:nccl`) has the gradients go over `wanted`."""
    by_device = [part.rpartition(":")[::2] for part in asked.lower().split(",")]
    accelerators = {name for device, name in by_device if device != "cpu"}
    return (accelerators or {name for _, name in by_device}) == {wanted}


def show(value: Any) -> str:
    """A value in the resource's spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}"
    return str(value)
