"""From a file to what the network sees of it: the one way that every command takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from torch import Tensor

from pathx.errors import PathxError
from pathx.images.archives import Member
from pathx.images.read import UserImage, decoded
from pathx.models.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Input:
    """An image that was read, what the network sees of it, and the seconds that it took."""

    image: UserImage
    tensor: Tensor
    seconds: float


def read_input(file: str | Path | Member, preprocessing: Preprocessing) -> Input:
    """Read an image and make it the network's input. Whatever is wrong with it is a PathxError."""
    start = perf_counter()
    try:
        with decoded(file, web=True) as image:
            return Input(image.reduced(), tensor_of(image, preprocessing), perf_counter() - start)
    except PathxError:
        raise
    except Exception as error:  # one odd image does not cost a run
        raise unexpected(error) from error


def tensor_of(image: UserImage, preprocessing: Preprocessing) -> Tensor:
    """The network's input; with the transparency of the image, where the network takes that as a channel."""
    transparent = image.layer if preprocessing.input_size[0] == 4 else None
    return preprocessing(transparent or image.pixels)


def unexpected(error: Exception) -> PathxError:
    """A fault of ours, as the reason why one image failed."""
    return PathxError(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)")
