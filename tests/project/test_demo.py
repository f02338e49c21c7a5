"""The demo over pictures of every kind, and its figures on the held-out photos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import q8ta_wgpu as q8
from demo import __main__ as demo
from demo import photos
from demo.network import FACTOR, trained
from q8ta_wgpu.runtime.device import Device


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> q8.Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("demo"))
        return demo.build(trained())


@pytest.mark.parametrize("name", photos.HELD_OUT)
def test_int8_keeps_the_quality(name: str, model: q8.Model, vulkan: Device) -> None:
    photo = photos.crop_to_multiple(photos.luma(photos.load(name)), FACTOR)
    x = photos.to_input(photos.shrink(photo, FACTOR))
    with torch.no_grad():
        in_float = photos.psnr(photos.to_image(trained()(torch.from_numpy(x)).numpy()), photo)
    bicubic = photos.psnr(photos.enlarge(photos.shrink(photo, FACTOR), FACTOR), photo)
    with q8.TiledSession(model, x.shape, vulkan) as session:
        in_int8 = photos.psnr(photos.to_image(session(x)), photo)
    assert in_float >= bicubic + 0.7
    assert in_int8 >= in_float - 0.5


def test_every_node_is_int8(model: q8.Model) -> None:
    report = model.report()
    assert report.float32 == {}, str(report)
    assert report.exact


PICTURES = {
    "grey": Image.fromarray(np.arange(40 * 31, dtype=np.uint16).astype(np.uint8).reshape(40, 31)),
    "rgba": Image.new("RGBA", (50, 33), (200, 30, 60, 128)),
    "palette": Image.new("P", (20, 23), 3),
    "16 bit": Image.fromarray((np.arange(30 * 30, dtype=np.uint16) * 70).reshape(30, 30)),
    "tiny": Image.new("RGB", (1, 1), (9, 9, 9)),
    "narrow": Image.new("RGB", (7, 90), (9, 200, 9)),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_of_every_kind(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    PICTURES[kind].save(tmp_path / "picture.png")
    demo.main(["--image", str(tmp_path / "picture.png")])
    printed = capsys.readouterr().out
    assert "mismatches vs reference: 0 " in printed
    with Image.open(tmp_path / "out" / "demo.png") as sheet:
        assert sheet.width > sheet.height // 3


def test_a_photo_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    image = Image.new("RGB", (60, 30))
    exif = image.getexif()
    exif[0x0112] = 6  # orientation: a quarter turn
    image.save(tmp_path / "turned.jpg", exif=exif)
    photo = demo.read(str(tmp_path / "turned.jpg")).photo
    assert photo is not None
    assert photo.size == (30, 60)


def test_an_unreadable_picture_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "picture.png").write_text("no picture")
    with pytest.raises(SystemExit, match="cannot read the picture"):
        demo.main(["--image", str(tmp_path / "picture.png")])
