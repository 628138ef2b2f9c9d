"""How rows are laid out over ranks and micro-batches."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.stack.batching import (
    MAX_ADDITIONAL,
    even_slices,
    micro_batches,
    num_fillers,
    num_padded_tokens,
    num_tight,
    tight_micro_batches,
)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=9).map(sorted), st.integers(1, 5), st.integers(0, MAX_ADDITIONAL)
)
def test_rows_of_similar_length_share_a_micro_batch(lengths, micro_batch_size, more):
    """Against every way to cut the rows."""
    fewest = -(-len(lengths) // micro_batch_size)
    count = min(fewest + more, len(lengths))
    ways = [
        [slice(a, b) for a, b in pairwise((0, *cuts, len(lengths)))]
        for cuts in combinations(range(1, len(lengths)), count - 1)
    ]
    least = min(
        num_padded_tokens(lengths, way) for way in ways if all(s.stop - s.start <= micro_batch_size for s in way)
    )
    found = tight_micro_batches(lengths, micro_batch_size, count)
    assert found in ways and max(s.stop - s.start for s in found) <= micro_batch_size
    assert num_padded_tokens(lengths, found) == least
    assert fewest <= num_tight(lengths, micro_batch_size) <= fewest + MAX_ADDITIONAL


def test_reflection_prompts_do_not_pad_other_rows():
    """A step of cpu_smoke: 72 rows of about 40 tokens, 8 with a reflection prompt; five micro-batches of 16 must mix them."""
    lengths = [40] * 72 + [200] * 8
    assert num_padded_tokens(lengths, tight_micro_batches(lengths, 16, 5)) == 64 * 40 + 16 * 200
    assert num_tight(lengths, 16) == 6
    assert num_padded_tokens(lengths, tight_micro_batches(lengths, 16, 6)) == sum(lengths)
    assert num_tight([40] * 80, 16) == 5  # nothing to save
    assert num_tight([40] * 79 + [41], 16) == 5  # too little to save
    assert num_tight([5], 16) == 1
    for count in (4, 81):
        with pytest.raises(ValueError, match=f"80 rows do not make {count} micro-batches of 1 to 16 rows"):
            tight_micro_batches([40] * 80, 16, count)


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
