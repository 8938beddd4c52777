"""One image: bytes in, (size, size, 3) uint8 out."""

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from metagrove.pools.layouts import Box


def decode(content: bytes, size: int, box: Box | None = None) -> np.ndarray:
    """The image, cropped to its box if it has one, as RGB, the whole frame resized to size × size."""
    with warnings.catch_warnings(), Image.open(io.BytesIO(content)) as opened:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image = ImageOps.exif_transpose(opened) if box is None else opened.crop(inside(box, opened.size))
        return np.asarray(rgb(image).resize((size, size), Image.Resampling.LANCZOS))


def inside(box: Box, frame: tuple[int, int]) -> tuple[int, int, int, int]:
    """A box in whole pixels, kept within the frame. Boxes were drawn on the stored pixels, so these are not turned."""
    left, top, right, bottom = (round(edge) for edge in box)
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, frame[0]), min(bottom, frame[1])
    if right <= left or bottom <= top:
        raise ValueError(f"its bounding box {box} has no part in a frame of {frame[0]} × {frame[1]}")
    return left, top, right, bottom


def rgb(image: Image.Image) -> Image.Image:
    """Any kind of image as RGB: what is transparent becomes white, 16-bit grey becomes 8-bit."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return image.convert("RGB")
