"""Hypothesis's examples: the same in each run, unless new ones are asked for."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import HypothesisProvider


@settings(max_examples=1)
@given(data=st.data())
def test_examples_do_not_depend_on_the_modules_that_are_loaded(data: st.DataObject) -> None:
    provider = data.conjecture_data.provider
    assert isinstance(provider, HypothesisProvider)

    # Integers, floats, strings and bytes that stand in sources.
    is_random = settings.get_current_profile_name() == "random"
    assert bool(len(provider._local_constants)) == is_random
