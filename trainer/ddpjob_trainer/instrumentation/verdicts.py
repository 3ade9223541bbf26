"""The rows of the rule table that need the running process, asked where their facts become known.

Why apart: facts arrive one after another (backend, model, first steps), and a refusal must come before the first
step. Must not: word anything; the sentences are the table's (`ddpjob_api.rules`).
"""

import dataclasses
from typing import Any

from ddpjob_api.codec import dotted
from ddpjob_api.plan import plan
from ddpjob_api.rules import Facts, Verdict, judge, message_of, rule
from ddpjob_api.spec import Backend, GradientCheckpointing, Overrides, Script, Spec
from ddpjob_trainer import plugins
from ddpjob_trainer.errors import refusal
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.worker import Worker


class Verdicts:
    """What is known so far, and what follows."""

    def __init__(self, worker: Worker, notices: Notices) -> None:
        spec = Spec(
            nodes=worker.nodes,
            processes_per_node=worker.processes_per_node,
            task=worker.task,
            script=None if worker.task else Script(args=("program",)),
            ddp=worker.settings,
        )
        self._facts = Facts(name=worker.job, spec=spec, plan=plan(spec), accelerator_present=False)
        self._accelerator = worker.accelerator if worker.settings.backend is Backend.AUTO else None
        self._notices = notices
        self._worker = worker

    def learn_backend(self, torch: Any, backend: Backend) -> None:
        """The process group is about to be made with a backend that the resource names.

        Raises:
            Refused: it is not there, or its device is not.
            DeviceGone: its device is not, in a later generation.
        """
        self._load(backend)
        self._know(
            plan=dataclasses.replace(self._facts.plan, backend=backend),
            accelerator_present=device_seen(torch, backend),
            backend_available=torch.distributed.is_backend_available(backend.torch_name),
        )

    def learn_accelerator(self, torch: Any, *, cpu_chosen: bool) -> None:
        """The program is about to choose where it trains, and the resource names no backend.

        `cpu_chosen`: it names the CPU itself, or a backend for it. Plugins are imported only where torch does not see
        the device without them: with it nothing changes.

        Raises:
            Refused: the pod asks for an accelerator and torch sees none of its kind.
            DeviceGone: the same in a later generation.
        """
        asked = self._accelerator
        if asked is None or plugins.sees(torch, asked.device):
            return
        self._load(asked.backend)
        if not plugins.sees(torch, asked.device):
            self._know(accelerator_missing=asked, cpu_chosen=cpu_chosen or self._facts.cpu_chosen)

    def _load(self, backend: Backend) -> None:
        for name, reason in plugins.load(backend).items():
            self._notices.warn(f"spec.ddp.backend: {name} is installed and cannot be imported: {reason}")

    def learn_model(self, torch: Any, model: Any, backend: str) -> None:
        """A model is about to be wrapped; `backend` is the process group's, as torch calls it.

        Raises:
            Refused: the model cannot be trained on its device.
        """
        on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
        kind = torch.nn.SyncBatchNorm
        known = {member.torch_name: member for member in Backend}
        self._know(
            plan=dataclasses.replace(self._facts.plan, backend=known.get(backend, self._facts.plan.backend)),
            accelerator_present=not on_cpu or self._facts.accelerator_present,
            has_buffers=any(True for _ in model.buffers()),
            sync_batch_norm_on_cpu=on_cpu
            and any(isinstance(part, kind) and part.training for part in model.modules()),
        )

    def learn_hook(self, name: str, backend: str) -> None:
        """A communication hook is about to be registered.

        Raises:
            Refused: the backend cannot carry it.
        """
        self._know(bf16_hook_on_gloo=name.startswith("bf16_compress") and backend == "gloo")

    def learn_checkpointing(self, mode: GradientCheckpointing) -> None:
        """The program recomputes activations in this way.

        Raises:
            Refused: the settings do not go with it.
        """
        if self._facts.spec.ddp.overrides is Overrides.APPLY:
            self._know(checkpointing_seen=mode)

    def learn_nothing_unused(self) -> None:
        """Unused parameters of a model were looked for in some steps, and there were none."""
        if self._facts.nothing_unused is None:
            self._know(nothing_unused=True)

    def learn_unused(self) -> None:
        """There were some: what was advised after the first steps, or for another model, does not hold."""
        row = rule("unused-not-needed")
        self._notices.withdraw(f"{dotted(row.path)}: {message_of(row)}")
        self._know(nothing_unused=False)

    def handled(self, identity: str) -> None:
        """We did what the row of this name promises."""
        row = rule(identity)
        self._notices.warn(f"{dotted(row.path)}: {message_of(row)}")

    def _know(self, **facts: Any) -> None:
        self._facts = dataclasses.replace(self._facts, **facts)
        findings = judge(self._facts)
        refused = refusal(findings, self._worker.generation)
        if refused is not None:
            raise refused
        for finding in findings:
            if finding.verdict is Verdict.WARN:
                self._notices.warn(f"{dotted(finding.path)}: {finding.message}")


def device_seen(torch: Any, backend: Backend) -> bool:
    """Whether torch sees a device of the kind this backend is for; CPUs count for Gloo and MPI as none."""
    devices = {
        Backend.NCCL: ("cuda",),
        Backend.XCCL: ("xpu",),
        Backend.HCCL: ("npu", "hpu"),
        Backend.CNCL: ("mlu",),
    }
    return any(plugins.sees(torch, device) for device in devices.get(backend, ()))
