"""The tuned numbers by which bits are decided: all that there are.

`GUARDS` has for each the test that fails without it. Ratios of noise are ratios of powers, noise to signal: 20 dB of
signal to noise are 0.01.
"""

from __future__ import annotations

WITHIN = 10**0.05
"""The noise that is allowed, relative to the yardstick's: half a decibel more, since the noise on other inputs is
larger than in the simulation."""

SPARE = 10**0.03
"""Where values are widened at all, the noise must be below what is wanted by this factor."""

CLEAN, GOOD, FAIR, POOR = 1e-6, 1e-3, 1e-2, 1e-1
"""Noise that no one notices, 60 dB, so that more bits gain nothing; noise beside which parts of an output are not told
apart, 30 dB; noise that is wanted where the yardstick has none or is poor, 20 dB, below which that of several values
adds up; and noise beyond which channels and items are not judged, and outputs are warned of, 10 dB."""

NOTHING = 0.01
"""The share that nobody notices: of the noise that is wanted, and of the time that a network takes."""

SEVERAL, NUMBERS, FEW = 8, 32, 1000
"""Fewer numbers, inputs or frequencies than SEVERAL may be alike by chance. The noise of fewer numbers than NUMBERS
says little: that of four may by chance be 5 dB above or below that of all, of 48 still 2 dB. A value of which
calibration met fewer numbers than FEW is likely to have larger ones for other inputs, and twice as many are needed to
know both of its ends."""

EQUALIZED_BY = 128
"""The least number of inputs that tell the sizes of channels, so that these are equalized. With fewer, larger values on
other inputs are clipped: with 32 a trained text network lost 5.6 dB and a vision transformer 2.1; with 64 text lost 1.0
dB and sequences 0.7. With 128 no trained network of `bench/suite` lost (docs/experiments.md)."""

ROOM = 2.0
"""Times the range that calibration met, for values in 16 bits and states of recurrent layers: 14 bits are fine enough,
and what other inputs reach is not clipped."""

WORTH = 1.2
"""By how much clipping must lower the error. Pixels lie on steps of the whole range, which rounding then keeps, and
what is clipped is rare but large."""

PEAKS = 16
"""Items from which on their largest values say how far others reach. The largest quarter of these tells it."""

FILL = 10.0
"""What takes the place of masked elements is this many times as large as all others."""

GUARDS = {
    "WITHIN": "tests/frontend/test_precision.py::test_no_network_is_below_the_yardstick",
    "SPARE": "tests/frontend/test_low_outputs.py::test_allowed_logits_are_as_exact_as_without_a_mask",
    "CLEAN": "tests/frontend/test_precision.py::test_float32_is_not_taken_where_int16_leaves_next_to_no_noise",
    "GOOD": "tests/frontend/test_judged_by_parts.py::test_small_series_keep_as_much_as_large_ones",
    "FAIR": "tests/onnx_import/test_precision_of_files.py::test_a_network_whose_yardstick_has_no_noise_is_judged",
    "POOR": "tests/frontend/test_precision.py::test_a_poor_yardstick_is_no_excuse_where_16_bits_reach_20_decibels",
    "NOTHING": "tests/frontend/test_precision.py::test_no_network_is_below_the_yardstick",
    "SEVERAL": "tests/frontend/test_judged_by_parts.py::test_channels_of_like_size_are_not_judged_apart",
    "NUMBERS": "tests/frontend/test_judged_by_parts.py::test_few_values_of_very_different_sizes_are_one_part",
    "FEW": "tests/frontend/test_equalize.py::test_columns_of_few_rows_are_not_equalized",
    "EQUALIZED_BY": "text",
    "ROOM": "tests/frontend/test_precision.py::test_16_bits_have_room_for_what_calibration_did_not_reach",
    "WORTH": "tests/frontend/test_observer.py::test_where_clipping_gains_little_it_loses_on_other_values",
    "PEAKS": "tests/frontend/test_observer.py::test_few_small_inputs_leave_room_for_others",
    "FILL": "tests/frontend/test_low_outputs.py::test_allowed_logits_are_as_exact_as_without_a_mask",
}
"""The test that fails without a number, as by 1 in place of a factor, or by no limit."""
