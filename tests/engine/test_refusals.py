"""Models that are refused, each with what was found and where, and those beside them that are not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function, Model, cnn, mlp
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning"),
]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def refuses(model: Any, images: Any, *parts: str) -> None:
    with pytest.raises(PathxError) as caught:
        pathx.explain(model, images, depth=1)
    message = str(caught.value)
    assert caught.value.usage
    assert "\n" not in message
    for part in parts:
        assert part in message


NO_LOGITS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "two heads": (lambda m, x: {"age": m.n(x), "sex": m.n(x + 1)}, "several outputs that could be logits (age of shape (2, 4)"),
    "a map": (lambda m, x: m.n[:2](x), "the model returns output of shape (2, 5, 10, 10), not one row of class logits"),
    "one number": (lambda m, x: m.n(x).sum(), "the model returns output of shape (), not one row"),
    "nothing": (lambda m, x: None, "the model returns output None, not one row"),
    "a class": (lambda m, x: m.n(x).argmax(1), "the model returns output of shape (2,), not one row"),
    "one row for all": (lambda m, x: m.n(x[:1]).squeeze(), "the model returns output of shape (4,), not one row"),
    "batch in the softmax": (lambda m, x: m.n(x).softmax(0), "softmax in the model itself is taken over the batch"),
    "softmax over groups": (lambda m, x: m.n(x).view(len(x), 2, -1).softmax(2).flatten(1), "is taken over groups of"),
    "batch in the softmax, from the end": (lambda m, x: m.n(x).log_softmax(-2), "is taken over the batch, not over the classes"),
    "no input": (lambda m, x: m.n(torch.ones_like(x)), "does not depend on its input"),
    "heads deep inside": (lambda m, x: {"a": [m.n(x)], "b": {"c": m.n(x + 1)}}, "(a.0 of shape (2, 4), b.c of shape (2, 4))"),
    "an int": (lambda m, x: {"a": 1, "b": m.n(x).argmax(1)}, "returns a an int, b of shape (2,), not one row"),
    "an empty list": (lambda m, x: [], "returns nothing, not one row"),
    "made whole": (lambda m, x: m.n(x.to(torch.int64).float()), "to_copy in the model itself makes integers of it"),
    "picked": (lambda m, x: F.one_hot(m.n(x).argmax(1), 4).float(), "argmax in the model itself makes integers of it"),
    "compared": (lambda m, x: (m.n[:2](x) > 0.5).float().mean((2, 3)), "in a way that can be explained"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_LOGITS)
def test_outputs_that_are_no_logits(name: str) -> None:
    function, message = NO_LOGITS[name]
    refuses(Model(function, n=cnn()), torch.randn(2, 3, 10, 10), message)


DECIDES = "the model decides by the values of its input"
NOT_LINEAR = "is neither linear nor an activation, and multiplies nothing"
TWO = "the model multiplies two values that it computed from the image"
REFUSALS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "an if": (lambda m, x: m.b(F.relu(m.a(x if x.sum() > 0 else -x))), DECIDES),
    "an item": (lambda m, x: m.b(F.relu(m.a(x))) * x.max().item(), DECIDES),
    "a list": (lambda m, x: m.b(F.relu(m.a(x))) * x.tolist()[0][0], DECIDES),
    "numpy": (lambda m, x: m.b(F.relu(m.a(x))) * float(x.numpy()[0, 0]), DECIDES),
    "an if below": (
        lambda m, x: m.b(F.relu(m.a(x))) if (m.a(x) > 0).any() else m.b(m.a(x)), f"{DECIDES} (.item(), .numpy() or `if`",
    ),
    "elements by value": (lambda m, x: m.b(F.relu(m.a(x)))[x[:, 0] > -9], "an operand of index in the model itself from the image"),
    "nonzero": (lambda m, x: m.b(F.relu(m.a(x)))[x[:, 0].nonzero()[:, 0]], "an operand of index in the model itself from"),
    "a product": (lambda m, x: m.b(F.relu(m.a(x) * m.c(x))), f"{TWO} (mul in the model itself)"),
    "a product of activations": (lambda m, x: m.b(F.relu(m.a(x)) * F.relu(m.c(x))), f"{TWO} (mul in the model itself)"),
    "a product of gates": (lambda m, x: m.b(m.a(x).sigmoid() * m.c(x).tanh()), f"{TWO} (mul in the model itself)"),
    "a number divided": (lambda m, x: m.b(F.relu(torch.div(torch.tensor(3.0), m.a(x)))), "div in the model itself divides"),
    "one over": (lambda m, x: m.b(F.relu(1 / m.a(x))), f"reciprocal in the model itself {NOT_LINEAR}"),
    "scaled by itself": (lambda m, x: m.b(F.batch_norm(F.relu(m.a(x)), *x.new_ones(2, 6), m.a(x)[0])), "batch_norm in the model"),
    "a power of a number": (lambda m, x: m.b(F.relu(2 ** m.a(x))), "pow in the model itself"),
    "a matrix product": (lambda m, x: (F.relu(m.a(x))[:, :, None] @ F.relu(m.c(x))[:, None]).mean(1), f"{TWO} (bmm in the model"),
    "a wave": (lambda m, x: m.b(F.relu(m.a(x)).cos()), f"cos in the model itself {NOT_LINEAR}"),
    "a softmax inside": (lambda m, x: m.b(F.relu(m.a(x)).softmax(1)), f"softmax in the model itself {NOT_LINEAR}"),
    "no activation": (lambda m, x: m.b(m.a(x)), "the model has no activation between its input and its output"),
    "noise": (lambda m, x: m.b(F.relu(m.a(x)) + torch.randn(6)), "the model draws random numbers (randn in the model itself)"),
    "dropout that stays": (lambda m, x: m.b(F.dropout(F.relu(m.a(x)))), "the model draws random numbers (bernoulli in"),
    "random slopes": (lambda m, x: m.b(F.rrelu(m.a(x), training=True)), "the model draws random numbers (rand in"),
    "the batch's mean": (lambda m, x: m.b(F.relu(m.a(x) - m.a(x).mean(0))), "mean in the model itself works along the batch"),
    "all elements in turn": (lambda m, x: m.b(F.relu(m.a(x).roll(7))), "roll in the model itself works along the batch"),
    "the first picture": (lambda m, x: m.b(F.relu(m.a(x) + m.a(x)[0])), "select in the model itself works along the batch"),
    "other pictures after it": (
        lambda m, x: m.b(F.relu(m.a(torch.cat([x, -x])))).view(2, 2, 3).mean(0), "run the network once for each and average",
    ),
    "stacked before the batch": (lambda m, x: torch.stack([m.b(F.relu(m.a(x)))] * 2).flatten(0, 1)[1:3], "stack along dim 1"),
    "a trapezium": (lambda m, x: m.b(F.relu(m.a(x).logcumsumexp(1))), f"logcumsumexp in the model itself {NOT_LINEAR}"),
    "no rule": (lambda m, x: m.b(F.relu(torch.renorm(m.a(x), 2, 0, 5))), "renorm"),
    "another picture": (lambda m, x: m.b(F.relu(m.a(x).flip(0))), "flip in the model itself works along the batch"),
    "pictures in one": (lambda m, x: m.b(F.relu(m.a(x)).reshape(1, -1).reshape(2, 6)), "without the batch of 2 in front"),
    "elements changed in Python": (lambda m, x: m.b(F.relu(m.a(x)).clone().apply_(abs)), DECIDES),
    "a complex factor": (lambda m, x: m.b(F.relu((m.a(x) * (1 + 2j)).abs())), "a tensor in the model itself is complex"),
    "a cast to complex numbers": (lambda m, x: m.b(F.relu(m.a(x).to(torch.complex64).real)), "model itself is complex"),
    "a pair as a complex number": (lambda m, x: m.b(F.relu(torch.complex(m.a(x), m.a(x)).imag)), "itself is complex"),
    "frequencies": (lambda m, x: m.b(F.relu(torch.fft.irfft(torch.fft.rfft(m.a(x)), n=6))), "model itself is complex"),
    "bits": (lambda m, x: m.b(F.relu(m.a(x).view(torch.int32).view(torch.float32))), "reads numbers as others"),
    "sparse matrices": (lambda m, x: m.b(F.relu(m.a(x)) @ torch.eye(6).to_sparse()), "is sparse: make it dense"),
    "places in memory": (lambda m, x: m.b(F.relu(m.a(x)).as_strided((2, 6), (6, 1))), "no rule for as_strided"),
    "fake quantisation": (
        lambda m, x: m.b(F.relu(torch.fake_quantize_per_tensor_affine(m.a(x), 0.1, 0, -128, 127))),
        "fake_quantize_per_tensor_affine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_no_gates_make_linear(name: str) -> None:
    function, message = REFUSALS[name]
    refuses(
        mlp(function, c=nn.Linear(5, 6)),
        torch.randn(2, 5),
        message,
    )


@pytest.mark.parametrize("name", ["a product", "a wave", "no rule"])
def test_what_is_refused_where_it_carries_the_decision_may_decide(name: str) -> None:
    """As a factor that is held, with all that made it."""
    function, _ = REFUSALS[name]
    model = mlp(lambda m, x: m.b(F.relu(m.a(x))) * function(m, x).sigmoid(), c=nn.Linear(5, 6))
    assert pathx.explain(model, torch.randn(2, 5), depth=1)[0].exact == "image"


def test_an_operation_of_others_is_not_taken_for_one_of_torch() -> None:
    """Whatever it is called."""
    library = torch.library.Library("pathx_tests", "DEF")
    library.define("relu(Tensor x) -> Tensor")
    library.define("add(Tensor x, Tensor y) -> Tensor")
    library.impl("relu", lambda x: x.clamp(min=1), "CompositeExplicitAutograd")
    library.impl("add", lambda x, y: x + 3 * y, "CompositeExplicitAutograd")
    theirs = torch.ops.pathx_tests
    images = torch.randn(2, 5)
    refuses(
        mlp(lambda m, x: m.b(theirs.relu(m.a(x)))), images, "pathx has no rule for pathx_tests.relu in the model itself"
    )
    refuses(mlp(lambda m, x: m.b(F.relu(theirs.add(m.a(x), m.a(x))))), images, "no rule for pathx_tests.add")


def test_sparse_weights() -> None:
    model = mlp(lambda m, x: m.b(F.relu(m.a(x))) @ m.graph)
    model.register_buffer("graph", torch.eye(3).to_sparse())
    refuses(model, torch.randn(2, 5), "graph of the model is sparse: make it dense")


MIXING: dict[str, Callable[[Any, Tensor], Any]] = {
    "attention over the batch": lambda m, x: m.b((h := F.relu(m.a(x)), (h @ h.T).softmax(1) @ h)[1]),
    "the mean of the batch": lambda m, x: m.b(F.relu(m.a(x).mean(0).expand(len(x), -1))),
    "the image before": lambda m, x: m.b(F.relu(m.a(torch.cat([x[:1], x[:-1]])))),
    "the image after": lambda m, x: m.b(F.relu(m.a(torch.cat([x[1:], x[-1:]])))),
}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", MIXING)
def test_images_that_change_each_other_are_refused_though_this_batch_does_not_show_it(name: str, count: int) -> None:
    """Of equal images every mixture gives what each gives alone."""
    with pytest.raises(PathxError, match=r"batch|multiplies nothing"):
        pathx.explain(mlp(MIXING[name]), torch.randn(1, 5).expand(count, -1), depth=1)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_way_out_for_views_in_one_batch_is_true(batch: int) -> None:
    """Several views of an image in one batch are refused where maxima are taken of them; run one by one they are not."""
    parts, x = {"net": cnn()}, torch.randn(batch, 3, 10, 10)
    joined = Model(lambda m, x: m.net(torch.cat([x, x.flip(3)])).view(2, -1, 4).mean(0), **parts).eval()
    apart = Model(lambda m, x: torch.stack([m.net(x), m.net(x.flip(3))]).mean(0), **parts).eval()
    with pytest.raises(PathxError, match=r"; run the network once for each and average what comes out$"):
        pathx.explain(joined, x, depth=1)
    found = pathx.explain(apart, x, depth=1)
    assert_close(torch.stack([one.logits for one in found]), joined(x))


@pytest.mark.parametrize("batch", [1, 2])
def test_views_in_one_batch_are_explained_as_they_are_one_by_one(batch: int) -> None:
    parts = {"a": nn.Conv2d(3, 5, 3, stride=2).double(), "b": nn.Linear(5, 4).double()}
    x = torch.randn(batch, 3, 9, 9, dtype=torch.float64)

    def net(m: Any, x: Tensor) -> Any:
        return m.b(F.relu(m.a(x)).mean((2, 3)))

    joined = Model(lambda m, x: net(m, torch.cat([x, x.flip(3)])).view(2, -1, 4).mean(0), **parts).eval()
    apart = Model(lambda m, x: (net(m, x) + net(m, x.flip(3))) / 2, **parts).eval()
    options: dict[str, Any] = {"target": 1, "depth": "all", "width": "all", "alpha": 0.0}
    for one, other in zip(pathx.explain(joined, x, **options), pathx.explain(apart, x, **options), strict=True):
        assert_close(one.weight, other.weight)
        assert one.bias == pytest.approx(other.bias, abs=1e-12)


LAST = lambda m, x: m.head(F.relu(m.cell(x)[0][:, -1]))  # noqa: E731
SEQUENCES: dict[str, nn.Module] = {
    "LSTM": nn.LSTM(4, 5, batch_first=True),
    "GRU": nn.GRU(4, 5, batch_first=True),
    "two ways": nn.GRU(4, 5, 2, batch_first=True, bidirectional=True),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_recurrent_cells(name: str) -> None:
    head = nn.Linear(10 if name == "two ways" else 5, 3)
    refuses(Model(LAST, cell=SEQUENCES[name], head=head), torch.randn(2, 6, 4), "in cell")


def test_normalisation_by_the_batch() -> None:
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)).eval()
    refuses(model, torch.randn(2, 3, 10, 10), "in 1 normalises by its batch's own statistics")


def test_quantised_weights() -> None:
    plain = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    refuses(
        torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}),
        torch.randn(2, 5),
        "the model is quantised (quantized.linear_dynamic in 2): explain the network it was made from",
    )
    model = mlp(lambda m, x: m.b(F.relu(m.a(x))) + m.extra.dequantize())
    model.register_buffer("extra", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    refuses(model, torch.randn(2, 5), "extra of the model is quantised")


def test_complex_weights() -> None:
    model = mlp(lambda m, x: m.b(F.relu(m.a(x))) * m.phase.real)
    model.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))  # type: ignore[assignment]
    refuses(model, torch.randn(2, 5), "phase of the model is complex")


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.b(F.relu(self.a(x + y)))
        return result


def test_what_torch_fx_runs_is_refused_in_one_line() -> None:
    """Though it adds to the errors that pass through it."""
    bent = nn.Sequential(nn.Linear(5, 6), nn.Softmax(1), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    refuses(torch.fx.symbolic_trace(bent), torch.randn(2, 5), f"softmax in 1 {NOT_LINEAR}")


def test_what_another_thread_computes() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(m.n, x).result()

    refuses(Model(forward, n=cnn()), torch.randn(2, 3, 10, 10), "is made where pathx cannot follow: in another thread")


def test_recurrent_layers() -> None:
    model = Model(
        lambda m, x: m.b(m.r(x)[1][-1]), r=nn.RNN(5, 4, nonlinearity="relu", batch_first=True), b=nn.Linear(4, 3)
    )
    images = torch.randn(2, 6, 5)
    for form in (model, torch.export.export(model, (images,)).module()):
        refuses(form, images, "no rule for recurrent layers")


def test_no_classes() -> None:
    model = mlp(lambda m, x: m.b(F.relu(m.a(x)))[:, :0])
    refuses(model, torch.randn(2, 5), "the model returns output of shape (2, 0), not one row of class logits per image")


def test_two_inputs() -> None:
    example = (torch.ones(2, 5), torch.ones(2, 5))
    forms = [TwoInputs(), torch.jit.script(TwoInputs()), torch.export.export(TwoInputs(), example).module()]
    for model in forms:
        refuses(model, torch.randn(2, 5), "wrap it so that its forward takes the image alone")


def test_inputs_that_are_no_pictures() -> None:
    words = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 2))
    refuses(
        words, torch.randint(0, 10, (2, 5)), "images must be a dense tensor of real numbers, not int64", "embedding"
    )
    refuses(words, torch.rand(2, 5), "it looks its input up in an embedding; it reads tokens, and no images")
    plain = mlp(lambda m, x: m.b(F.relu(m.a(x))))
    refuses(plain, torch.ones(2, 5, dtype=torch.complex64), "not complex64")
    refuses(plain, torch.ones(2, 5).to_sparse(), "not sparse")
    masked = torch.masked.masked_tensor(torch.ones(2, 5), torch.ones(2, 5, dtype=torch.bool))
    refuses(plain, masked, "images must be a plain tensor, not a MaskedTensor")
    refuses(plain, torch.nested.nested_tensor([torch.ones(5)]), "images must be a plain tensor: not nested")
    with pytest.raises(PathxError, match="nor inside of vmap or grad"):
        torch.vmap(lambda image: pathx.explain(plain, image[None])[0].weight)(torch.ones(2, 5))
    for images in (torch.ones(5), torch.ones(0, 5), [[1.0] * 5], None):
        refuses(plain, images, "images must be a tensor with the images along its first dimension, (B, …)")
    refuses(plain, torch.ones(2, 7), "the model cannot run on an input of shape (2, 7): ", "check the size and number")


def test_models_that_are_none() -> None:
    images = torch.ones(2, 5)
    refuses(lambda x: x, images, "the model must be a torch.nn.Module, not a function")
    refuses(nn.Linear, images, "the model must be a torch.nn.Module, not the class Linear itself")
    refuses(
        nn.Sequential(nn.LazyLinear(4), nn.ReLU()), images, "0.weight of the model has no shape yet; run the model once"
    )
    refuses(nn.Linear(5, 3).to("meta"), images, "weight of the model holds no numbers")


# What a model is for


def test_a_detector_is_called_a_detector() -> None:
    from pathx.models.torchvision import torchvision

    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    with pytest.raises(PathxError, match=r"the model is a detector \(SSD\): it finds boxes"):
        pathx.explain(model, torch.rand(1, 3, 64, 64))


def test_a_segmenter_is_called_a_segmenter() -> None:
    from pathx.models.torchvision import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    with pytest.raises(PathxError, match=r"the model is a segmenter \(LRASPP\): it classifies pixels; wrap it"):
        pathx.explain(model, torch.rand(1, 3, 64, 64))
    with pytest.raises(PathxError, match=r"wrap it so that it returns such a row \(of maps of logits"):
        pathx.explain(nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 5, 1)), torch.rand(1, 3, 64, 64))


def test_the_class_token_of_an_encoder_is_no_class() -> None:
    layers = nn.Sequential(nn.Linear(5, 80), nn.GELU(), nn.Linear(80, 80), nn.LayerNorm(80))
    with pytest.raises(
        PathxError, match=r"the model ends in the features of native_layer_norm.*; give it with its head"
    ):
        pathx.explain(Function(lambda x: layers(x)[:, 0]), torch.rand(1, 7, 5))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_a_backbone_is_not_explained_as_if_its_features_were_classes(name: str) -> None:
    from pathx.models.torchvision import torchvision

    model = torchvision.models.get_model(name, weights=None).eval()
    setattr(model, "fc" if hasattr(model, "fc") else "classifier", nn.Identity())
    with pytest.raises(PathxError, match=r"the model ends in the features of .*; give it with its head"):
        pathx.explain(model, torch.rand(1, 3, 64, 64), depth=1)


def test_programs_and_frozen_modules() -> None:
    """Exported programs as they come; frozen TorchScript; what was made for one processor says so."""
    model, images = cnn().eval(), torch.rand(2, 3, 10, 10)
    with torch.no_grad():
        expected = model(images)
    program = torch.export.export(model, (images,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(model)
        frozen, fast = torch.jit.freeze(script), torch.jit.optimize_for_inference(torch.jit.script(model))
    for form in (program, program, frozen, frozen):
        found = pathx.explain(form, images, depth=1)
        assert_close(torch.stack([one.logits for one in found]), expected)
    with pytest.raises(PathxError, match="give the module it was made from"):
        pathx.explain(fast, images, depth=1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [63, 64])
def test_a_matrix_before_the_last_relu_is_a_head_and_a_convolution_with_places_is_none(
    outputs: int, bias: bool
) -> None:
    convolved = nn.Sequential(nn.Conv2d(3, outputs, 3, bias=bias), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    ends_in_a_matrix = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, outputs, bias), nn.ReLU()
    )
    images = torch.rand(1, 3, 6, 6)
    assert len(pathx.explain(ends_in_a_matrix.eval(), images, depth=1)[0].logits) == outputs
    if outputs < 64:  # so few may be classes
        assert len(pathx.explain(convolved.eval(), images, depth=1)[0].logits) == outputs
    else:
        with pytest.raises(PathxError, match=r"the model ends in the features of 1, not in class logits"):
            pathx.explain(convolved.eval(), images, depth=1)
