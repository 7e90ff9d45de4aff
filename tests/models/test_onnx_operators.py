"""Every operator of the converter with every attribute, in every version from opset 7 on, compared with onnxruntime.

A small file is made for each. It gives onnxruntime's numbers or is refused; nothing is read as another network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small import seeded

from pathx.errors import PathxError
from pathx.models.load import load_model
from pathx.models.onnx import OPSETS
from pathx.models.onnx_operators import OPERATORS

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
np = pytest.importorskip("numpy")

SIZE = (2, 4, 6, 7)
X = torch.randn(SIZE, generator=seeded(0))
OPTIONS: dict[str, Any] = {"input_size": (4, 6, 7), "mean": 0.0, "std": 1.0}
NUMBERS = np.random.default_rng(0)


def normal(*size: int) -> Any:
    return NUMBERS.standard_normal(size).astype(np.float32)


def whole(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def real(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


@dataclass
class Use:
    """One way to use an operator: `x` is the image, an array a constant, None an input that is left out."""

    inputs: tuple[Any, ...] = ("x",)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    integers: bool = False  # x times 9, as integers
    size: tuple[int, ...] = SIZE  # that x is reshaped to


def each(*inputs: Any, size: tuple[int, ...] = SIZE, **values: list[Any]) -> list[Use]:
    """Every combination of values of attributes; None leaves one out."""
    chosen = [dict(zip(values, choice, strict=True)) for choice in product(*values.values())]
    return [Use(inputs or ("x",), {k: v for k, v in one.items() if v is not None}, size=size) for one in chosen]


PADS = [None, [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 1, 0]]
AUTO = ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]
PLACES = [
    *(None, "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
    *("tf_half_pixel_for_nn", "half_pixel_symmetric"),
]
UNARY = (
    "Relu Neg Identity Sqrt Reciprocal Floor Ceil Abs Sigmoid Tanh Erf Exp HardSwish GlobalAveragePool GlobalMaxPool "
    "Mish Softplus Softsign Log Sign Sin Cos"
)
BINARY = "Add Sub Mul Div Equal Less Greater LessOrEqual GreaterOrEqual Mod Max Min Sum"

USES: dict[str, list[Use]] = {
    **{name: [Use(), Use(integers=True)] for name in UNARY.split()},
    **{
        name: [
            Use(("x", normal(4, 1, 1))),
            Use(("x", "x")),
            Use(("x", whole(-3, 2, 5, -7, 1, 4, 3)), integers=True),
            Use((whole(-3, 2, 5, -7, 1, 4, 3), "x"), integers=True),
        ]
        for name in BINARY.split()
    },
    "Conv": [
        *each("x", normal(6, 4, 3, 2), pads=PADS, strides=[None, [2, 3]], dilations=[None, [2, 1]]),
        *each("x", normal(6, 4, 3, 2), auto_pad=AUTO, strides=[None, [2, 3]], dilations=[None, [2, 1]]),
        *each("x", normal(6, 4, 3, 2), auto_pad=AUTO, pads=[[1, 1, 1, 1]]),
        *each("x", normal(6, 2, 3, 2), normal(6), group=[2], kernel_shape=[None, [3, 2]]),
        *each("x", normal(6, 4, 3), size=(2, 4, 42), pads=[None, [2, 1]], strides=[None, [2]]),
        *each("x", normal(6, 2, 2, 2, 3), size=(2, 2, 2, 6, 7), pads=[None, [1, 0, 1, 1, 0, 1]]),
    ],
    "ConvTranspose": [
        *each("x", normal(4, 5, 3, 2), pads=PADS, strides=[None, [2, 3]], dilations=[None, [2, 1]]),
        *each("x", normal(4, 5, 3, 2), auto_pad=AUTO, strides=[None, [2, 3]]),
        *each("x", normal(4, 5, 3, 2), normal(10), group=[2], strides=[[2, 2]], output_padding=[None, [1, 0], [0, 1]]),
        *each("x", normal(4, 5, 3, 2), strides=[[2, 2]], output_shape=[[13, 14], [14, 15]], kernel_shape=[[3, 2]]),
    ],
    "Gemm": [
        Use((normal(7, 5), "x", *more), {"transA": a, "transB": b, "alpha": alpha, "beta": beta}, size=size)
        for a, size in ((1, (7, 24)), (0, (5, 24)))
        for b in (0,)
        for alpha, beta in ((1.0, 1.0), (0.5, 2.0))
        for more in ((), (normal(24),), (real(2.0),))
    ]
    + each("x", normal(5, 42), normal(5), size=(8, 42), transA=[0], transB=[1], alpha=[1.0, 0.3], beta=[1.0, 0.0])
    + each("x", normal(8, 5), normal(5), size=(8, 42), transA=[1], transB=[0], alpha=[1.0], beta=[1.0]),
    "MatMul": [Use(("x", normal(7, 3))), Use((normal(3, 6), "x")), Use(("x", normal(4, 7, 2))), Use(("x", normal(7)))],
    "BatchNormalization": [
        Use(("x", normal(4), normal(4), normal(4), normal(4) ** 2 + 0.1), attributes, outputs)
        for attributes in (
            *({}, {"epsilon": 0.1}, {"momentum": 0.5}, {"training_mode": 0}, {"training_mode": 1}),
            *({"spatial": 1}, {"spatial": 0}),
        )
        for outputs in (1, 3, 5)
    ],
    "MaxPool": [
        *each(kernel_shape=[[3, 2]], pads=PADS, strides=[None, [2, 3]], ceil_mode=[None, 1], dilations=[None, [2, 2]]),
        *each(kernel_shape=[[3, 2]], auto_pad=AUTO, strides=[None, [2, 3]], ceil_mode=[None, 1]),
        *each(kernel_shape=[[3, 2]], storage_order=[0, 1]),
        *each(kernel_shape=[[3]], size=(2, 4, 42), strides=[None, [2]], ceil_mode=[0, 1]),
        *each(kernel_shape=[[2, 3, 2]], size=(2, 2, 2, 6, 7), strides=[None, [1, 2, 2]]),
    ],
    "AveragePool": [
        *each(
            kernel_shape=[[3, 2]], pads=PADS, strides=[None, [2, 3]], ceil_mode=[None, 1], count_include_pad=[None, 1]
        ),
        *each(kernel_shape=[[3, 2]], auto_pad=AUTO, strides=[None, [2, 3]], count_include_pad=[None, 1]),
        *each(kernel_shape=[[3, 2]], dilations=[[1, 1], [2, 1]], ceil_mode=[0, 1]),
        *each(kernel_shape=[[3]], size=(2, 4, 42), strides=[None, [2]], ceil_mode=[0, 1]),
        *each(kernel_shape=[[2, 3, 2]], size=(2, 2, 2, 6, 7), strides=[None, [1, 2, 2]]),
    ],
    **{
        name: [
            *each(axes=[None, [1], [-1, 2], [0, 1, 2, 3]], keepdims=[None, 0], noop_with_empty_axes=[None, 1]),
            *each("x", whole(1, -1), keepdims=[None, 0], noop_with_empty_axes=[None, 1]),
            *each("x", whole(), keepdims=[None, 0], noop_with_empty_axes=[None, 1]),
            Use(integers=True),
        ]
        for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")
    },
    "ArgMax": [
        *each(axis=[None, 1, -1], keepdims=[None, 0]),
        *(Use(attributes={"select_last_index": last}, integers=True) for last in (0, 1)),
    ],
    "Clip": [
        *each(min=[None, -0.5], max=[None, 0.3, -0.7]),
        *(
            Use(("x", low, high))
            for low in (None, np.float32(-0.5))
            for high in (None, np.float32(0.3), np.float32(-0.7))
        ),
    ],
    "LeakyRelu": each(alpha=[None, 0.3]),
    "PRelu": [Use(("x", slope)) for slope in (normal(4, 1, 1), normal(1, 4, 1, 1), normal(6, 7), real(0.2))],
    "Celu": each(alpha=[None, 0.3]),
    "Selu": each(alpha=[None, 0.3], gamma=[None, 2.0]),
    "Swish": each(alpha=[None, 0.3]),
    "Pow": [
        *(Use(("x", exponent)) for exponent in (real(2), np.float32(3), whole(2), real(1, 2, 3, 4, 5, 6, 7))),
        *(Use(("x", exponent), integers=True) for exponent in (whole(2), whole(3), real(0.5))),
    ],
    **{name: [Use((np.array([True, False]), np.array([[True], [False]])))] for name in ("And", "Or")},
    "Not": [Use((np.array([True, False]),))],
    "LayerNormalization": [
        *each("x", normal(7), axis=[None, -1, 3], epsilon=[None, 0.1], stash_type=[None, 1, 10]),
        *each("x", normal(4, 6, 7), normal(4, 6, 7), axis=[1, -3]),
        *each("x", normal(7), normal(6, 7), axis=[2]),
        Use(("x", normal(7)), outputs=3),
    ],
    "RMSNormalization": [
        *each("x", normal(7), axis=[None, -1, 3], epsilon=[None, 0.1], stash_type=[None, 1, 10]),
        *each("x", normal(4, 6, 7), axis=[1]),
    ],
    "InstanceNormalization": each("x", normal(4), normal(4), epsilon=[None, 0.1]),
    "GroupNormalization": each(
        "x", normal(4), normal(4), num_groups=[1, 2, 4], epsilon=[None, 0.1], stash_type=[None, 1]
    ),
    "Attention": [
        *each("x", "x", "x", scale=[None, 0.3], is_causal=[None, 1], softcap=[None, 2.0]),
        *each("x", "x", "x", qk_matmul_output_mode=[0, 1], softmax_precision=[None, 1, 11]),
        *each("x", "x", "x", left_window_size=[3], right_window_size=[3]),
        *each("x", normal(2, 4, 5, 7), normal(2, 4, 5, 3)),
        *each("x", normal(2, 4, 5, 7), normal(2, 4, 5, 3), normal(6, 5)),
        *each("x", normal(2, 4, 5, 7), normal(2, 4, 5, 3), np.tri(6, 5) > 0),
        *each("x", normal(2, 2, 5, 7), normal(2, 2, 5, 7)),
        *each("x", "x", "x", size=(2, 6, 28), q_num_heads=[4], kv_num_heads=[4]),
    ],
    "TopK": [
        replace(use, outputs=2)
        for use in (
            *each(k=[3], axis=[None, 1]),
            *each("x", whole(3), axis=[None, 1, -2], largest=[None, 0], sorted=[None, 1]),
        )
    ],
    "Einsum": each("x", normal(3, 4), equation=["nchw,dc->ndhw", "nchw,dc -> n", "...hw,dc->...h"]),
    "ScatterND": [
        *each("x", whole(0, 3, 1, 0).reshape(2, 2), normal(2, 6, 7), reduction=[None, "add"]),
        *each(normal(2, 4, 6, 7), whole(-1, 0).reshape(2, 1), "x"),
    ],
    "ThresholdedRelu": each(alpha=[None, 0.3]),
    "Elu": each(alpha=[None, 0.3]),
    "HardSigmoid": each(alpha=[None, 0.3], beta=[None, 0.1]),
    "Gelu": each(approximate=[None, "none", "tanh"]),
    "Softmax": [*each(axis=[None, 0, 1, 2, 3, -1, -2]), *each(axis=[None, 0, 1], size=(2, 168))],
    "LogSoftmax": [*each(axis=[None, 0, 1, 2, 3, -1, -2]), *each(axis=[None, 0, 1], size=(2, 168))],
    "Dropout": [
        *each(ratio=[None, 0.3], seed=[None, 3]),
        *(Use(("x", np.float32(0.3), training)) for training in (None, np.bool_(False), np.bool_(True))),
        Use(("x",), outputs=2),
    ],
    "Reshape": [
        *each("x", whole(2, -1), allowzero=[None, 0]),
        *each("x", whole(0, 0, -1), allowzero=[None, 0, 1]),
        *each("x", whole(0, 168), allowzero=[None, 0]),
    ],
    "Flatten": each(axis=[None, 0, 1, 2, 3, 4, -1, -4]),
    "Slice": [
        *each(starts=[[1, 0]], ends=[[4, 3]], axes=[None, [2, 3], [-1, -2]]),
        *each(starts=[[-3]], ends=[[2**40]], axes=[[3], [-2]]),
        *(
            Use(("x", whole(*start), whole(*end), axes, steps))
            for start, end in (((1, 0), (4, 3)), ((-2, 5), (-(2**40), 1)), ((0, 1), (2**40, 2**40)))
            for axes in (None, whole(2, 3), whole(-1, -2))
            for steps in (None, whole(1, 2), whole(-1, -1), whole(-2, -1))
        ),
    ],
    "Split": [
        Use(inputs, attributes, outputs)
        for outputs in (2, 3)
        for inputs in (("x",), ("x", whole(1, 3)), ("x", whole(1, 1, 2)))
        for attributes in (
            *({}, {"axis": 1}, {"axis": 3}, {"axis": -2}, {"axis": 1, "split": [1, 3]}),
            *({"axis": axis, "num_outputs": outputs} for axis in (1, 3)),  # another number aborts onnxruntime
        )
    ],
    "Pad": [
        *each(
            mode=[None, "constant", "reflect", "edge", "wrap"],
            pads=[[0, 0, 1, 2, 0, 0, 0, 1], [0, 1, 0, 0, 1, 0, 0, 0], [0, 0, -1, 1, 0, 0, 0, 0]],
            value=[None, 0.7],
        ),
        *(
            use
            for pads in (whole(0, 0, 1, 2, 0, 0, 0, 1), whole(0, 1, 0, 0, 1, 0, 0, 0), whole(0, 0, -1, 1, 0, 0, 0, 0))
            for more in ((), (np.float32(0.7),))
            for use in each("x", pads, *more, mode=[None, "constant", "reflect", "edge", "wrap"])
        ),
        *each("x", whole(1, 2, 0, 1), None, whole(-1, 2), mode=[None, "reflect", "edge", "wrap"]),
        *each("x", whole(1, 2, 0, 1), np.float32(2), whole(0, 3), mode=[None, "reflect", "edge", "wrap"]),
    ],
    "Upsample": [
        *each(scales=[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.7, 2.3]], mode=[None, "linear"]),
        *each("x", real(1, 1, 2, 2), mode=[None, "nearest", "linear"]),
        *each("x", real(1, 1, 1.7, 2.3), mode=[None, "nearest", "linear"]),
    ],
    "Resize": [
        *(
            use
            for scales in (real(1, 1, 2, 2), real(1, 1, 1.7, 2.3), real(1, 1, 0.6, 0.4))
            for use in each("x", scales, mode=[None, "nearest", "linear"])
        ),
        *(
            use
            for where in ((real(1, 1, 1.7, 2.3),), (real(1, 1, 0.6, 0.15),), (None, whole(2, 4, 9, 5)))
            for use in (
                *each(
                    *("x", None, *where),
                    coordinate_transformation_mode=PLACES,
                    nearest_mode=[None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
                ),
                *each("x", None, *where, coordinate_transformation_mode=PLACES, mode=["linear", "cubic"]),
                *each("x", None, *where, mode=["nearest", "linear"], antialias=[0, 1]),
                *each("x", None, *where, mode=["linear", "cubic"], exclude_outside=[0, 1], cubic_coeff_a=[-0.5]),
            )
        ),
        *each("x", None, None, whole(9, 5), axes=[[2, 3], [-1, -2]], mode=["nearest", "linear"]),
        *each(
            *("x", None, None, whole(9, 5)),
            axes=[[2, 3]],
            keep_aspect_ratio_policy=["stretch", "not_larger", "not_smaller"],
            mode=["nearest", "linear"],
        ),
        *each("x", None, real(1, 2, 1, 1), mode=["nearest", "linear"]),
        *each(
            *("x", real(0, 0, 0.1, 0.2, 1, 1, 0.8, 1.3), None, whole(2, 4, 9, 5)),
            mode=["nearest", "linear"],
            coordinate_transformation_mode=["tf_crop_and_resize"],
            extrapolation_value=[None, 3.0],
        ),
        *each("x", None, real(1, 1, 2, 2), extrapolation_value=[3.0]),
    ],
    "Gather": [
        Use(("x", index), {} if axis is None else {"axis": axis})
        for index in (whole(1, 0), whole(-1, 0), np.int64(1), np.int64(-1), whole(1, 0, -1, 1).reshape(2, 2))
        for axis in (None, 1, -1, 3)
    ],
    "GatherND": [
        *each("x", whole(0, 3, 1, 0).reshape(2, 2), batch_dims=[None, 0]),
        *each("x", whole(0, 3).reshape(2, 1), batch_dims=[1]),
        *each("x", whole(-1, -2).reshape(2, 1), batch_dims=[None]),
    ],
    "Constant": [
        Use((), attributes)
        for attributes in (
            *(
                {"value": onnx.numpy_helper.from_array(normal(2, 3))},
                {"value": onnx.numpy_helper.from_array(whole(1, 2))},
            ),
            *({"value_float": 1.5}, {"value_int": 3}, {"value_floats": [1.0, 2.0]}, {"value_ints": [1, 2]}),
            *({"value_string": "a"}, {"value_strings": ["a", "b"]}),
            {
                "sparse_value": onnx.helper.make_sparse_tensor(
                    onnx.numpy_helper.from_array(real(2.0), "v"), onnx.numpy_helper.from_array(whole(1), "i"), [3]
                )
            },
        )
    ],
    "ConstantOfShape": each(
        whole(2, 3),
        value=[None, onnx.numpy_helper.from_array(real(2.0)), onnx.numpy_helper.from_array(whole(3))],
    ),
    "Transpose": each(perm=[None, [0, 2, 3, 1]]),
    "Concat": each("x", "x", axis=[0, 1, -1]),
    "Squeeze": [
        *each(size=(2, 1, 168, 1), axes=[None, [1], [-1], [1, 3]]),
        *each("x", whole(1, -1), size=(2, 1, 168, 1)),
        *each("x", whole(), size=(2, 1, 168, 1)),
    ],
    "Unsqueeze": [*each(axes=[[0], [1, 3], [-1], [5, 0]]), *each("x", whole(1, 3)), *each("x", whole(-1, 0))],
    "Expand": [Use(("x", whole(3, 1, 1, 1, 1))), Use(("x", whole(1)))],
    "Shape": each(start=[None, 1, -2, -9], end=[None, 2, -1, 9]),
    "Cast": [
        Use(("x",), {"to": to, **more}, integers=integers)
        for to in range(1, 24)
        for integers in ((False, True) if to in (1, 7) else (to % 2 == 1,))
        for more in ({}, *([{"saturate": 0}, {"round_mode": "down"}] if to in (1, 7, 17, 20) else []))
    ],
    "Range": [
        Use((np.int64(1), np.int64(9), np.int64(3))),
        Use((np.int32(1), np.int32(9), np.int32(3))),
        Use((np.float32(1), np.float32(2), np.float32(0.3))),
    ],
    "Where": [Use((np.array([True, False, True, True, False, True, False]), "x", real(2.0)))],
    "DepthToSpace": each(blocksize=[2], mode=[None, "DCR", "CRD"]),
    "Tile": [Use(("x", whole(1, 2, 1, 3)))],
}
USES["Mod"] += [
    Use(("x", divisor), {"fmod": 1}, integers=integers) for divisor, integers in ((whole(-3), True), (real(0.4), False))
]
CHEAP = ("Add", "Concat", "Relu")  # tried in every opset


def schemas() -> dict[str, list[Any]]:
    """The versions of every operator that files of the opsets in question may use."""
    found: dict[str, list[Any]] = {name: [] for name in OPERATORS}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name in found and not schema.deprecated:
            found[schema.name].append(schema)
    ends = {name: sorted(one.since_version for one in known) for name, known in found.items()}
    return {
        name: [
            one
            for one in known
            if one.since_version <= OPSETS[-1]
            and min((end for end in ends[name] if end > one.since_version), default=99) > OPSETS[0]
        ]
        for name, known in found.items()
    }


SCHEMAS = schemas()


def opsets_of(name: str, schema: Any) -> list[int]:
    """The first opset with that version of an operator, and the last of all where it has it still."""
    later = [one.since_version for one in SCHEMAS[name] if one.since_version > schema.since_version]
    first, last = max(schema.since_version, OPSETS[0]), min(later, default=OPSETS[-1] + 1) - 1
    last = 9 if name == "Upsample" else last  # Resize takes its place
    return list(range(first, last + 1)) if name in CHEAP else sorted({first, *({last} & {OPSETS[-1]})})


def files(name: str) -> Iterator[tuple[int, Use]]:
    for schema in SCHEMAS[name]:
        for opset, use in product(opsets_of(name, schema), USES[name]):
            fits = schema.min_input <= len(use.inputs) <= schema.max_input and use.outputs <= schema.max_output
            if fits and use.attributes.keys() <= schema.attributes.keys():
                yield opset, use


def model(name: str, opset: int, use: Use) -> Any:
    """The file: x, reshaped or made whole numbers where asked for, and one operator."""
    make = onnx.helper.make_node
    nodes, constants, x = [], [], "image"
    if use.integers:
        constants.append(onnx.numpy_helper.from_array(real(9.0), "nine"))
        nodes += [make("Mul", [x, "nine"], ["large"]), make("Cast", ["large"], ["whole"], to=7)]
        x = "whole"
    if use.size != SIZE:
        constants.append(onnx.numpy_helper.from_array(whole(*use.size), "size"))
        nodes.append(make("Reshape", [x, "size"], ["shaped"]))
        x = "shaped"
    inputs = []
    for number, given in enumerate(use.inputs):
        if not isinstance(given, str) and given is not None:
            constants.append(onnx.numpy_helper.from_array(np.asarray(given), f"c{number}"))
        inputs.append("" if given is None else x if isinstance(given, str) else f"c{number}")
    outputs = ["y", *(f"more{number}" for number in range(1, use.outputs))]
    nodes.append(make(name, inputs, outputs, name="the node", **use.attributes))
    shown = outputs if name == "Split" else outputs[:1]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("image", 1, SIZE)],
        [onnx.ValueInfoProto(name=output) for output in shown],
        constants,
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def theirs(content: bytes) -> list[Any] | None:
    """What onnxruntime makes of a file; None where it refuses it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(content, options).run(None, {"image": X.numpy()})  # type: ignore[no-any-return]
    except Exception:  # it has no type for a file that is not valid, or an operator that it has no kernel for
        return None


def difference(file: Path, wanted: list[Any]) -> str | None:
    """How a file that is converted differs from what onnxruntime makes of it; None where it does not."""
    found = load_model(file, **OPTIONS).module(X)
    for mine, one in zip(found.values() if isinstance(found, dict) else [found], wanted, strict=True):
        if tuple(mine.shape) != one.shape:
            return f"shape {tuple(mine.shape)}, not {one.shape}"
        other, close = torch.from_numpy(one).to(mine.dtype), 1e-3 if one.dtype == np.float16 else 1e-5
        if wrong := int((~torch.isclose(mine, other, close, close, equal_nan=True)).sum()):
            return f"{wrong} of {mine.numel()} values"
    return None


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_operator_is_converted_exactly_or_refused(tmp_path: Path, name: str, step: int) -> None:
    file, converted, wrong = tmp_path / "net.onnx", 0, []
    for opset, use in islice(files(name), 0, None, step):
        content = model(name, opset, use).SerializeToString()
        file.write_bytes(content)
        wanted = theirs(content)
        if wanted is None:
            continue
        try:
            different = difference(file, wanted)
            converted += 1
        except PathxError as error:
            # Known before anything is compared, and said in one line.
            different = str(error) if "onnxruntime" in str(error) or "\n" in str(error) else None
        if different:
            wrong.append(f"opset {opset}, {use}: {different}")
    assert not wrong, "\n".join([f"{len(wrong)} files", *wrong])
    assert converted or step > 1


def test_every_attribute_is_tried() -> None:
    """What an operator does not follow is refused, and each attribute above has two values or is refused."""
    lacking = [
        f"{name} {attribute}"
        for name, known in SCHEMAS.items()
        for attribute in set().union(*(schema.attributes for schema in known))
        if not any(attribute in use.attributes for use in USES[name])
    ]
    assert not lacking


def saved(folder: Path, opset: int = 17, **attributes: Any) -> Path:
    """A file with a Conv that has some attribute of nobody's."""
    content = model("Conv", opset, Use(("x", np.ones((6, 4, 3, 2), np.float32)), {"pads": [1, 1, 1, 1]}))
    content.graph.node[0].attribute.extend(onnx.helper.make_attribute(*item) for item in attributes.items())
    file = folder / "net.onnx"
    onnx.save(content, str(file))
    return file


@pytest.mark.parametrize(("attributes", "said"), [({"mine": 1}, "mine"), ({"storage_order": 1}, "storage_order")])
def test_an_attribute_that_the_operator_does_not_have(tmp_path: Path, attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(PathxError, match=rf"^Conv with .*{said}.* \(node the node\) cannot be converted: export the"):
        load_model(saved(tmp_path, **attributes), **OPTIONS)


def test_a_refusal_names_operator_attribute_and_node(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(model("Resize", 18, Use(("x", None, real(1, 1, 2, 2)), {"mode": "linear", "antialias": 1})), str(file))
    with pytest.raises(PathxError, match=r"^Resize with antialias 1 \(node the node\) cannot be converted: export the"):
        load_model(file, **OPTIONS)


@pytest.mark.parametrize("opset", [1, OPSETS[0] - 1, OPSETS[-1] + 1])
def test_opsets_that_were_not_tried(tmp_path: Path, opset: int) -> None:
    with pytest.raises(PathxError, match=rf"opset {opset}, and pathx knows {OPSETS[0]} to {OPSETS[-1]}: export"):
        load_model(saved(tmp_path, opset), **OPTIONS)


def test_a_network_is_compared_with_onnxruntime_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path)
    right = OPERATORS["Conv"]
    load_model(file, **OPTIONS)
    monkeypatch.setitem(OPERATORS, "Conv", replace(right, run=lambda *given, **how: right.run(*given, **how) * 1.01))
    with pytest.raises(PathxError, match=r"net\.onnx gives another y in onnxruntime than in pathx: export the network"):
        load_model(file, **OPTIONS)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # not installed: there is nothing to compare with
    load_model(file, **OPTIONS)
