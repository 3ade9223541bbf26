"""The page of one worker, mapped: numbers in slots, facts as JSON (layout: `ddpjob_api.page`).

Why apart: worker and launcher map the same file and must agree to the byte. Must not: import torch, lock, or start a
thread; a reader may meet the page of a process that died in the middle of anything.
"""

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ddpjob_api.page import FACTS_BASE, MAGIC, PAGE_BYTES, SLOT_BASE, SLOT_COUNT, Slot

FACTS_HEADER = 16
MAX_FACTS_BYTES = PAGE_BYTES - FACTS_BASE - FACTS_HEADER


class BadPage(OSError):
    """The file is no page of this version; the message names it."""


class Page:
    """A mapped page. `page[Slot.STEP]` reads and writes one float64."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Map the file.

        Raises:
            BadPage: it exists and is not a page of this layout.
            OSError: it cannot be opened.
        """
        self.path = path
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create and os.fstat(descriptor).st_size == 0:
                os.ftruncate(descriptor, PAGE_BYTES)
                os.pwrite(descriptor, MAGIC, 0)
            if os.fstat(descriptor).st_size != PAGE_BYTES or os.pread(descriptor, len(MAGIC), 0) != MAGIC:
                raise BadPage(
                    f"{path}: no page of layout {MAGIC.decode()}; delete it and start the worker again"
                )
            self._map = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)
        self._bytes = memoryview(self._map)
        self.slots = self._bytes[SLOT_BASE : SLOT_BASE + 8 * SLOT_COUNT].cast("d")
        """The float64 slots themselves, for the hot path: `slots[Slot.STEP] += 1`."""

    def __getitem__(self, slot: Slot) -> float:
        return self.slots[slot]

    def __setitem__(self, slot: Slot, value: float) -> None:
        self.slots[slot] = value

    def put_facts(self, facts: Mapping[str, Any]) -> None:
        """Replace the facts; a reader never sees half of them.

        Raises:
            ValueError: they do not fit.
        """
        text = json.dumps(facts, separators=(",", ":")).encode()
        if len(text) > MAX_FACTS_BYTES:
            raise ValueError(f"facts of {len(text)} bytes; the page holds {MAX_FACTS_BYTES}")
        sequence = self._word(0)
        self._set_word(0, sequence | 1)
        body = FACTS_BASE + FACTS_HEADER
        self._bytes[body : body + len(text)] = text
        self._set_word(8, len(text))
        self._set_word(0, (sequence | 1) + 1)

    def facts(self) -> dict[str, Any]:
        """The facts, empty while there are none or the writer died while writing."""
        for _ in range(8):
            before, length = self._word(0), self._word(8)
            if before % 2 or not 0 < length <= MAX_FACTS_BYTES:
                continue
            body = FACTS_BASE + FACTS_HEADER
            text = bytes(self._bytes[body : body + length])
            if self._word(0) == before:
                try:
                    found = json.loads(text)
                except (ValueError, RecursionError):
                    return {}
                return found if isinstance(found, dict) else {}
        return {}

    def _word(self, offset: int) -> int:
        start = FACTS_BASE + offset
        return int.from_bytes(self._bytes[start : start + 8], "little")

    def _set_word(self, offset: int, value: int) -> None:
        start = FACTS_BASE + offset
        self._bytes[start : start + 8] = value.to_bytes(8, "little")

    def close(self) -> None:
        self.slots.release()
        self._bytes.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
