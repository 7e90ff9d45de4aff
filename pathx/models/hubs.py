"""Networks of timm and of transformers, by name or from a folder, with the preprocessing and labels they come with.

Weights come from the cache of the Hugging Face hub or are downloaded there, always as safetensors; code of a repository
is never run.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathx.errors import PathxError, parse_json, reason_of
from pathx.images.regular import read_regular, sha256_of
from pathx.models.bundled import bundled_labels
from pathx.models.checkpoints import fill, fitting, read_state, sha256_of_state
from pathx.models.loaded import LoadedModel, made_of
from pathx.models.named import adapted
from pathx.models.preprocessing import Preprocessing

SAFETENSORS = "model.safetensors"


def library(name: str) -> Any:
    """An optional library, or one line that says how to install it."""

    with quietly():
        try:
            import_module("pathx.models.torchvision")  # both import torchvision, which may need help
            return import_module(name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in (name, ""):
                raise PathxError(
                    f"{name} cannot be imported ({reason_of(error)}): install it again", usage=True
                ) from error
            raise PathxError(f"this needs {name}: pip install 'pathx-relu[{name}]'", usage=True) from error


@contextmanager
def quietly() -> Iterator[None]:
    """What a library prints and warns of meanwhile does not mix with results."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)  # it tells of every attempt to reach the hub
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


# timm


def load_timm(name: str, weights: str | None, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """A network of timm.

    Args:
        name: as timm spells it, such as `resnet50.a1_in1k`; without the part behind the dot timm's default weights.
        weights: a file, `none` for untrained, or None for timm's own.
        arguments: for `timm.create_model`.
    """
    timm = library("timm")
    _check_timm_name(timm, name)
    if weights is not None and weights.strip().lower() == "none":
        module, state, shown, origin = (
            timm_network(timm, name, arguments),
            None,
            "none",
            {"source": "timm", "name": name},
        )
    elif weights is not None:
        file = Path(weights)
        state, shown, origin = read_state(file), file.name, {"source": "file", "name": file.name}
        module = _with_classes_of(timm, name, arguments, state)
    else:
        module = timm_network(timm, name, arguments)
        file, origin = _timm_weights(name, module)
        state, shown = _filtered(read_state(file), module), module.pretrained_cfg.get("tag") or "default"
    if state is not None:
        fill(module, fitting(state, module), name, shown)
    sha256 = sha256_of_state(module.state_dict()) if state is None else sha256_of(file)
    preprocessing, labels = _timm_preprocessing(module, options), _timm_labels(module)
    labels, origin = options.get("labels", labels), {**origin, **made_of(arguments=arguments)}
    return LoadedModel(module.eval(), f"timm:{name}", shown, sha256, preprocessing, labels, origin)


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


def timm_network(timm: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    """A network of timm with weights left to chance, the same every time."""
    with quietly(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            module = timm.create_model(name, pretrained=False, **arguments)
        except Exception as error:
            raise PathxError(f"timm cannot build {name} ({reason_of(error)}): check `arguments`", usage=True) from error
    return module.eval()


def _with_classes_of(timm: Any, name: str, arguments: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    """The network with as many classes as a checkpoint has."""
    module = timm_network(timm, name, arguments)
    heads = module.pretrained_cfg.get("classifier") or ()
    for head in [heads] if isinstance(heads, str) else heads:
        found = fitting(state, module).get(f"{head}.weight")
        if found is not None and found.ndim and "num_classes" not in arguments and found.shape[0] != module.num_classes:
            return timm_network(timm, name, {**arguments, "num_classes": found.shape[0]})
    return module


def _timm_weights(name: str, module: Any) -> tuple[Path, dict[str, str]]:
    """The file of timm's own weights, from the hub's cache or the hub."""
    repository = module.pretrained_cfg.get("hf_hub_id") or ""
    if not repository:
        raise PathxError(
            f"timm has no weights for {name}: give `weights` FILE, or none for an untrained network", usage=True
        )
    repository = repository if "/" in repository else f"timm/{repository}"
    repository, _, revision = repository.partition("@")
    file = hub_file(repository, SAFETENSORS, revision or None, name)
    return file, {"source": "timm", "name": name, "repository": repository, "revision": file.parent.name}


def _filtered(state: Mapping[str, Tensor], module: Any) -> Mapping[str, Tensor]:
    """The weights with the keys of today's timm, where those in the file are older."""
    clean = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    if clean is None or set(state) == set(module.state_dict()):
        return state
    filtered: Mapping[str, Tensor] = clean(dict(state), module)
    return filtered


def hub_file(repository: str, file: str, revision: str | None, name: str) -> Path:
    """A file of a repository on the Hugging Face hub, from its cache or downloaded."""
    hub = library("huggingface_hub")
    try:
        with quietly():
            return Path(hub.hf_hub_download(repository, file, revision=revision))
    except (
        Exception
    ) as error:  # the hub has a dozen types for: offline, gated, missing, no such file, a broken connection
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> PathxError:
    kind = type(error).__name__
    if "Gated" in kind:
        return PathxError(
            f"{name} is gated on the hub: ask for access there, then log in with `hf auth login`", usage=True
        )
    if "RepositoryNotFound" in kind or "RevisionNotFound" in kind:
        return PathxError(f"there is no {name} on the hub, or it is private: check the name", usage=True)
    if "EntryNotFound" in kind and "Local" not in kind:
        return PathxError(
            f"{name} has no {SAFETENSORS} on the hub, and pathx reads no pickles: give `weights` FILE", usage=True
        )
    found = f"the weights of {name} are not in the cache and cannot be downloaded ({kind})"
    return PathxError(f"{found}: go online, or give `weights` FILE, or none for an untrained network")


def _timm_preprocessing(module: Any, options: Mapping[str, Any]) -> Preprocessing:
    data = import_module("timm.data")
    config = data.resolve_data_config(pretrained_cfg=module.pretrained_cfg, model=module)
    size = tuple(config["input_size"])
    resize = int(min(size[1:]) / config["crop_pct"])
    squash = config.get("crop_mode") == "squash"
    theirs = Preprocessing(
        size, tuple(config["mean"]), tuple(config["std"]), None if squash else resize, config["interpolation"], squash
    )
    return adapted(theirs, options)


def _timm_labels(module: Any) -> tuple[str, ...]:
    names = module.pretrained_cfg.get("label_names")
    if names and len(names) == module.num_classes:
        return tuple(map(str, names))
    if module.num_classes == len(bundled_labels()) and "in1k" in str(module.pretrained_cfg.get("tag") or "in1k"):
        return bundled_labels()
    return ()


# transformers


def is_pretrained_folder(path: str | Path) -> bool:
    """Whether a folder is one that `save_pretrained` wrote."""
    return os.path.isfile(os.path.join(path, "config.json")) and os.path.isdir(path)


def load_transformers(name: str, weights: str | None, options: Mapping[str, Any]) -> LoadedModel:
    """An image classifier of transformers, by its name on the hub or from a folder of `save_pretrained`."""
    transformers = library("transformers")
    local = is_pretrained_folder(name)
    if not local and os.path.isdir(name):
        raise PathxError(f"{name} has no config.json: give a folder that save_pretrained wrote", usage=True)
    if not local and (name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1):
        raise PathxError(f"there is no folder {name}: check the path", usage=True)  # no name on the hub looks like this
    try:
        with quietly():
            _silence(transformers)
            _check_config(transformers, name)
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
            maker = transformers.AutoModelForImageClassification
            if weights is None:
                settings = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
                module = maker.from_pretrained(name, config=config, **settings)
            else:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    module = maker.from_config(config, trust_remote_code=False)
    except PathxError:
        raise
    except Exception as error:
        raise _not_loaded(name, local, error) from error
    shown, origin = Path(name).name if local else name, {"source": "folder" if local else "transformers", "name": name}
    if not local and (file := _cached(transformers, name, "config.json")) and file.parent.parent.name == "snapshots":
        origin["revision"] = file.parent.name
    if weights is not None and weights.strip().lower() != "none":
        file = Path(weights)
        fill(module, fitting(read_state(file), module), name, str(file))
        shown, sha256, origin = file.name, sha256_of(file), {"source": "file", "name": file.name}
    else:
        shown = "none" if weights is not None else shown
        sha256 = sha256_of_state(module.state_dict())
    named = config.id2label or {}
    labels = options.get("labels", tuple(str(named[index]) for index in range(len(named)) if index in named))
    preprocessing = _processor(transformers, name, config, options)
    configuration = _cached(transformers, name, "config.json")
    origin |= made_of([] if configuration is None else [configuration])
    display = f"hf:{name}" if not local else Path(name).resolve().name
    return LoadedModel(module.eval(), display, shown, sha256, preprocessing, labels, origin)


_LARGEST_CONFIG, _LARGEST_INDEX, _LARGEST_NUMBER, _MOST_LAYERS = 1 << 24, 1 << 28, 1 << 24, 10_000
_ELSEWHERE = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


def _check_config(transformers: Any, name: str) -> None:
    """Refuse a config.json that leads to other files, addresses or code, or to a network that no memory holds."""
    file = _cached(transformers, name, "config.json")
    if file is None:
        return  # which transformers then says in words of its own
    try:
        config = parse_json(read_regular(file, _LARGEST_CONFIG))
    except (OSError, ValueError) as error:
        raise PathxError(
            f"the config.json of {name} cannot be read ({reason_of(error)}): save it again", usage=True
        ) from error
    if not isinstance(config, dict):
        raise PathxError(f"the config.json of {name} is no object: save it again with save_pretrained", usage=True)
    arguments = config.get("model_args")
    named = list(arguments) if isinstance(arguments, dict) else []
    leads = [key for key in named if key in _ELSEWHERE]
    leads += [key for key in _NAMES if re.search(r"[:/\\]", str(config.get(key) or ""))]
    leads += [
        f"{one} in {SAFETENSORS}.index.json" for one in _shards(name) if not re.fullmatch(r"[^/\\]+\.safetensors", one)
    ]
    leads += ["quantization_config"] if config.get("quantization_config") else []
    if leads:
        problem = f"the config.json of {name} leads to other files or code ({leads[0]}), which pathx never follows"
        raise PathxError(f"{problem}: save the plain network with save_pretrained", usage=True)
    deep = {key: sum(_whole_numbers(config[key])) for key in config if re.search(r"depth|layers|stages|blocks", key)}
    if (
        any(number > _LARGEST_NUMBER for number in _whole_numbers(config))
        or max(deep.values(), default=0) > _MOST_LAYERS
    ):
        raise PathxError(f"the config.json of {name} holds a number that no network has: save it again", usage=True)


_NAMES = ("architecture", "attn_implementation", "_attn_implementation", "experts_implementation", "backbone")


def _shards(name: str) -> list[str]:
    """The files that the weights in a folder are said to be in, where they are in several."""
    try:
        listed = parse_json(read_regular(os.path.join(name, f"{SAFETENSORS}.index.json"), _LARGEST_INDEX))["weight_map"]
        return sorted({str(file) for file in listed.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # there is none; or it is damaged, which transformers says


def _whole_numbers(value: Any) -> Iterator[int]:
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _whole_numbers(one)
    if isinstance(value, int):
        yield value


def _silence(transformers: Any) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _not_loaded(name: str, local: bool, error: Exception) -> PathxError:
    text = reason_of(error)
    if "safetensors" in str(error) or "no file named" in str(error):
        remedy = "save it with save_pretrained(safe_serialization=True)"
        return PathxError(f"{name} has no {SAFETENSORS}, and pathx reads no pickles: {remedy}", usage=True)
    if "trust_remote_code" in str(error):
        return PathxError(f"{name} needs code of its own repository, which pathx never runs", usage=True)
    if "Unrecognized configuration class" in str(error) or "Unrecognized model" in str(error):
        return PathxError(f"{name} is not an image classifier of transformers: choose one that is", usage=True)
    if local:
        return PathxError(f"{name} cannot be loaded ({text}): save it again with save_pretrained", usage=True)
    if "gated" in str(error) or "401" in str(error):
        return PathxError(
            f"{name} is gated, private or missing on the hub: check the name, `hf auth login`", usage=True
        )
    if "is not a local folder and is not a valid model identifier" in str(error) or "404" in str(error):
        return PathxError(f"there is no {name} on the hub, and no such folder: check the name", usage=True)
    return PathxError(f"{name} is not in the cache and cannot be downloaded ({type(error).__name__}): go online")


def _cached(transformers: Any, name: str, file: str) -> Path | None:
    """A file of a model, from its folder or the hub's cache; None where there is none."""
    with quietly():
        found = transformers.utils.cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def _processor(transformers: Any, name: str, config: Any, options: Mapping[str, Any]) -> Preprocessing:
    """What preprocessor_config.json says, in the words of our own preprocessing."""
    try:
        file = _cached(transformers, name, "preprocessor_config.json")
        said = parse_json(read_regular(file, _LARGEST_CONFIG)) if file else {}
        theirs = preprocessing_of(said if isinstance(said, dict) else {}, config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"the preprocessor_config.json of {name} cannot be read ({reason_of(error)})"
        raise PathxError(f"{problem}: give `input_size`, `mean` and `std`", usage=True) from error
    return adapted(theirs, options)


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def preprocessing_of(said: Mapping[str, Any], config: Any) -> Preprocessing:
    """The preprocessing that an image processor of transformers describes."""
    channels = int(getattr(config, "num_channels", 3))
    size, crop = said.get("size", getattr(config, "image_size", None) or 224), said.get("crop_size")
    height, width, shorter = _sides(size)
    mean = tuple(said.get("image_mean") or _IMAGENET[0]) if said.get("do_normalize", True) else (0.0,) * channels
    std = tuple(said.get("image_std") or _IMAGENET[1]) if said.get("do_normalize", True) else (1.0,) * channels
    interpolation = _RESAMPLING[int(said.get("resample", 2))]
    fields: dict[str, Any] = {"mean": mean, "std": std, "interpolation": interpolation}
    if "crop_pct" in said and shorter is not None:  # ConvNeXT's: small sizes are cropped, large ones squashed
        if shorter < 384:
            return Preprocessing((channels, shorter, shorter), resize=int(shorter / said["crop_pct"]), **fields)
        return Preprocessing((channels, shorter, shorter), squash=True, **fields)
    if said.get("do_center_crop", crop is not None) and crop is not None:
        rows, columns, _ = _sides(crop)
        resize = shorter if shorter is not None else min(height, width)
        return Preprocessing((channels, rows, columns), resize=resize, **fields)
    return Preprocessing((channels, height, width), squash=True, **fields)


def _sides(size: Any) -> tuple[int, int, int | None]:
    """(height, width, shorter side if only that is given)"""
    if isinstance(size, int):
        return size, size, size
    if "shortest_edge" in size:
        return (*(int(size["shortest_edge"]),) * 2, int(size["shortest_edge"]))
    return int(size["height"]), int(size["width"]), None
