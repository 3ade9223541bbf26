"""Who reads what: for any sizes, every sample once per epoch, and nothing depends on the number of ranks."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from ddpjob_trainer.loop.evaluating import shares_of
from ddpjob_trainer.loop.order import Layout, permutation, steps_left, windows

sizes = st.integers(1, 200)
ranks = st.integers(1, 6)
micro = st.integers(1, 7)
accumulations = st.integers(1, 4)
seeds = st.integers(0, 2**31 - 1)


def everybody(size, seed, epoch, world_size, micro_batch, accumulation, consumed=0):
    """The windows of all ranks, by step."""
    layouts = [
        Layout(world_size=world_size, rank=rank, micro_batch=micro_batch, accumulation=accumulation)
        for rank in range(world_size)
    ]
    return list(zip(*(list(windows(size, seed, epoch, layout, consumed)) for layout in layouts), strict=True))


def samples_of(step):
    """The samples of one optimizer step, over all ranks, in the order's order."""
    by_micro_batch = zip(*(window.shares for window in step), strict=True)
    shares = (share for each in by_micro_batch for share in each if not share.stands_in)
    return list(chain.from_iterable(share.samples for share in shares))


@given(sizes, seeds, ranks, micro, accumulations)
def test_every_sample_is_read_once_per_epoch(size, seed, world_size, micro_batch, accumulation):
    steps = everybody(size, seed, 3, world_size, micro_batch, accumulation)
    assert list(chain.from_iterable(map(samples_of, steps))) == permutation(size, seed, 3).tolist()
    assert sorted(permutation(size, seed, 3).tolist()) == list(range(size))
    assert len(steps) == steps_left(size, world_size * micro_batch * accumulation)


@given(sizes, seeds, ranks, micro, accumulations)
def test_all_ranks_make_the_same_passes(size, seed, world_size, micro_batch, accumulation):
    for step in everybody(size, seed, 0, world_size, micro_batch, accumulation):
        assert len({len(window.shares) for window in step}) == 1
        assert len({window.consumed for window in step}) == 1
        for window in step:
            assert 1 <= len(window.shares) <= accumulation
            assert all(1 <= len(share.samples) <= micro_batch for share in window.shares)
        assert not any(share.stands_in for share in step[0].shares), "rank 0 always has samples of its own"


@given(sizes, seeds, st.data())
def test_a_step_has_the_same_samples_for_any_number_of_ranks(size, seed, data):
    world_size, accumulation = data.draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 6), (2, 3), (3, 2)]))
    alone = everybody(size, seed, 1, 1, 12, 1)
    spread = everybody(size, seed, 1, world_size, 12 // world_size // accumulation, accumulation)
    assert [samples_of(step) for step in spread] == [samples_of(step) for step in alone]


@given(sizes, seeds, ranks, micro, accumulations, st.data())
def test_a_position_is_all_that_is_needed_to_go_on(size, seed, world_size, micro_batch, accumulation, data):
    steps = everybody(size, seed, 0, world_size, micro_batch, accumulation)
    at = data.draw(st.integers(1, len(steps)))
    rest = everybody(size, seed, 0, world_size, micro_batch, accumulation, steps[at - 1][0].consumed)
    assert rest == steps[at:]


@given(sizes, ranks, micro)
def test_evaluation_reads_every_sample_once(size, world_size, batch_size):
    layouts = [
        Layout(world_size=world_size, rank=rank, micro_batch=1, accumulation=1) for rank in range(world_size)
    ]
    read = [share.samples for layout in layouts for share in shares_of(size, batch_size, layout)]
    assert list(chain.from_iterable(read)) == list(range(size))


def test_the_order_differs_between_epochs_and_seeds():
    orders = {
        tuple(permutation(50, seed, epoch).tolist()) for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
    }
    assert len(orders) == 4
