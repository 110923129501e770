"""Time stamps: accepted forms, refused look-alikes, and the columns read at once against one at a time."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertally.errors import InvalidParameter
from evertally.pipelines.text_columns import character_matrix
from evertally.pipelines.ticks import TickGrid, format_ms, parse_ms
from evertally.pipelines.timestamp_columns import parse_uniform
from evertally.pipelines.timestamps import BadTimestamp, TimestampFault, load_timezone, parse_timestamp

NEW_YEAR_5AM = 1_357_016_400_000  # 2013-01-01T05:00Z: date -d 2013-01-01T05:00Z +%s


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2013-01-01T05:00Z", NEW_YEAR_5AM),
        ("2013-01-01t05:00:00z", NEW_YEAR_5AM),
        ("2013-01-01 05:00:00.000Z", NEW_YEAR_5AM),
        ("2013-01-01T00:00-05:00", NEW_YEAR_5AM),
        ("2013-01-01T10:30:00.25+05:30", NEW_YEAR_5AM + 250),
        ("2013-01-01T05:00:00.0019999Z", NEW_YEAR_5AM + 1),
        ("2012-12-31T23:59:60Z", 1_356_998_400_000),
        ("2012-02-29T00:00Z", 1_330_473_600_000),
        ("1969-12-31T23:59:59.999Z", -1),
        (str(NEW_YEAR_5AM), NEW_YEAR_5AM),
        ("-5", -5),
    ],
)
def test_accepted_forms(text: str, ms: int) -> None:
    assert parse_timestamp(text, None) == ms


@pytest.mark.parametrize(
    "text",
    [
        "2013-W01-1T05:00Z",  # week date
        "2013-01-01T05:00:00,5Z",  # comma
        "2013-01-01x05:00Z",
        "2013-001T05:00Z",
        "20130101T0500Z",
        "2013-01-01",
        "2013-01-01T05Z",
        "2013-02-29T05:00Z",
        "2013-01-01T24:00Z",
        "2013-00-01T05:00Z",
        "2013-13-01T05:00Z",
        "2013-01-00T05:00Z",
        "2013-04-31T05:00Z",
        "1900-02-29T05:00Z",
        "2013-01-01T05:00:61Z",
        "2013-01-01T05:00+05:60",
        "2013-01-01T05:00~05:00",
        "2013-01-01T05:00:0xZ",
        "2013-01-01T05:60Z",
        "2013-01-01T05:30:60Z",
        "2013-01-01T05:00:00.Z",
        "2013-01-01T05:00+0500",
        "2013-01-01T05:00+24:00",
        "0000-01-01T05:00Z",
        " 2013-01-01T05:00Z",
        "2013-01-01T05:00Z\n",
        "٢٠١٣-٠١-٠١T٠٥:٠٠Z",  # digits, but not ASCII ones
        "1357016400.5",
        "1e12",
        "9999999999999999",
        "nan",
        "",
    ],
)
def test_refused_forms(text: str) -> None:
    with pytest.raises(BadTimestamp) as caught:
        parse_timestamp(text, None)
    assert caught.value.fault is TimestampFault.MALFORMED
    assert not text or text not in str(caught.value)
    characters = character_matrix([text, text])
    uniform = None if characters is None else parse_uniform(characters)
    assert uniform is None or not uniform[1].any()


def test_a_time_without_offset_needs_a_declared_zone() -> None:
    with pytest.raises(BadTimestamp) as caught:
        parse_timestamp("2013-01-01T00:00", None)
    assert caught.value.fault is TimestampFault.NO_OFFSET
    new_york = load_timezone("America/New_York")
    assert parse_timestamp("2013-01-01T00:00", new_york) == NEW_YEAR_5AM
    assert parse_timestamp("2013-07-01T00:00:00", new_york) == 1_372_651_200_000  # daylight saving: 04:00Z
    # the repeated hour of 2013-11-03 is read as its first turn (UTC-4)
    assert parse_timestamp("2013-11-03T01:30", new_york) == 1_383_456_600_000
    assert parse_timestamp("0001-01-01T00:00", load_timezone("Asia/Tokyo")) < -62_000_000_000_000


def test_an_unknown_zone_is_named() -> None:
    with pytest.raises(InvalidParameter, match="Mars/Base"):
        load_timezone("Mars/Base")


@st.composite
def nearly_timestamps(draw: st.DrawFn) -> list[str]:
    """Columns of one length: real times, with a few characters replaced."""
    form = draw(st.sampled_from(["", ":%S", ":%S.000", ":%S.123456", ":%S.987654321"]))
    offset = draw(st.sampled_from(["Z", "z", "+05:30", "-11:00", "+00:00"]))
    moments = draw(
        st.lists(
            st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)), min_size=1, max_size=8
        )
    )
    texts = []
    for moment in moments:
        text = moment.isoformat()[:16] + form.replace("%S", f"{moment.second:02d}") + offset
        for _ in range(draw(st.integers(0, 2))):
            place = draw(st.integers(0, len(text) - 1))
            text = text[:place] + draw(st.sampled_from("0123456789:-+TtZz. /;\0~")) + text[place + 1 :]
        texts.append(text)
    return texts


@pytest.mark.slow
@given(nearly_timestamps())
def test_a_column_at_once_says_what_each_row_alone_says(texts: list[str]) -> None:
    characters = character_matrix(texts)
    assert characters is not None
    uniform = parse_uniform(characters)
    if uniform is None:
        return
    times, valid = uniform
    for text, time_ms, good in zip(texts, times.tolist(), valid.tolist(), strict=True):
        if good:
            assert parse_timestamp(text, None) == time_ms


def test_a_column_of_good_times_is_valid_as_a_whole() -> None:
    start = datetime.datetime(1899, 12, 31, 22, 30)
    moments = [start + datetime.timedelta(days=13 * n, minutes=7 * n) for n in range(9000)]
    characters = character_matrix([moment.isoformat()[:16] + "Z" for moment in moments])
    assert characters is not None
    uniform = parse_uniform(characters)
    assert uniform is not None
    epoch = datetime.datetime(1970, 1, 1)
    assert uniform[1].all()
    assert uniform[0].tolist() == [(m - epoch) // datetime.timedelta(milliseconds=1) for m in moments]


def test_ticks() -> None:
    grid = TickGrid.between(parse_ms("2013-01-01T05:00:00Z"), parse_ms("2014-01-01T06:00:00Z"), 3_600_000)
    assert grid.ticks == 8761
    assert format_ms(grid.end_ms(1)) == "2013-01-01T06:00:00Z"
    assert format_ms(grid.last_ms) == "2014-01-01T06:00:00Z"
    assert format_ms(1) == "1970-01-01T00:00:00.001Z"
    for start, end, tick in [(0, 0, 1), (0, 10, 3), (10, 0, 1), (0, 10, 20)]:
        with pytest.raises(InvalidParameter):
            TickGrid.between(start, end, tick)


@given(st.integers(-60_000_000_000_000, 200_000_000_000_000))
def test_times_are_written_and_read_back(ms: int) -> None:
    assert parse_ms(format_ms(ms)) == ms
    assert parse_timestamp(format_ms(ms), None) == ms
