# SPDX-License-Identifier: Apache-2.0
# backends: none
"""How the engine of headrace.compat.pplx counts immediates."""

import logging

import pytest

from headrace.compat.pplx import _immediates


class Counted:
    """Immediates, what its functions were told, and what is to run later."""

    def __init__(self):
        self.late, self.told = [], []
        self.immediates = _immediates.Immediates(self.late.append)

    def expect(self, immediate, count):
        return self.immediates.expect(immediate, count, lambda: self.told.append(f"reached {immediate}"))

    def run_late(self):
        late, self.late[:] = self.late[:], []
        for call in late:
            call()


@pytest.fixture
def counted():
    return Counted()


def test_a_counter_is_reached_once_and_the_rest_goes_to_the_callback(counted):
    counted.immediates.set_callback(counted.told.append)
    assert counted.expect(7, 10) is None
    counted.immediates.arrived(7, 9)
    assert counted.told == []
    counted.immediates.arrived(7, 3)
    assert counted.told == ["reached 7", 7, 7]
    counted.immediates.arrived(7, 1)
    counted.immediates.arrived(8, 1)
    assert counted.told[3:] == [7, 8]


def test_what_comes_before_its_counter_counts(counted):
    counted.immediates.arrived(7, 3)
    counted.expect(7, 4)
    counted.run_late()
    assert counted.told == [] and counted.immediates.remove(7) == (3, 4)

    counted.immediates.arrived(7, 5)
    counted.expect(7, 2)
    assert counted.told == [], "functions run on the callback thread alone"
    counted.run_late()
    assert counted.told == ["reached 7"]
    counted.expect(7, 3)  # what exceeded the first one stays for the next
    counted.run_late()
    assert counted.told == ["reached 7"] * 2
    counted.expect(7, 1)
    counted.run_late()
    assert counted.told == ["reached 7"] * 2


def test_what_comes_before_the_callback_is_told(counted):
    counted.immediates.arrived(7, 2)
    counted.immediates.set_callback(counted.told.append)
    counted.run_late()
    assert counted.told == [7, 7]


def test_a_counter_that_is_replaced_or_removed_says_how_far_it_was(counted):
    counted.expect(7, 5)
    counted.immediates.arrived(7, 2)
    assert counted.expect(7, 1) == (2, 5)
    counted.run_late()
    assert counted.told == [], "its arrivals do not count for the next one"
    assert counted.immediates.remove(7) == (0, 1)
    assert counted.immediates.remove(7) is None


def test_a_callback_that_raises_stops_nothing(counted, caplog):
    def fail(*given):
        counted.told.append("failed")
        raise KeyError("no page")

    counted.immediates.set_callback(fail)
    counted.immediates.expect(7, 1, fail)
    with caplog.at_level(logging.ERROR):
        counted.immediates.arrived(7, 3)
    assert counted.told == ["failed"] * 3
    assert "a callback failed" in caplog.text and "no page" in caplog.text


def test_a_reached_counter_may_be_set_again_by_its_own_function(counted):
    def again():
        counted.told.append("again")
        counted.immediates.expect(7, 2, lambda: counted.told.append("last"))

    counted.immediates.expect(7, 2, again)
    counted.immediates.arrived(7, 4)
    counted.run_late()
    assert counted.told == ["again", "last"]


def test_immediates_that_nobody_asks_for_are_bounded(counted, monkeypatch, caplog):
    monkeypatch.setattr(_immediates, "MOST_KEPT", 2)
    for immediate in (1, 2, 3, 1):
        counted.immediates.arrived(immediate, 1)
    assert "immediate 3 is lost" in caplog.text
    counted.expect(1, 2)
    counted.expect(3, 1)
    counted.run_late()
    assert counted.told == ["reached 1"]


def test_wrong_numbers_are_refused(counted):
    for immediate in (-1, 2**32):
        with pytest.raises(OverflowError, match="32 bits"):
            counted.expect(immediate, 1)
    with pytest.raises(ValueError, match="give at least 1"):
        counted.expect(0, 0)
