"""A file in the folder that `Accelerator.save_state` writes, for as long as it writes: a kill leaves it there.

Why apart: nothing in Accelerate's own files says that it has written them all (`checkpoint_folders.py`). The mark stands
from before the first file of DDP's models, optimizers and schedulers to after the last object of the program's own. With
FSDP and DeepSpeed the models come before it, in files that say themselves whether they are whole.
Must not: meet other ranks (many programs call `save_state` on one), or write outside of the job's directory.
"""

import contextlib
import weakref
from pathlib import Path
from typing import Any

from ddpjob_trainer.checkpoint_folders import WRITING
from ddpjob_trainer.instrumentation.frameworks.shared import Shared


class Marks:
    """Those of this process, which writes what all ranks have in common, or none."""

    def __init__(self, shared: Shared) -> None:
        self._directory = shared.worker.checkpoint_dir
        self._there: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()
        self._put = shared.guard.setting(self._put_one)
        self.follow = shared.guard.setting(self._follow)
        self.take_away = shared.guard.setting(self._take_away)

    def _follow(self, accelerator: Any) -> None:
        """Mark from now on; Accelerate tells its hooks the folder, which it may have named itself."""
        register = getattr(accelerator, "register_save_state_pre_hook", None)
        if self._directory is None or register is None:
            return
        known = weakref.ref(accelerator)
        register(lambda models, weights, folder: self._put(known(), Path(folder)))

    def _put_one(self, accelerator: Any, folder: Path) -> None:
        assert self._directory is not None
        absolute = folder.absolute()
        if not writes(accelerator) or self._directory not in (absolute, *absolute.parents):
            return
        mark = absolute / WRITING
        # A volume that is full or cannot be written is the program's to meet, in its own next file.
        with contextlib.suppress(OSError):
            mark.touch()
            self._there[accelerator] = mark

    def _take_away(self, accelerator: Any) -> None:
        mark = self._there.pop(accelerator, None)
        if mark is not None:
            mark.unlink(missing_ok=True)


def writes(accelerator: Any) -> bool:
    """Whether this process writes the models, by Accelerate's own rule."""
    if accelerator.project_configuration.save_on_each_node:
        return bool(accelerator.is_local_main_process)
    return bool(accelerator.is_main_process)
