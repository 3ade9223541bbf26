"""What the job's time goes to, kept by the coordinator from the job's start on, also over its own replacement.

Why apart: every second is entered once, under one use (`goodput.Use`), and only when it is known which: the time since
the last step belongs to the next step, or to the hang or the failure that ends it. Until then it is pending and in no
sum. Must not: read a clock. Times are of the coordinator's monotonic clock, `unix` is the same moment for others, who
need it to go on: a successor takes the newest sums that the operator or any launcher has, and what happened since
`until` was time without all launchers.
"""

from ddpjob_api.goodput import Spent, Times, Use
from ddpjob_api.messages import Pace


class TimeBook:
    """Sums of seconds, and the moment up to which they account."""

    def __init__(self, spent: Spent | None = None) -> None:
        """`spent`: what the operator knew when this pod was made; None for a job that begins here."""
        self._times = spent.times if spent else Times()
        self._first_step_at = spent.first_step_at if spent else None
        self._reached = spent.reached if spent else 0
        self._until = spent.until if spent and spent.until > 0 else None
        """Unix time; known until `_mark` is."""
        self._mark: float | None = None
        """Up to here every second is entered."""
        self._whole = False
        """All launchers were there at the last look."""
        self._began = False
        """A generation of this coordinator has begun: nobody knows more than we do."""
        self._made = 0
        """Steps of the generation that runs, as far as they are entered."""

    def open(self, now: float, unix: float) -> None:
        """The coordinator lives."""
        if self._mark is None:
            self._mark = now - max(0.0, unix - self._until) if self._until is not None else now

    def learn(self, spent: Spent | None, now: float, unix: float) -> None:
        """Take what a launcher heard from the coordinator before this one, if that is newer."""
        self.open(now, unix)
        assert self._mark is not None
        if spent is None or self._began or spent.until <= unix - (now - self._mark):
            return
        self._times, self._reached = spent.times, max(self._reached, spent.reached)
        self._first_step_at = spent.first_step_at
        self._mark = now - max(0.0, unix - spent.until)

    def wait(self, now: float, *, whole: bool) -> None:
        """No generation runs; `whole`: no launcher is missing."""
        if whole:
            self._enter(self._starting if self._whole else Use.QUEUEING, now)
        self._whole = whole

    def begin(self, now: float) -> None:
        """A generation begins."""
        self.wait(now, whole=True)
        self._began, self._made = True, 0

    def pace(self, pace: Pace | None, now: float, unix: float) -> None:
        """How far the first rank is."""
        if pace is None or pace.made <= self._made or self._mark is None:
            return
        first = min(now, now - pace.first_seconds)
        last = min(now, now - pace.last_seconds)
        fresh = pace.made - self._made
        if not self._made:
            # The first step of a process loads and warms up; with it the start is over.
            self._enter(self._starting, first)
            self._first_step_at = self._first_step_at or unix - (now - first)
            fresh -= 1
        if fresh:
            again = min(max(self._reached - (pace.step - fresh), 0), fresh) / fresh
            middle = self._mark + max(0.0, last - self._mark) * again  # those made again come first
            self._enter(Use.REPEATED, middle)
            self._enter(Use.USEFUL, last)
        self._made, self._reached = pace.made, max(self._reached, pace.step)

    def end(self, now: float, use: Use) -> None:
        """The generation has ended, or the job; what is pending was for that."""
        self._enter(use if self._whole else Use.QUEUEING, now)
        self._whole = True

    def spent(self, now: float, unix: float) -> Spent:
        """The sums, for others."""
        mark = now if self._mark is None else self._mark
        return Spent(
            times=self._times.rounded(),
            until=round(unix - (now - mark), 2),
            first_step_at=round(self._first_step_at, 2) if self._first_step_at is not None else None,
            reached=self._reached,
        )

    @property
    def sees_steps(self) -> bool:
        """Whether any step was ever seen."""
        return self._reached > 0

    @property
    def _starting(self) -> Use:
        return Use.START if self._first_step_at is None else Use.RESTART

    def _enter(self, use: Use, until: float) -> None:
        if self._mark is not None and until > self._mark:
            self._times = self._times.plus(use, until - self._mark)
            self._mark = until
