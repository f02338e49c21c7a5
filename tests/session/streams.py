"""The inputs of streams, and what the reference computes of them."""

from q8ta_wgpu import Session
from testbed.small import small_input, small_model

MODEL = small_model()
INPUTS = [small_input(i) for i in range(8)]
EXPECTED = [Session(MODEL, "reference")(x) for x in INPUTS]
