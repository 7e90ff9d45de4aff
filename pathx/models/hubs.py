"""Networks of timm and transformers, by name or from a folder, with their preprocessing and labels.

Weights come from the cache of the Hugging Face hub, or are downloaded to it, always as safetensors. Code from a repository
is never run.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathx.errors import PathxError, parse_json, reason_of
from pathx.models.checkpoints import fill, fixed_seed, load_weights, read_state, select_state
from pathx.models.load import LoadedModel, made_of
from pathx.models.named import bundled_labels
from pathx.models.preprocessing import Preprocessing, adapt, complete
from pathx.regular import read_regular, sha256_of

SAFETENSORS = "model.safetensors"


def library(name: str) -> Any:
    """Import an optional library. If it is missing, a PathxError says how to install it."""
    try:
        with quietly():
            import_module("pathx.models.torchvision")  # most of them import torchvision, which may need help
            return import_module(name)
    except ImportError as error:
        problem = f"this needs {name}: pip install 'pathx-relu[{name}]'"
        if (error.name or "").partition(".")[0] not in (name, ""):
            problem = f"{name} cannot be imported ({reason_of(error)}): install it again"
        raise PathxError(problem, usage=True) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Keep a library from mixing text and warnings with results."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)  # it logs every attempt to reach the hub
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


# timm


def load_timm(text: str, weights: str | None, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """A network of timm.

    Args:
        text: such as `timm:resnet50.a1_in1k`; without the part after the dot, timm's default weights.
        weights: a file, `none` for untrained, or None for timm's own.
        arguments: for `timm.create_model`.
    """
    timm, name = library("timm"), text.removeprefix("timm:")
    _check_timm_name(timm, name)
    module, origin = _timm_network(timm, name, arguments), {"source": "timm", "name": name}
    if weights is None:
        file, about = _timm_weights(name, module)
        state, shown = _rename_keys(read_state(file), module), module.pretrained_cfg.get("tag") or "default"
        fill(module, select_state(state, module), name, shown)
        sha256, origin = sha256_of(file), origin | about
    else:
        if weights != "none":
            module = _with_classes_of(timm, name, arguments, module, read_state(Path(weights)))
            origin = {"source": "file", "name": Path(weights).name}
        shown, sha256 = load_weights(module, weights, name, "")
    config = import_module("timm.data").resolve_data_config(pretrained_cfg=module.pretrained_cfg, model=module)
    preprocessing = _prepare(lambda: timm_preprocessing(config), options)
    labels, origin = options.get("labels", _timm_labels(module)), {**origin, **made_of(arguments=arguments)}
    return LoadedModel(module.eval(), text, shown, sha256, preprocessing, labels, origin)


def _check_timm_name(timm: Any, name: str) -> None:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = get_close_matches(name, timm.list_models() + timm.list_pretrained(), n=3)
        remedy = f"did you mean {' or '.join(near)}?" if near else "`pathx models --from timm` lists the names"
        raise PathxError(f"timm has no model called {name!r}: {remedy}", usage=True)
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        there = f"it has {', '.join(tags[:6])}" if tags else "it has none"
        raise PathxError(f"timm has no weights {tag!r} of {architecture}: {there}", usage=True)


def _timm_network(timm: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    """A network of timm with the same random weights every time."""
    try:
        with quietly(), fixed_seed():
            module = timm.create_model(name, pretrained=False, **arguments).eval()
    except Exception as error:
        raise PathxError(f"timm cannot build {name} ({reason_of(error)}): check `arguments`", usage=True) from error
    if not hasattr(module, "num_classes"):
        problem = f"with these arguments timm's {name} is an encoder without a classifier ({type(module).__name__})"
        raise PathxError(f"{problem}: leave features_only out of `arguments`", usage=True)
    return module


def _with_classes_of(
    timm: Any, name: str, arguments: Mapping[str, Any], module: Any, state: Mapping[str, Tensor]
) -> Any:
    """The network, or one with as many classes as a checkpoint has."""
    heads = module.pretrained_cfg.get("classifier") or ()
    for head in [heads] if isinstance(heads, str) else heads:
        found = select_state(state, module).get(f"{head}.weight")
        if found is not None and found.ndim and "num_classes" not in arguments and found.shape[0] != module.num_classes:
            return _timm_network(timm, name, {**arguments, "num_classes": found.shape[0]})
    return module


_FULL_IMAGENET = 10_000
"""timm's classifiers have ImageNet's 1000 classes, or more than this many of all its classes."""


def _timm_weights(name: str, module: Any) -> tuple[Path, dict[str, str]]:
    """The file of timm's own weights, and its repository and revision."""
    repository, classes = module.pretrained_cfg.get("hf_hub_id") or "", module.pretrained_cfg.get("num_classes", 0)
    if not repository:
        raise PathxError(
            f"timm has no weights for {name}: give `weights` FILE, or none for an untrained network", usage=True
        )
    if classes != len(bundled_labels()) and classes < _FULL_IMAGENET:  # 0, or the size of an embedding
        problem = f"timm's weights of {name} are of an encoder without a classifier, such as CLIP's"
        raise PathxError(
            f"{problem}: give `weights` FILE with a classifier, or wrap it with one in `model` file.py:build",
            usage=True,
        )
    repository, _, revision = (repository if "/" in repository else f"timm/{repository}").partition("@")
    hub = library("huggingface_hub")
    try:
        with quietly():
            file = Path(hub.hf_hub_download(repository, SAFETENSORS, revision=revision or None))
    except Exception as error:  # the hub has a dozen types: offline, gated, missing, no such file, a broken connection
        raise _failure(name, error) from error
    return file, {"repository": repository, "revision": file.parent.name}


def _rename_keys(state: Mapping[str, Tensor], module: Any) -> Mapping[str, Tensor]:
    """The weights with the keys of the installed timm, which may differ from those in the file."""
    clean = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    if clean is None or set(state) == set(module.state_dict()):
        return state
    filtered: Mapping[str, Tensor] = clean(dict(state), module)
    return filtered


_FAILURES = {
    r"(?<!Local)EntryNotFound|safetensors|no file named": f"has no {SAFETENSORS}, and pathx reads no pickles: "
    "give `weights` FILE, or save it with save_pretrained(safe_serialization=True)",
    "trust_remote_code": "needs code of its own repository, which pathx never runs",
    "Unrecognized (configuration class|model)": "is not an image classifier of transformers{}: choose one that is, or wrap it "
    "in `model` file.py:build",
    "Gated|[Gg]ated repo|401 Client": "is gated, private or missing on the hub: check the name, then `hf auth login`",
    "(Repository|Revision)NotFound|valid model identifier|404 Client": "is not on the hub, and no such folder: check the name",
}
"""Errors of the hub's libraries, and what to say instead."""


def _failure(name: str, error: Exception, *, local: bool = False, architecture: str = "") -> PathxError:
    """What is wrong with a model on the hub or in a folder."""
    kind, text = type(error).__name__, str(error)
    for pattern, problem in _FAILURES.items():
        if re.search(pattern, f"{kind}: {text}"):
            return PathxError(f"{name} {problem.format(architecture and f' but {architecture}')}", usage=True)
    if local:
        problem = f"{name} cannot be loaded ({reason_of(error)}): save it again with save_pretrained"
        return PathxError(problem, usage=True)
    remedy = "go online, or give `weights` FILE, or none for an untrained network"
    return PathxError(f"{name} is not in the cache and cannot be downloaded ({kind}): {remedy}")


def timm_preprocessing(config: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing that timm's configuration of the data asks for."""
    size, crop, mode = tuple(config["input_size"]), config["crop_pct"] or 0.875, config["crop_mode"] or "center"
    for key in config.keys() - {"input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode"}:
        raise _unsupported_preprocessing(f"{key} {config[key]}")
    if mode not in ("center", "squash"):
        raise _unsupported_preprocessing(f"crop_mode {mode}")
    squash, whole = mode == "squash", mode == "squash" and crop == 1
    if size[1] != size[2] and not whole:
        raise _unsupported_preprocessing(f"input_size {list(size)}")
    resize = None if whole else math.floor(size[1] / crop)
    return Preprocessing(size, tuple(config["mean"]), tuple(config["std"]), resize, config["interpolation"], squash)


def _unsupported_preprocessing(what: str) -> PathxError:
    found = f"its images are prepared in a way that pathx does not support ({what})"
    return PathxError(f"{found}: give `input_size`, `mean` and `std` to have them resized and cropped", usage=True)


def _prepare(theirs: Callable[[], Preprocessing], options: Mapping[str, Any]) -> Preprocessing:
    """A network's own preprocessing with the changes of the call; if it is not supported, the call must give all of it."""
    try:
        return adapt(theirs(), options)
    except Exception:
        if not {"input_size", "mean", "std"} <= options.keys():
            raise
        return complete(options, "the call", "")


def _timm_labels(module: Any) -> tuple[str, ...]:
    names = module.pretrained_cfg.get("label_names")
    if names and len(names) == module.num_classes:
        return tuple(map(str, names))
    if module.num_classes == len(bundled_labels()) and "in1k" in str(module.pretrained_cfg.get("tag") or "in1k"):
        return bundled_labels()
    return ()


# transformers


def load_transformers(
    text: str, weights: str | None, arguments: Mapping[str, Any], options: Mapping[str, Any]
) -> LoadedModel:
    """An image classifier of transformers, by its name on the hub (`hf:NAME`) or from a folder of `save_pretrained`."""
    name, architecture = text.removeprefix("hf:"), ""
    local = os.path.isdir(name)
    if local and not os.path.isfile(os.path.join(name, "config.json")):
        raise PathxError(
            f"{name} is a folder without the config.json of save_pretrained: name the one that it wrote", usage=True
        )
    if not local and (name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1):
        raise PathxError(f"there is no folder {name}: check the path", usage=True)  # no name on the hub looks like this
    transformers = library("transformers")
    try:
        with quietly():
            transformers.logging.set_verbosity_error()
            transformers.logging.disable_progress_bar()
            architecture = _check_config(transformers, name)
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
            maker = transformers.AutoModelForImageClassification
            if weights is None:
                settings = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
                module, info = maker.from_pretrained(name, config=config, output_loading_info=True, **settings)
                if missing := [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]:
                    # transformers would give that part random weights
                    kind = architecture or "its config.json does not say what it is"
                    problem = f"{name} is no whole image classifier ({kind}), its weights lack {', '.join(missing[:3])}"
                    remedy = "give one that was trained as a classifier, or wrap it with one in `model` file.py:build"
                    raise PathxError(f"{problem}: {remedy}", usage=True)
            else:
                with fixed_seed():
                    module = maker.from_config(config, trust_remote_code=False)
    except PathxError:
        raise
    except Exception as error:
        raise _failure(name, error, local=local, architecture=architecture) from error
    shown, origin = Path(name).name if local else name, {"source": "folder" if local else "transformers", "name": name}
    configuration = _find_config(transformers, name)
    if not local and configuration is not None and configuration.parent.parent.name == "snapshots":
        origin["revision"] = configuration.parent.name
    shown, sha256 = load_weights(module, weights, name, shown)
    if weights not in (None, "none"):
        origin = {"source": "file", "name": shown}
    named = config.id2label or {}
    labels = options.get("labels", tuple(str(named[index]) for index in range(len(named)) if index in named))
    preprocessing = _prepare(lambda: _processor_of(transformers, name, config), options)
    origin |= made_of([] if configuration is None else [configuration])
    display = f"hf:{name}" if not local else Path(name).resolve().name
    return LoadedModel(module.eval(), display, shown, sha256, preprocessing, labels, origin)


_LARGEST_CONFIG, _LARGEST_INDEX, _LARGEST_NUMBER, _MOST_LAYERS = 1 << 24, 1 << 28, 1 << 24, 10_000
_ELSEWHERE = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


def _check_config(transformers: Any, name: str) -> str:
    """Refuse a config.json that leads to other files, addresses or code, or to a network larger than any memory.

    Returns: the class of the network that was saved, or "" if the file does not say.
    """
    file = _find_config(transformers, name)
    if file is None:
        return ""  # transformers will report it
    try:
        config = parse_json(read_regular(file, _LARGEST_CONFIG))
    except (OSError, ValueError) as error:
        problem = f"the config.json of {name} cannot be read ({reason_of(error)}): save it again"
        raise PathxError(problem, usage=True) from error
    if not isinstance(config, dict):
        raise PathxError(f"the config.json of {name} is no object: save it again with save_pretrained", usage=True)
    arguments = config.get("model_args")
    named = list(arguments) if isinstance(arguments, dict) else []
    leads = [key for key in named if key in _ELSEWHERE]
    leads += [key for key in _NAMES if re.search(r"[:/\\]", str(config.get(key) or ""))]
    strange = (one for one in _shards(name) if not re.fullmatch(r"[^/\\]+\.safetensors", one))
    leads += [f"{one} in {SAFETENSORS}.index.json" for one in strange]
    leads += ["quantization_config"] if config.get("quantization_config") else []
    if leads:
        problem = f"the config.json of {name} leads to other files or code ({leads[0]}), which pathx never opens"
        raise PathxError(f"{problem}: save the plain network with save_pretrained", usage=True)
    deep = {key: sum(_whole_numbers(config[key])) for key in config if re.search(r"depth|layers|stages|blocks", key)}
    largest = max(_whole_numbers(config), default=0)
    if largest > _LARGEST_NUMBER or max(deep.values(), default=0) > _MOST_LAYERS:
        raise PathxError(f"the config.json of {name} holds a number that no network has: save it again", usage=True)
    saved = config.get("architectures")
    return str(saved[0]) if isinstance(saved, list) and saved else ""


_NAMES = ("architecture", "attn_implementation", "_attn_implementation", "experts_implementation", "backbone")


def _shards(name: str) -> list[str]:
    """The files that hold the weights in a folder, if there are several."""
    try:
        listed = parse_json(read_regular(os.path.join(name, f"{SAFETENSORS}.index.json"), _LARGEST_INDEX))["weight_map"]
        return sorted({str(file) for file in listed.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # there is no index, or a damaged one, which transformers will report


def _whole_numbers(value: Any) -> Iterator[int]:
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _whole_numbers(one)
    if isinstance(value, int):
        yield value


def _find_config(transformers: Any, name: str) -> Path | None:
    """The config.json of a model, from its folder or the hub's cache; None if there is none."""
    with quietly():
        found = transformers.utils.cached_file(name, "config.json", _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def _processor_of(transformers: Any, name: str, config: Any) -> Preprocessing:
    """The preprocessing of a model's image processor, as transformers reads it."""
    try:
        with quietly():
            processor = transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
        return preprocessing_of(processor, int(getattr(config, "num_channels", None) or 3))
    except PathxError:
        raise
    except Exception as error:  # a file that is missing, damaged or of another kind
        problem = f"the preprocessor_config.json of {name} cannot be read ({reason_of(error)})"
        raise PathxError(f"{problem}: give `input_size`, `mean` and `std`", usage=True) from error


_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_PROCESSORS: dict[str, set[str]] = {
    **{name: set() for name in ("Beit", "Bit", "CLIP", "DeiT", "Levit", "MobileNetV1", "MobileNetV2", "MobileViT")},
    **{name: set() for name in ("Pvt", "Siglip", "ViT")},
    "ConvNext": {"crop_pct"},
    "EfficientNet": {"rescale_offset", "include_top"},
}
"""Image processors that only resize, crop, rescale and normalise, and the keys that each has besides `_KEYS`."""
_KEYS = {
    *("do_resize", "size", "resample", "do_center_crop", "crop_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
}
_HARMLESS = {
    *("image_processor_type", "feature_extractor_type", "processor_class", "transformers_version", "default_to_square"),
    *("do_convert_rgb", "data_format"),  # images always have the network's channels, and have them first
}


def preprocessing_of(processor: Any, channels: int = 3) -> Preprocessing:
    """The preprocessing of an image processor of transformers."""
    if hasattr(processor, "data_config"):
        return timm_preprocessing(processor.data_config)  # timm built this network
    kind = re.sub("ImageProcessor(Fast|Pil)?$", "", type(processor).__name__)
    if kind not in _PROCESSORS:
        raise _unsupported_preprocessing(type(processor).__name__)
    said = {key: value for key, value in processor.to_dict().items() if value is not None and key not in _HARMLESS}
    for key in said.keys() - _KEYS - _PROCESSORS[kind]:
        if said[key] is not False or not key.startswith("do_"):
            raise _unsupported_preprocessing(f"{key} {said[key]}")
    if not said.get("do_resize"):
        raise _unsupported_preprocessing("do_resize false")
    mean, std = _mean_and_std(said, channels)
    interpolation = _RESAMPLING[int(said["resample"])]
    return Preprocessing(**_geometry(kind, said, channels), mean=mean, std=std, interpolation=interpolation)


def _geometry(kind: str, said: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """How an image is resized and cropped."""
    size, crop = dict(said["size"]), dict(said.get("crop_size", {})) if said.get("do_center_crop") else None
    edge: Any = size.get("shortest_edge")
    if kind == "ConvNext" and crop is not None:
        raise _unsupported_preprocessing("do_center_crop true")
    if size.keys() == {"shortest_edge"} and kind == "ConvNext":
        if edge >= 384:  # large sizes are squashed, small ones cropped
            return {"input_size": (channels, edge, edge), "squash": True}
        crop, edge = {"height": edge, "width": edge}, int(edge / said["crop_pct"])
    elif size.keys() == {"shortest_edge"} and kind == "Levit":
        edge = int(256 / 224 * edge)
    elif size.keys() == {"height", "width"} and crop is None:
        return {"input_size": (channels, size["height"], size["width"]), "squash": True}
    elif size.keys() == {"height", "width"} and size["height"] == size["width"]:
        edge = size["height"]
    elif size.keys() != {"shortest_edge"}:
        raise _unsupported_preprocessing(f"size {size}")
    if not crop:
        raise _unsupported_preprocessing(f"size {size} without crop_size")
    return {
        "input_size": (channels, crop["height"], crop["width"]),
        "resize": edge,
        "squash": "shortest_edge" not in size,
        "floor_crop": True,
    }


def _mean_and_std(said: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation for pixels from 0 to 1 that do what a processor does to pixels from 0 to 255."""
    whole, normalized = said["rescale_factor"] * 255 if said.get("do_rescale") else 255, said.get("do_normalize")
    offset = 1.0 if said.get("do_rescale") and said.get("rescale_offset") else 0.0
    mean, std = (
        list(value) if isinstance(value, (list, tuple)) else [value] * channels
        for value in (said.get("image_mean", 0.0) if normalized else 0.0, said.get("image_std", 1.0))
    )
    again = std if said.get("include_top") else [1.0] * len(std)  # EfficientNet divides a second time
    std = std if normalized else [1.0] * len(std)
    return (
        tuple((value + offset) / whole for value in mean),
        tuple(value * other / whole for value, other in zip(std, again, strict=True)),
    )
