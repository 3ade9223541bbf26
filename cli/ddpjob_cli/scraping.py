"""Launchers asked for their metrics again and again, so that two answers make a rate.

Why apart: who is asked how differs between a cluster and this machine, the pairing does not. Must not: know either.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ddpjob_cli import ranks
from ddpjob_cli.errors import CommandError
from ddpjob_cli.ranks import Place, Scrape

AT_ONCE = 16
FIRST_SECONDS = 1.0
"""Between the two first answers."""


class Scraper:
    """Remembers what each launcher said last."""

    def __init__(self, fetch: Callable[[Place], str]) -> None:
        """`fetch` has the text of `/metrics`, and raises CommandError where there is none."""
        self._fetch = fetch
        self._last: dict[str, Scrape] = {}

    def look(self, places: Sequence[Place]) -> list[Place]:
        """The places with the last and the present answer; a first look asks twice."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            if any(place.pod not in self._last for place in places):
                list(pool.map(self._ask, places))
                time.sleep(FIRST_SECONDS if self._last else 0.0)
            return list(pool.map(self._ask, places))

    def _ask(self, place: Place) -> Place:
        try:
            text = self._fetch(place)
        except CommandError as error:
            self._last.pop(place.pod, None)
            return replace(place, problem=str(error))
        before, now = self._last.get(place.pod), ranks.parse(text, time.monotonic())
        self._last[place.pod] = now
        return replace(place, scrapes=(now,) if before is None else (before, now))
