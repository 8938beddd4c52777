"""Decode one image file to a uint8 array of shape (size, size, 3)."""

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from metagrove.pools.layouts import Box
from metagrove.pools.limits import DEFAULT, Limits


def decode(content: bytes, size: int, box: Box | None = None, limits: Limits = DEFAULT) -> np.ndarray:
    """Decode an image as RGB, crop it to its bounding box if it has one, and resize it to size × size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limits apply
        with Image.open(io.BytesIO(content)) as opened:
            limits.refuse_pixels(*opened.size)
            image = ImageOps.exif_transpose(opened) if box is None else opened.crop(inside(box, opened.size))
            return resized(image, size)


def resized(image: Image.Image, size: int) -> np.ndarray:
    """An image as RGB of size × size."""
    return np.asarray(rgb(image).resize((size, size), Image.Resampling.LANCZOS))


def inside(box: Box, frame: tuple[int, int]) -> tuple[int, int, int, int]:
    """Round a box to whole pixels and clip it to the frame; boxes refer to stored pixels, before EXIF rotation."""
    left, top, right, bottom = (round(edge) for edge in box)
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, frame[0]), min(bottom, frame[1])
    if right <= left or bottom <= top:
        raise ValueError(f"its bounding box {box} lies outside its frame of {frame[0]} × {frame[1]}")
    return left, top, right, bottom


def rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB: transparent pixels become white, 16-bit grey becomes 8-bit."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return image.convert("RGB")
