"""How rows are laid out over ranks and micro-batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.stack.batching import (
    balanced_batches,
    even_slices,
    micro_batches,
    num_fillers,
    num_windows,
)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("windows", [1, 2, 5])
def test_layout_of_any_number_of_rows(ranks, windows):
    for rows in range(1, 60):
        total = rows + num_fillers(rows, ranks=ranks, windows=windows)
        assert total % (ranks * windows) == 0 and total - rows < ranks * windows
        sizes = [s.stop - s.start for s in even_slices(total, ranks)]
        assert len(set(sizes)) == 1 and sum(sizes) == total
        inside = [s.stop - s.start for s in micro_batches(sizes[0], 4)]
        assert sum(inside) == sizes[0] and max(inside) <= 4 and max(inside) - min(inside) <= 1


@given(
    st.lists(st.integers(1, 50), min_size=8, max_size=40),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(20, 60),
)
def test_no_forward_pass_has_more_tokens_than_allowed(lengths, ranks, max_tokens):
    """But for a row that has more by itself, and where not even one row a micro-batch is a multiple of the ranks."""
    batches = balanced_batches(lengths, ranks=ranks, max_tokens=max_tokens)
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    assert len(batches) % ranks == 0 and all(batches)
    if len(lengths) % ranks == 0:
        assert all(
            len(rows) == 1 or sum(lengths[i] for i in rows) <= max_tokens for rows in batches
        )


def test_the_number_of_forward_passes_is_rounded_up():
    """96 rows of 5,000 tokens on 8 ranks, 6 to a micro-batch of 32,768: 16 of them. Of 5,500, 5 fit, and 20 become 24, not 16 with
    33,000 tokens."""
    assert len(balanced_batches([5000] * 96, ranks=8, max_tokens=32768)) == 16
    batches = balanced_batches([5500] * 96, ranks=8, max_tokens=32768)
    assert len(batches) == 24 and max(map(len, batches)) == 4


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 3000))
def test_a_rank_finds_the_number_of_updates_in_its_own_rows(ranks, share, rows):
    """Fillers never add an update, and none is larger than asked for."""
    most = ranks * share
    windows = num_windows(None, num_rows=rows, rows_per_update=most)
    assert (windows - 1) * most < rows <= windows * most
    total = rows + num_fillers(rows, ranks=ranks, windows=windows)
    assert num_windows(None, num_rows=total, rows_per_update=most) == windows
    assert total // windows <= most
