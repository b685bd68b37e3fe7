"""Stop strings against a reading of the whole text character by character, for every way to cut it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.engine.stop_strings import StopStrings

# Two letters and short strings: overlaps, self-overlaps and strings inside strings are the rule.
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)
texts = st.text("abc", max_size=40)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


def first_match(text: str, stops: tuple[str, ...], allowed_from: int = 0) -> tuple[int, str] | None:
    """End and string of the match that is complete first, at a character after `allowed_from`."""
    for end in range(allowed_from + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end, max(complete, key=len)
    return None


def longest_possible_beginning(text: str, stops: tuple[str, ...]) -> int:
    beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
    return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)


@settings(max_examples=500)
@given(texts, stop_lists, st.lists(st.integers(0, 40), max_size=12), st.booleans(), st.integers(0, 4))
def test_any_cut_gives_what_the_whole_text_gives(
    text: str, stops: tuple[str, ...], cuts: list[int], include: bool, suppressed: int
) -> None:
    pieces = pieces_of(text, cuts)
    watcher = StopStrings(stops, include_in_output=include)
    expected = first_match(text, stops, len("".join(pieces[:suppressed])))
    visible = read = ""
    for number, piece in enumerate(pieces):
        visible += watcher.push(piece, may_stop=number >= suppressed)
        read += piece
        if expected is not None and len(read) >= expected[0]:
            break
        assert watcher.matched is None
        # All that is certain has been released, and nothing that may become a stop string.
        assert visible == read[: len(read) - longest_possible_beginning(read, stops)]
    if expected is None:
        assert watcher.matched is None
        assert visible + watcher.flush() == text
    else:
        end, stop = expected
        assert watcher.matched == stop
        assert visible == text[: end if include else end - len(stop)]
        assert watcher.push("ab") + watcher.flush() == ""


@given(st.text(min_size=1, max_size=20), st.text(max_size=30), st.text(max_size=30))
def test_one_string_of_any_characters_is_found_where_str_find_finds_it(stop: str, before: str, after: str) -> None:
    text = before + stop + after
    watcher = StopStrings((stop,))
    visible = "".join(watcher.push(character) for character in text)
    assert watcher.matched == stop
    assert visible == text[: text.find(stop)]
