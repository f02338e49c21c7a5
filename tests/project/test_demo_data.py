"""The demo's photographs are split honestly, and its network beats bicubic on those it never saw."""

from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skimage")

import torch
from PIL import Image

from demo import photos
from demo.network import FACTOR, WEIGHTS, SuperResolution, trained
from demo.train import compare

SEEN = sorted({*photos.TRAINING, *photos.CALIBRATION})


def sha256(name: str) -> str:
    return hashlib.sha256(photos.path(name).read_bytes()).hexdigest()


def thumbnail(name: str) -> np.ndarray:
    """32x32 luma with mean 0 and norm 1: the same picture in other bytes, size or exposure stays the same."""
    small = np.asarray(photos.luma(photos.load(name)).resize((32, 32), Image.Resampling.BOX), dtype=np.float64)
    small -= small.mean()
    return small / np.linalg.norm(small)


def test_split_names_every_photo_once_and_by_its_hash() -> None:
    assert len(set(photos.HELD_OUT)) == len(photos.HELD_OUT) >= 3
    assert len(set(photos.TRAINING)) == len(photos.TRAINING)
    assert set(photos.SHA256) == {*photos.HELD_OUT, *SEEN}
    assert {name: sha256(name) for name in photos.SHA256} == photos.SHA256


def test_held_out_photos_are_in_neither_training_nor_calibration() -> None:
    assert not {sha256(name) for name in photos.HELD_OUT} & {sha256(name) for name in SEEN}


def test_held_out_photos_show_what_no_seen_photo_shows() -> None:
    thumbnails = {name: thumbnail(name) for name in photos.SHA256}
    alike = {pair: float(np.vdot(*(thumbnails[n] for n in pair))) for pair in product(photos.HELD_OUT, SEEN)}
    assert max(alike.values()) < 0.5, max(alike.items(), key=lambda item: item[1])
    # The measure does find the same scene in other pixels: the two views of a stereo pair.
    assert np.vdot(thumbnails["motorcycle_left.png"], thumbnails["motorcycle_right.png"]) > 0.5


def test_a_photo_with_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(photos.SHA256, "coins.png", "0" * 64)
    with pytest.raises(ValueError, match=r"coins\.png: sha256 is f8d7.*expects 0000"):
        photos.load("coins.png")


def test_weights_are_small_and_finite() -> None:
    assert WEIGHTS.stat().st_size < 300_000
    assert all(torch.isfinite(p).all() for p in trained().parameters())


@pytest.mark.parametrize("name", photos.HELD_OUT)
def test_float_network_beats_bicubic(name: str) -> None:
    bicubic, network = compare(trained(), name)
    assert network >= bicubic + 0.7


def test_an_output_pixel_sees_no_farther_than_the_halo() -> None:
    torch.manual_seed(0)
    network = SuperResolution()
    middle = network.halo + 3
    x = torch.rand(1, 1, 2 * middle + 1, 2 * middle + 1, requires_grad=True)
    rows = slice(FACTOR * middle, FACTOR * (middle + 1))
    network(x)[..., rows, rows].sum().backward()
    assert x.grad is not None
    reached = x.grad[0, 0].nonzero()
    assert int((reached - middle).abs().max()) == network.halo


def test_psnr_is_that_of_a_known_error() -> None:
    black, grey = Image.new("L", (9, 9), 0), Image.new("L", (9, 9), 51)
    assert photos.psnr(grey, black) == pytest.approx(20 * np.log10(5))
    assert photos.psnr(grey, grey) == float("inf")
