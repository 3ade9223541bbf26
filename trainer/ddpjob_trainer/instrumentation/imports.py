"""Run a function right after a module was imported, whenever the program does so.

Why apart: the one place that touches the import system. While such a module is imported the garbage collector rests.
Must not: import the modules it waits for, or leave a trace on them (their loader is the real one again before their
code runs).
"""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[Any], None]


class PostImport(MetaPathFinder):
    """Hooks by module name. Stands first in `sys.meta_path` until the last one ran."""

    def __init__(self, on_error: Callable[[str, Exception], None]) -> None:
        """A hook that raises is given to `on_error` with its module's name; the program's import goes on."""
        self._hooks: dict[str, Hook] = {}
        self._before: dict[str, Callable[[], None]] = {}
        self._on_error = on_error

    def add(self, name: str, hook: Hook, *, before: Callable[[], None] | None = None) -> None:
        """Call `hook(module)` once, after the module's code and before anyone else sees the module.

        `before` is called where that code begins; to look for the module (`find_spec`) does not mean to import it.
        """
        module = sys.modules.get(name)
        if module is not None:
            self._call(name, hook, module)
            return
        self._hooks[name] = hook
        if before is not None:
            self._before[name] = before
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def begins(self, module: ModuleType) -> None:
        before = self._before.pop(module.__name__, None)
        if before is not None:
            before()

    def ran(self, module: ModuleType) -> None:
        hook = self._hooks.pop(module.__name__, None)
        if not self._hooks and self in sys.meta_path:
            sys.meta_path.remove(self)
        if hook is not None:
            self._call(module.__name__, hook, module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._hooks:
            return None
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = HookedLoader(spec.loader, self)
                return spec
        return None

    def _call(self, name: str, hook: Hook, module: ModuleType) -> None:
        try:
            hook(module)
        except Exception as error:
            self._on_error(name, error)


def replace(module: Any, name: str, ours: Any) -> None:
    """Put `ours` into `module`, and into every module that has taken the name from it already."""
    original = getattr(module, name)
    setattr(module, name, ours)
    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get(name) is original:
            setattr(other, name, ours)


class HookedLoader(Loader):
    """The real loader, and the hooks after it."""

    def __init__(self, real: Loader, hooks: PostImport) -> None:
        self._real = real
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._hooks.begins(module)
        with collector_resting():
            self._real.exec_module(module)
        self._hooks.ran(module)


@contextmanager
def collector_resting() -> Iterator[None]:
    """No cyclic garbage collection meanwhile.

    While a large package is imported it looks through hundreds of thousands of new objects again and again and finds
    next to nothing (torch 2.15 with dynamo: 14 % of the time, 110 objects). Afterwards they count as old ones: else the
    first few allocations of the program would have all of them looked through after all, in its first step.
    """
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            if gc.get_freeze_count() == 0:  # what the program froze stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
