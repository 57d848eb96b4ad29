# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

"""The phase of the moon on a date, from the mean length of a lunation (right to about half a day)."""

from math import cos, pi

LUNATION = 29.530588853  # days from one new moon to the next, on average
NEW_MOON = 730125.76  # that of 2000-01-06 18:14 UTC, as date.toordinal() counts days
PHASES = (
    "new moon", "waxing crescent", "first quarter", "waxing gibbous",
    "full moon", "waning gibbous", "last quarter", "waning crescent",
)


def age(day):
    """Days since the last new moon, at noon (UTC) of a datetime.date."""
    return (day.toordinal() + 0.5 - NEW_MOON) % LUNATION


def phase(day):
    """One of PHASES."""
    return PHASES[round(age(day) / LUNATION * 8) % 8]


def lit(day):
    """Which part of the disc is lit, from 0 to 1."""
    return (1 - cos(2 * pi * age(day) / LUNATION)) / 2
