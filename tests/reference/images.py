"""What augmentations do to one uint8 image, by Pillow and SciPy."""

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage

GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
FACTORS = ("Brightness", "Contrast", "Color", "Sharpness")


def reference_operation(image, name, magnitude, rule="feddecorr"):
    """One operation on a uint8 array by Pillow; but FedDecorr's geometric ones by SciPy."""
    if name in GEOMETRIC:
        return {"feddecorr": geometry_by_scipy, "torchvision": geometry_by_pillow}[rule](image, name, magnitude)
    picture = Image.fromarray(image)
    return np.asarray(
        {
            "Invert": lambda: ImageOps.invert(picture),
            "Solarize": lambda: ImageOps.solarize(picture, magnitude),
            "Posterize": lambda: ImageOps.posterize(picture, round(magnitude)),
            "AutoContrast": lambda: ImageOps.autocontrast(picture),
            "Equalize": lambda: ImageOps.equalize(picture),
            "Brightness": lambda: ImageEnhance.Brightness(picture).enhance(magnitude),
            "Contrast": lambda: ImageEnhance.Contrast(picture).enhance(magnitude),
            "Color": lambda: ImageEnhance.Color(picture).enhance(magnitude),
            "Sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(magnitude),
            "Hue": lambda: turned(picture, magnitude),
        }[name]()
    )


def geometry_by_pillow(image, name, magnitude):
    """Nearest pixels; coefficients of (x, y, 1) for x, then for y."""
    if name == "Rotate":
        return np.asarray(Image.fromarray(image).rotate(magnitude, Image.Resampling.NEAREST))
    height, width, _ = image.shape
    coefficients = {
        "ShearX": (1, magnitude, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, magnitude, 1, 0),
        "TranslateX": (1, 0, -int(width * magnitude), 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, -int(height * magnitude)),
    }[name]
    picture = Image.fromarray(image)
    return np.asarray(picture.transform(picture.size, Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST))


def geometry_by_scipy(image, name, magnitude):
    """Cubic splines on (row, column) around half the side plus 0.5."""
    angle, (height, width, _) = np.deg2rad(magnitude), image.shape
    matrices = {
        "ShearX": [[1, magnitude], [0, 1]],
        "ShearY": [[1, 0], [magnitude, 1]],
        "Rotate": [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]],
        "TranslateX": np.eye(2),
        "TranslateY": np.eye(2),
    }
    shift = {"TranslateX": [0, width * magnitude], "TranslateY": [height * magnitude, 0]}.get(name, [0, 0])
    middle = np.array([height, width]) / 2 + 0.5
    offset = middle - np.array(matrices[name]) @ middle + shift
    channels = [ndimage.affine_transform(image[..., c], np.array(matrices[name]), offset) for c in range(3)]
    return np.stack(channels, axis=-1)


def turned(picture, part):
    """Another hue, as by torchvision's ColorJitter."""
    hue, saturation, value = picture.convert("HSV").split()
    hue = Image.fromarray(np.asarray(hue) + np.int32(part * 255).astype(np.uint8))
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


def torchvision_magnitudes(name):
    """Of levels 0 to 9, negative and positive (the same twice for operations without sign), as its table has them."""
    signless = {"Posterize": [8, 8, 7, 7, 6, 6, 5, 5, 4, 4], "Solarize": np.linspace(255, 0, 10)}
    if name in signless:
        return np.stack([signless[name]] * 2, axis=1)
    largest = {"Shear": 0.3, "Translate": 150 / 331, "Rotate": 30.0, **dict.fromkeys(FACTORS, 0.9)}
    steps = np.linspace(0, largest.get(name.rstrip("XY"), 0), 10)
    return (name in FACTORS) + np.outer(steps, [-1, 1])
