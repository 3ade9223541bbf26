"""Which resource names are accelerators, and what follows from one: ranks per node and backend.

Why apart: vendors are added here and nowhere else. Source of the names: each vendor's device plugin.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddpjob_api.spec import Backend


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A kind of device that a container asks for by a resource name."""

    resource: str
    device: str
    """torch's device type."""
    backend: Backend
    plugin: str | None = None
    """The package that brings the device to torch; None where torch itself does."""
    build: str = ""
    """What torch has to be built for where it brings the device itself."""

    @property
    def package(self) -> str:
        """What an image needs for the device, in words."""
        return self.plugin or f"a torch build for {self.build}"


ACCELERATORS = (
    Accelerator(resource="nvidia.com/gpu", device="cuda", backend=Backend.NCCL, build="CUDA"),
    Accelerator(resource="amd.com/gpu", device="cuda", backend=Backend.NCCL, build="ROCm"),
    Accelerator(resource="gpu.intel.com/i915", device="xpu", backend=Backend.XCCL, build="XPU"),
    Accelerator(resource="gpu.intel.com/xe", device="xpu", backend=Backend.XCCL, build="XPU"),
    Accelerator(
        resource="habana.ai/gaudi", device="hpu", backend=Backend.HCCL, plugin="habana_frameworks.torch"
    ),
    Accelerator(resource="huawei.com/Ascend910", device="npu", backend=Backend.HCCL, plugin="torch_npu"),
    Accelerator(resource="cambricon.com/mlu", device="mlu", backend=Backend.CNCL, plugin="torch_mlu"),
)

PLUGINS = {
    Backend.XCCL: ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"),
    Backend.HCCL: ("torch_npu", "habana_frameworks.torch", "habana_frameworks.torch.distributed.hccl"),
    Backend.CNCL: ("torch_mlu",),
}
"""Packages that bring a backend to torch; torch with XPU has XCCL itself from 2.8 on."""

MIG = re.compile(r"^nvidia\.com/mig-\d+g\.\d+gb$")
"""NVIDIA's names for slices of a GPU (mixed strategy), each a device of its own."""


def accelerator(limits: Mapping[str, str]) -> tuple[Accelerator, int] | None:
    """The accelerator that a container's limits ask for and how many; None for a CPU job.

    Unknown names (`rdma/hca`, `vendor.example/fpga`) are no accelerators.
    """
    for known in ACCELERATORS:
        count = whole(limits.get(known.resource))
        if count:
            return known, count
    slices = sum(whole(value) for name, value in limits.items() if MIG.match(name))
    return (ACCELERATORS[0], slices) if slices else None


def of_resource(name: str | None) -> Accelerator | None:
    """The accelerator of that resource name; None for a name that is none's."""
    return next((known for known in ACCELERATORS if known.resource == name), None)


def whole(quantity: str | None) -> int:
    """Extended resources are whole numbers; anything else is the API server's to refuse."""
    return int(quantity) if quantity is not None and quantity.isdigit() else 0
