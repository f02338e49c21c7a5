"""In-place operators and composites are replaced where they stand, and only where that computes the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.export.plain import is_plain
from q8ta_wgpu.frontend.export.rewrite import rewrite
from tests.quantizing import INT8

WEIGHT = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))


class Wrapped(nn.Module):
    """A function of a convolution's result."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(WEIGHT)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(F.conv2d(x, self.weight))


def read_before_and_after(y: Tensor) -> Tensor:
    before = y * 2
    y.relu_()
    y += before
    return y * before


def through_a_view(y: Tensor) -> Tensor:
    view = y.flatten(1)
    y.relu_()
    return view * 2


def of_a_view(y: Tensor) -> Tensor:
    y[:, :2].relu_()
    return y * 2


def of_a_part(y: Tensor) -> Tensor:
    first, second = y.chunk(2, 1)
    first.mul_(3.0)
    return y + torch.cat([second, first], 1)


def compared(y: Tensor) -> Tensor:
    y.gt_(0.5)
    return y * 2


def returned(y: Tensor) -> Tensor:
    z = y + 1
    y.relu_()
    z.relu_()
    return y


def through_a_dropout(y: Tensor) -> Tensor:
    same = F.dropout(y, training=False)
    y.relu_()
    return same * 2


def view_read_before(y: Tensor) -> Tensor:
    part = y.transpose(2, 3) * 2
    y.relu_()
    return y + part


def written_over(y: Tensor) -> Tensor:
    y[:] = y.unsqueeze(2)[:, :, 0] + y.mean(1, keepdim=True)
    return y * 2


def written_over_by_less(y: Tensor) -> Tensor:
    y.copy_(y.mean(3, keepdim=True))
    return y * 2


def written_over_by_what_changes(y: Tensor) -> Tensor:
    other = y * 3
    y.copy_(other)
    other.relu_()
    return y + other


def written_over_behind_a_view(y: Tensor) -> Tensor:
    view = y.flatten(1)
    y.copy_(y * 2)
    return view * 3


def written_over_in_part(y: Tensor) -> Tensor:
    y[:, :2] = y[:, 2:] * 2
    return y * 2


def changed_twice_behind_a_view(y: Tensor) -> Tensor:
    view = y.flatten(1)
    y.relu_()
    y.mul_(2.0)
    return view * y.flatten(1)


def read_through_a_diagonal(y: Tensor) -> Tensor:
    diagonal = y.diagonal(dim1=2, dim2=3)
    y.relu_()
    return diagonal * 2


def written_through_a_diagonal(y: Tensor) -> Tensor:
    y.diagonal(dim1=2, dim2=3).fill_(-9.0)
    return y * 2


def of_a_cat(y: Tensor) -> Tensor:
    both = torch.cat([y, y * 2], 1)[:, :8]  # all of it: an alias
    both += torch.cat([y, y], 1)
    return both * 2


def alias_returned(y: Tensor) -> Tensor:
    same = y[:, :4]
    y.relu_()
    return same


def mask_of_parts(y: Tensor) -> Tensor:
    mask = y.new_zeros(4, 4)
    mask[1:3, 2:] = 1
    mask[3:, :2] = 2
    rows = mask[1:]
    rows[0].add_(3.0)
    mask[0].zero_()
    first, second = mask.chunk(2, 0)
    return (y + mask).masked_fill(rows[:1] == 4, -1.0) + first.sum() * second[:1]


def mask_read_before(y: Tensor) -> Tensor:
    mask = torch.zeros(4, 4)
    y = y + mask
    mask[0] = 1
    return y + mask


def mask_that_varies(y: Tensor) -> Tensor:
    mask = torch.zeros(4, 4)
    mask[0] = 1
    row = mask[1]
    row.copy_(y[0, 0, 0])
    return y + mask


@pytest.mark.parametrize(
    ("function", "replaced"),
    [
        (lambda y: F.relu(y, inplace=True) + 1, True),
        (lambda y: F.hardtanh(y.add_(y.mean(1, True)), inplace=True) * 2, True),
        (read_before_and_after, True),
        (lambda y: torch.addcmul(y, y, y) * y.mul_(2.0), True),
        (lambda y: torch.einsum("nchw,ndhw->ncd", y, y).softmax(-1), True),
        (lambda y: y / torch.linalg.vector_norm(y, dim=1, keepdim=True), True),
        (lambda y: F.dropout(y * 2, training=False, inplace=True) + 1, True),
        (lambda y: F.unfold(y, 2, padding=1, stride=2).softmax(-1), True),
        (lambda y: F.fold(y.flatten(2)[:, :, :9], (4, 4), 2) + 1, True),
        (view_read_before, True),
        (written_over, True),
        (of_a_cat, True),
        (mask_of_parts, True),
        (mask_read_before, False),
        (mask_that_varies, False),
        (alias_returned, False),
        (written_over_by_what_changes, True),
        (written_over_by_less, False),
        (written_over_behind_a_view, False),
        (written_over_in_part, False),
        (changed_twice_behind_a_view, False),
        (read_through_a_diagonal, False),
        (written_through_a_diagonal, False),
        (returned, False),
        (compared, False),
        (through_a_view, False),
        (of_a_view, False),
        (of_a_part, False),
        (through_a_dropout, False),
    ],
)
def test_rewritten_programs_compute_the_same(function: Callable[[Tensor], Tensor], replaced: bool) -> None:
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    module = Wrapped(function).eval()
    with torch.no_grad():
        program = torch.export.export(module, (x,))
        assert not is_plain(program)
        rewrite(program)
        assert is_plain(program) == replaced
        torch.testing.assert_close(program.module()(x), module(x))


class ForOne(nn.Module):
    """A linear whose weight is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT[0, 0, 0])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(3, 4, 3, stride=2), (3, 9)),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)), (3, 8, 8)),
        (nn.Conv3d(3, 2, 2), (3, 4, 4, 4)),
        (nn.ConvTranspose2d(3, 4, 3), (3, 5, 5)),
        (ForOne(), (2, 3)),
        (ForOne(), (3,)),
    ],
)
def test_sums_without_a_batch_or_for_one_output(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    program = q8.quantize(module.eval(), (x,), calibration=[x], quantizer=INT8, progress=False)
    model = q8.compile(program)
    found, wanted = q8.Session(model, "reference")(x.numpy()), module(x).detach().numpy()
    assert not model.report().islands
    assert found.shape == wanted.shape
    assert float(abs(found - wanted).max()) < 0.05 * float(abs(wanted).max())


class Computed(nn.Module):
    """Weights that follow from the input: a convolution for each sample, as dynamic ones have, in groups; one of rows;
    a linear by what an einsum gives."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(4, 72)

    def forward(self, x: Tensor) -> Tensor:
        count, channels, *image = x.shape
        weights = self.weights(x.mean((2, 3)))
        images = x.reshape(1, count * channels, *image)
        y = F.conv2d(images, weights.reshape(-1, 2, 3, 3), weights[:, 0].repeat(4), (2, 1), 1, groups=2 * count)
        y = F.conv1d(y.reshape(count, 4, -1), weights[0, :24].reshape(2, 4, 3), padding=2, dilation=2)
        return F.linear(y, torch.einsum("bcw,bcv->vw", y, y))


def test_weights_that_the_network_computes() -> None:
    x = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(3))
    module = Computed().eval()
    program = torch.export.export(module, (x,))
    rewrite(program)
    sums = [str(n.target) for n in program.graph.nodes if "conv" in str(n.target) or "linear" in str(n.target)]
    assert sums == ["aten.linear.default"]  # which computes weights
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-4, atol=1e-4)
    model = q8.compile(q8.quantize(module, (x,), calibration=[x], quantizer=INT8, progress=False))
    found, exact = q8.Session(model, "reference")(x.numpy()), module(x).detach().numpy()
    assert not model.report().islands
    assert float(abs(found - exact).max()) < 0.1 * float(abs(exact).max())


class Counts(nn.Module):
    """Writes into a buffer, and into a copy of a parameter."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias.clone()
        bias[:2].zero_()
        self.count[0] += 1
        return x + bias + self.count[0]


def test_what_a_module_keeps_is_not_written_into() -> None:
    module = Counts().eval()
    program = torch.export.export(module, (torch.zeros(4),))
    rewrite(program)
    assert not is_plain(program)
    assert module.count.tolist() == [0, 0]
    assert module.bias.tolist() == [1, 1, 1, 1]
    assert program.state_dict["count"].tolist() == [0, 0]
